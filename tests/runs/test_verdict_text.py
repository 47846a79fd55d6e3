"""What a site is told: which state leads to which advice, in which words."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest

from fedekd.runs import transfer
from fedekd.runs.transfer import analyse
from fedekd.runs.verdict_text import STATES, Advice, advice_by_client, advise, alone_label, caveats, counted, decided
from fedekd.units import Unit
from fedekd.verdicts import EQUIVALENT, HARMED, HELPED, UNDECIDED, Verdict
from made_records import make_record

POINTS, ERROR = Unit("accuracy", 1), Unit("rmse", 2)


def verdict(state: str, difference: float = 0.0, low: float = -0.1, high: float = 0.1, **more) -> Verdict:
    return Verdict(
        state, difference, low, high, **{"margin": 0.02, "detectable": 0.1, "rows": 100, "rows_needed": 2500, **more}
    )


HELP, HARM = verdict(HELPED, 0.06, 0.03, 0.09), verdict(HARMED, -0.06, -0.09, -0.03)
SAME, OPEN = verdict(EQUIVALENT, 0.001, -0.01, 0.01), verdict(UNDECIDED, 0.03, -0.02, 0.08)


@pytest.mark.parametrize(
    ("states", "decision", "words"),
    [
        ([HELP], "join", "with a its accuracy is 6.0 points better than alone (local), 95 % interval +3.0 to +9.0"),
        ([HARM, OPEN, SAME, HELP], "join", "with d its accuracy is 6.0 points better"),
        (
            [HARM, OPEN, SAME],
            "undecided",
            "with b its accuracy is 3.0 points above alone (local), which may be chance: its 100 test rows",
        ),
        ([HARM, SAME], "stay alone", "with b it is within 2.0 points of alone (local): nothing is gained; no method"),
        ([HARM], "stay alone", "with a its accuracy is 6.0 points worse than alone (local)"),
        (
            [OPEN],
            "undecided",
            "its 100 test rows can only show about 10.0 points or more; 2.0 points would take about 2,500 rows",
        ),
        (
            [verdict(UNDECIDED)],
            "undecided",
            "with a its accuracy is the same as alone (local), but its 100 test rows can only show",
        ),
        (
            [verdict(UNDECIDED, seeds=2, rows_needed=None)],
            "undecided",
            "its 100 test rows and 2 seeds can only show about 10.0 points or more; 2.0 points would take more rows "
            "and more seeds",
        ),
        ([verdict(UNDECIDED, rows_needed=100)], "undecided", "can only show about 10.0 points or more"),
        ([verdict(UNDECIDED, rows=3, reason="only 3 test rows")], "undecided", "nothing is said of fewer than 5"),
        ([verdict(HELPED, 0.005, 0.001, 0.009)], "join", "less than the margin of 2.0 points"),
    ],
)
def test_what_is_advised(states: list[Verdict], decision: str, words: str) -> None:
    found = advise(dict(zip("abcd", states, strict=False)), "local", POINTS)
    assert found.decision == decision
    assert words in found.reason


def test_the_best_of_several_methods_is_the_reason() -> None:
    assert "with b" in advise({"a": HELP, "b": verdict(HELPED, 0.08, 0.05, 0.11)}, "local", POINTS).reason
    errors = {"a": verdict(HELPED, -1.0, -2.0, -0.5), "b": verdict(HELPED, -3.0, -4.0, -2.0)}
    assert "with b its RMSE is 3.00 better than alone" in advise(errors, "local", ERROR).reason


@pytest.mark.parametrize(("difference", "side"), [(0.03, "above"), (-0.03, "below")])
def test_undecided_says_on_which_side_in_the_metrics_own_unit(difference: float, side: str) -> None:
    one = {"a": verdict(UNDECIDED, difference)}
    assert f"its accuracy is 3.0 points {side} alone (local), which may" in advise(one, "local", POINTS).reason
    assert f"its RMSE is 0.03 {side} alone (local), which may be chance:" in advise(one, "local", ERROR).reason


def test_the_menu_says_who_cannot_choose_from_it() -> None:
    methods = analyse([make_record(m, rows=50) for m in ("local", "local-smooth", "fedekd")])
    menu = caveats(methods, POINTS)[0]
    assert menu.startswith("Alone: the best of local, local-smooth, chosen for each client on its validation rows; ")
    assert menu.endswith("; plain Local where it has fewer than 30.")


@pytest.mark.parametrize("menu", [(), ("local-smooth",)])
def test_where_those_alone_are_drawn_too_it_says_so(menu: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [make_record(m, rows=50) for m in ("local", *menu, "fedekd")]
    clients = len(runs[0]["clients"])
    for share, many, said in ((0.5, clients, True), (0.5, clients + 1, False), (1.0, clients, False)):
        monkeypatch.setattr(transfer, "TOO_MANY_ALONE", many)
        for record in runs:
            record["params"]["participation"] = share
        menu_line = caveats(analyse(runs), POINTS)[0]
        assert ("flatters joining" in menu_line) == said
        assert ("50 % of the clients trained with a method; alone, every client" in menu_line) == (
            share < 1 and not said
        )
        without = deepcopy(runs)
        for client in (client for run in without for client in run["clients"]):
            del client["rows"]
        assert not any(method.states for method in analyse(without))
        assert ("flatters joining" in caveats(analyse(without), POINTS)[0]) == said, "without verdicts too"


def test_the_headline() -> None:
    states = {HELPED: 2, HARMED: 0, EQUIVALENT: 1, UNDECIDED: 3}
    assert counted(states) == "2 clearly helped, 1 equivalent, 3 undecided"
    assert counted(states, "client") == "2 of 6 clients clearly helped, 1 equivalent, 3 undecided"
    assert counted({UNDECIDED: 1, **dict.fromkeys((HELPED, HARMED, EQUIVALENT), 0)}, "client") == (
        "1 of 1 client undecided"
    )
    some = [Advice("join", ""), Advice("undecided", "")]
    assert decided(some) == "1 should join, 0 should stay alone, 1 is undecided"


def test_rounding_harms_nobody() -> None:
    """A method that is Local to the last digit but one: by sign half of its clients are harmed."""
    deltas = [1e-9, -1e-9] * 3
    runs = [make_record(m, deltas, rows=500) for m in ("local", "fedekd")]
    for record in runs:
        for client, delta in zip(record["clients"], deltas, strict=True):
            client["delta"] = delta if record["method"] == "fedekd" else 0.0
    (one,) = analyse(runs)
    assert one.by_sign == 3
    assert one.states[HARMED] == one.states[HELPED] == 0


def test_what_does_nothing_with_others_is_no_method_to_join_with() -> None:
    names = ("local", "local-smooth", "fedekd@alone", "fedekd@uniform", "constant", "fedekd")
    runs = [make_record(name, rows=50) for name in names]
    for record in runs:
        record["bytes_up"] = record["bytes_down"] = 0 if record["method"] == "constant" else record["bytes_up"]
    assert [method.label for method in analyse(runs)] == ["fedekd"]


def test_the_same_is_said_of_records_of_errors() -> None:
    runs = [make_record(m, [-5.0, 5.0, 0.0], local=50.0, metric="rmse", rows=300) for m in ("local", "fedekd")]
    methods = analyse(runs)
    unit = Unit.of(runs)
    found = {client: one.decision for (client, _), one in advice_by_client(methods, unit).items()}
    assert found == {"0": "join", "1": "stay alone", "2": "stay alone"}
    assert "2 % of the RMSE alone" in caveats(methods, unit)[1]
    assert set(methods[0].states) == set(STATES)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (["local", "local-smooth", "local-smooth"], "local-smooth on 2 of 3 seeds"),
        (["local"] * 5, "local"),
        (["local"], "local"),
    ],
)
def test_what_seeds_choose_differently_is_named_with_how_often(chosen: list[str], words: str) -> None:
    client: Any = SimpleNamespace(alone=[SimpleNamespace(label=label) for label in chosen])
    assert alone_label(client) == words
