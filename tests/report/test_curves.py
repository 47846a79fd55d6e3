"""Learning curves: names at the ends of their lines do not lie on one another."""

from __future__ import annotations

import numpy as np
import pytest

from fedekd.report.html.learning import _apart, _with_ends


@pytest.mark.parametrize("places", [[], [1.0], [0.0, 5.0], [1.0, 1.0, 1.0], [0.0, 0.1, 0.2, 9.0, 9.05]])
def test_places_are_moved_apart_and_no_further(places):
    found = np.array(_apart(places, 0.5))
    assert (np.diff(found) >= 0.5 - 1e-9).all()
    assert found.sum() == pytest.approx(sum(places)), "each group stays where it was on the whole"
    far = [place for k, place in enumerate(places) if all(abs(place - x) > 1 for x in places[:k] + places[k + 1 :])]
    assert all(any(np.isclose(place, found)) for place in far)


def test_only_the_last_row_of_a_line_has_a_place_for_its_name():
    curves = {"a": [0.1, 0.8], "b": [0.9, 0.8], "gone": [0.5, float("nan")]}
    rows = [{"method": name, "round": r, "value": v} for name, own in curves.items() for r, v in enumerate(own)]
    group = _with_ends({"0": rows}, "method", "value")["0"]
    assert {row["method"]: row["round"] for row in group if row["at"] is not None} == {"a": 1, "b": 1}
    a, b = (row["at"] for row in group if row["at"] is not None)
    assert b - a == pytest.approx(0.8 * 15 / 260)
