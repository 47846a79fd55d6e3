"""How numbers are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedekd.units import BAD, GOOD, Unit, blocks, duration, volume

ACCURACY, RMSE = Unit("accuracy", 1), Unit("rmse", 2)


@pytest.mark.parametrize(
    ("unit", "delta", "text", "style"),
    [
        (ACCURACY, 0.0123, "+1.2", GOOD),
        (ACCURACY, -0.116, "−11.6", BAD),
        (ACCURACY, 0.0, "0.0", "dim"),
        (ACCURACY, -0.0, "0.0", "dim"),
        (ACCURACY, 1e-17, "0.0", "dim"),
        (ACCURACY, -0.0002, "−0.02", BAD),
        (RMSE, 2.314, "+2.31", BAD),
        (RMSE, -2.314, "−2.31", GOOD),
        (RMSE, 0.0, "0.00", "dim"),
        (RMSE, float("nan"), "+nan", BAD),
        (Unit("r2", 4), float("nan"), "n/a", BAD),
    ],
)
def test_delta_has_sign_and_colour(unit: Unit, delta: float, text: str, style: str) -> None:
    assert unit.delta(delta) == text
    assert unit.style(delta) == style


@pytest.mark.parametrize(
    ("local", "text"),
    [(54.321, "54.32"), (0.054321, "0.05432"), (54321.0, "54321"), (5.4321e-7, "5.432e-07"), (5.4321e9, "5.432e+09")],
)
def test_errors_get_four_digits(record: Callable[..., dict[str, Any]], local: float, text: str) -> None:
    unit = Unit.of([record("local", [0.0], local=local, metric="rmse")])
    assert unit.value(local) == text


def test_an_error_of_zero_is_no_trouble(record: Callable[..., dict[str, Any]]) -> None:
    assert Unit.of([record("local", [0.0], local=0.0, metric="rmse")]).value(0.0) == "0.000"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (812, "812 B"), (1234, "1.2 kB"), (999_950, "1.0 MB"), (123_456_789, "123 MB"), (4e13, "40.0 TB")],
)
def test_volume(nbytes: float, text: str) -> None:
    assert volume(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (3.21, "3.2 s"), (42, "42 s"), (125, "2 min"), (7500, "2 h 05 min")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_blocks() -> None:
    assert blocks([0, 1, 4, 8]) == " ▂▅█"
    assert blocks([]) == ""
    assert blocks([0, 0]) == "  "
