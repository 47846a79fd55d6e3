"""The words for what ``verdicts`` finds, the same wherever they stand: four states, and what a site should do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from fedekd.units import Unit
from fedekd.verdicts import EQUIVALENT, FEW, HARMED, HELPED, UNDECIDED, Verdict

STATES = {HARMED: "clearly harmed", HELPED: "clearly helped", EQUIVALENT: "equivalent", UNDECIDED: "undecided"}
"""In the order in which they are told."""
JOIN, STAY, OPEN = DECISIONS = ("join", "stay alone", "undecided")


class Advice(NamedTuple):
    """What a client should do, and why in one sentence."""

    decision: str
    reason: str


def counted(states: Mapping[str, int]) -> str:
    """0 clearly harmed, 2 clearly helped, 1 equivalent, 3 undecided."""
    return ", ".join(f"{states[state]:,} {words}" for state, words in STATES.items())


def advise(by_method: Mapping[str, Verdict], alone: str, unit: Unit) -> Advice:
    """For one client, from its verdicts by method; ``alone`` names the best that it can do by itself.

    It joins where a method clearly helps, stays alone where none could, and is undecided as long as one is.
    """
    found = {state: _best(by_method, state, unit) for state in STATES}
    for state, decision in ((HELPED, JOIN), (UNDECIDED, OPEN), (EQUIVALENT, STAY), (HARMED, STAY)):
        if (best := found[state]) is not None:
            return Advice(decision, _reason(state, *best, alone, unit, len(by_method)))
    raise ValueError("no verdict to advise by")


def _best(by_method: Mapping[str, Verdict], state: str, unit: Unit) -> tuple[str, Verdict] | None:
    some = [(method, verdict) for method, verdict in by_method.items() if verdict.state == state]

    def rank(one: tuple[str, Verdict]) -> float:
        return math.inf if math.isnan(one[1].difference) else unit.harm(one[1].difference)

    return min(some, key=rank) if some else None


def _reason(state: str, method: str, verdict: Verdict, alone: str, unit: Unit, methods: int) -> str:
    if state == UNDECIDED:
        return undecided(method, verdict, unit)
    if state == EQUIVALENT:
        more = "; no method here gives more" if methods > 1 else ""
        return f"with {method} it is within {unit.amount(verdict.margin)} of alone ({alone}): nothing is gained{more}"
    better = "better" if state == HELPED else "worse"
    size = f"{unit.amount(verdict.difference)} {better} than alone ({alone}), 95 % interval {interval(verdict, unit)}"
    most = max(abs(verdict.low), abs(verdict.high))
    small = f", less than the margin of {unit.amount(verdict.margin)}" if most <= verdict.margin else ""
    others = "; no method here gives more" if state == HARMED and methods > 1 else ""
    return f"with {method} its {unit.name} is {size}{small}{others}"


def undecided(method: str, verdict: Verdict, unit: Unit) -> str:
    """What a client's test rows could have shown, and how many the margin needs."""
    if verdict.reason:
        few = f", and nothing is said of fewer than {FEW}" if verdict.rows < FEW else ""
        return verdict.reason + few
    points = " points" if unit.higher_is_better else f" of {unit.name}"
    change = f"with {method} {unit.delta(verdict.difference)}{points}"
    if not math.isfinite(verdict.detectable):
        return change
    can = f"{change}, but its {verdict.rows:,} test rows show no less than {detectable(verdict, unit)}"
    needed = verdict.rows_needed
    return can + (f"; {unit.amount(verdict.margin)} need about {_about(needed):,} such rows" if needed else "")


def interval(verdict: Verdict, unit: Unit) -> str:
    return f"{unit.delta(verdict.low)} to {unit.delta(verdict.high)}" if math.isfinite(verdict.low) else ""


def detectable(verdict: Verdict, unit: Unit) -> str:
    return unit.amount(verdict.detectable) if math.isfinite(verdict.detectable) else ""


def _about(rows: int) -> int:
    """Two digits: it is no more exact than that."""
    size = 10 ** max(0, len(str(rows)) - 2)
    return -(-rows // size) * size
