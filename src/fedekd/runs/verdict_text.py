"""The words for what ``verdicts`` finds, the same wherever they stand: four states, and what a site should do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedekd.runs.best_of import BestOf
from fedekd.runs.choosing import FEW as TO_CHOOSE
from fedekd.runs.federation_report import SiteReport
from fedekd.runs.transfer import ClientTransfer, MethodTransfer
from fedekd.settings import ChosenBy
from fedekd.units import Unit, count
from fedekd.verdicts import EQUIVALENT, FEW, HARMED, HELPED, UNDECIDED, Verdict

STATES = {HARMED: "clearly harmed", HELPED: "clearly helped", EQUIVALENT: "equivalent", UNDECIDED: "undecided"}
"""In the order in which they are told."""
JOIN, STAY, OPEN = ("join", "stay alone", "undecided")
PART_WORDS = {
    "delta": "Δ against Local",
    "recipe": "recipe",
    "federation": "federation",
    "smooth": "smoothed alone",
    "gain": "gain over the best alone",
    "gate": "over half the λ",
}
"""Of a method's summary, and in this order of what a study finds."""
CAN_SHOW = "Can show: the smallest difference that the test rows would reveal four times in five."
LOWEST = "the round of the lowest validation loss"
DRAWN = (
    "With so many clients, training alone too took place only in the rounds in which a client was drawn. A site by "
    "itself trains in every round, so this flatters joining."
)
NO_ROWS = "these records do not hold the test rows that a verdict needs: it is by sign alone"


class Advice(NamedTuple):
    """What a client should do, and why in one sentence."""

    decision: str
    reason: str


def counts(states: Mapping[str, int], noun: str = "") -> dict[str, str]:
    """By state, for those that anyone is in: 2 of 6 clients clearly helped, 1 equivalent, 3 undecided."""
    found = {state: f"{states[state]:,} {words}" for state, words in STATES.items() if states[state]}
    if noun and found:
        first = next(iter(found))
        found[first] = f"{states[first]:,} of {count(sum(states.values()), noun)} {STATES[first]}"
    return found


def counted(states: Mapping[str, int], noun: str = "") -> str:
    return ", ".join(counts(states, noun).values())


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
        return undecided(method, verdict, alone, unit)
    if state == EQUIVALENT:
        more = "; no method here gives more" if methods > 1 else ""
        return f"with {method} it is within {unit.amount(verdict.margin)} of alone ({alone}): nothing is gained{more}"
    better = "better" if state == HELPED else "worse"
    size = f"{unit.amount(verdict.difference)} {better} than alone ({alone}), 95 % interval {interval(verdict, unit)}"
    most = max(abs(verdict.low), abs(verdict.high))
    small = f", less than the margin of {unit.amount(verdict.margin)}" if most <= verdict.margin else ""
    others = "; no method here gives more" if state == HARMED and methods > 1 else ""
    return f"with {method} its {unit.name} is {size}{small}{others}"


def undecided(method: str, verdict: Verdict, alone: str, unit: Unit) -> str:
    """What a client's test rows could have shown, and how many the margin needs."""
    if verdict.reason:
        few = f", and nothing is said of fewer than {FEW}" if verdict.rows < FEW else ""
        return verdict.reason + few
    found = f"the same as alone ({alone}), but"
    if abs(verdict.difference) > 1e-12:
        side = "above" if verdict.difference > 0 else "below"
        found = f"{unit.amount(verdict.difference)} {side} alone ({alone}), which may be chance:"
    seeds = f" and {verdict.seeds} seeds" if verdict.seeds > 1 else ""
    test_rows = f"with {method} its {unit.name} is {found} its {verdict.rows:,} test rows{seeds}"
    if not math.isfinite(verdict.detectable):
        return f"{test_rows} are too few to tell"
    can, needed = f"{test_rows} can only show about {unit.amount(verdict.detectable)} or more", ""
    if verdict.rows_needed is None and seeds:
        needed = f"; {unit.amount(verdict.margin)} would take more rows and more seeds"
    elif verdict.rows_needed is not None and verdict.rows_needed > verdict.rows:
        needed = f"; {unit.amount(verdict.margin)} would take about {_about(verdict.rows_needed):,} rows"
    return can + needed


def interval(verdict: Verdict, unit: Unit) -> str:
    return f"{unit.delta(verdict.low)} to {unit.delta(verdict.high)}" if math.isfinite(verdict.low) else ""


def _about(rows: int) -> int:
    """Two digits: it is no more exact than that."""
    size = 10 ** max(0, len(str(rows)) - 2)
    return -(-rows // size) * size


# --- of an analysis --------------------------------------------------------------------------------------


def told(method: MethodTransfer) -> str:
    """How many clients are in which state, or by sign alone where the records do not hold the test rows."""
    if method.states:
        return counted(method.states, who(method))
    return f"{method.by_sign:,} of {count(method.client_runs, who(method))} harmed by sign alone"


def parts_told(method: MethodTransfer) -> dict[str, str]:
    """What its summary's parts are called; compared with plain Local alone, a gain that is Δ again is left out."""
    names = {part: PART_WORDS[part] for part in method.summary}
    if len(method.menu) < 2:
        names["gain"] = "gain over Local at the chosen rounds"
        if method.summary["gain"] == method.summary["delta"]:
            del names["gain"]
    return names


def best_alone(methods: Iterable[MethodTransfer]) -> str:
    """What a gain is over."""
    return "the best it can do alone" if any(len(method.menu) > 1 for method in methods) else "training alone"


def who(method: MethodTransfer) -> str:
    """What is counted; where every seed splits the data anew, a client is another one on each."""
    return "client" if method.one_split and (method.states or len(method.seeds) == 1) else "client-run"


def alone_label(client: ClientTransfer) -> str:
    """The best that a client can do by itself; where seeds choose differently, the commonest: local on 3 of 5 seeds."""
    ((first, times),) = Counter(one.label for one in client.alone).most_common(1)
    seeds = len(client.alone)
    if times == seeds:
        return first
    return f"{first} on {times} of {seeds} seeds" if times > 1 else f"another one on each of {seeds} seeds"


def advice_by_client(methods: Iterable[MethodTransfer], unit: Unit) -> dict[tuple[str, tuple[int, ...]], Advice]:
    """By client and the seeds on which it is the same client; those without test rows are left out."""
    verdicts: dict[tuple[str, tuple[int, ...]], dict[str, Verdict]] = {}
    alone: dict[tuple[str, tuple[int, ...]], str] = {}
    for method in methods:
        for client in method.clients:
            if client.verdict is not None:
                verdicts.setdefault((client.client, client.seeds), {})[method.label] = client.verdict
                alone[client.client, client.seeds] = alone_label(client)
    return {key: advise(by_method, alone[key], unit) for key, by_method in verdicts.items()}


def decided(advice: Iterable[Advice]) -> str:
    """2 should join, 1 should stay alone, 3 are undecided."""
    found = Counter(one.decision for one in advice)
    are = "is" if found[OPEN] == 1 else "are"
    return f"{found[JOIN]:,} should join, {found[STAY]:,} should stay alone, {found[OPEN]:,} {are} undecided"


def caveats(methods: Sequence[MethodTransfer], unit: Unit) -> list[str]:
    """What must stand beside the verdicts of one table: the menu, what is assumed, and what seeds can tell."""
    if not methods:
        return []
    if not any(method.states for method in methods):
        return [f"{NO_ROWS[0].upper()}{NO_ROWS[1:]}.{f' {DRAWN}' * methods[0].alone_was_drawn}"]
    compared = sum(client.verdict is not None for method in methods for client in method.clients)
    holds = assumed(f"all {compared:,} comparisons here", unit, methods[0])
    return [menu(methods[0]), f"{holds} {CAN_SHOW}", seeds(methods)]


def menu(method: MethodTransfer) -> str:
    if len(method.menu) < 2:
        told = "Compared with plain Local; --alone menu compares with the best a site can do alone."
    else:
        told = best_of_menu(method.menu, method.chosen_by)
    if method.alone_was_drawn:
        return f"{told} {DRAWN}"
    if method.participation < 1:
        share = f"{100 * method.participation:g} % of the clients"
        return f"{told} In each round {share} trained with a method; alone, every client trained in every round."
    return told


def best_of_menu(labels: Sequence[str], by: ChosenBy, whose: str = "each client") -> str:
    few = f"plain Local where it has fewer than {TO_CHOOSE}"
    return f"Alone: the best of {', '.join(labels)}, chosen for {whose} {chosen(by)}; {few}."


def site_menu(site: SiteReport) -> list[str]:
    """The same sentence for a real site, where it trained more than plain Local."""
    labels = [one["label"] for one in site.get("menu", ())]
    return [best_of_menu(labels, site.get("chosen_by", "metric"), "this site")] if len(labels) > 1 else []


def chosen(by: ChosenBy, whose: str = "its") -> str:
    """How a client chooses the best alone."""
    loss = " by loss, unless plain Local's is within one standard error of the lowest"
    return f"on {whose} validation rows{loss if by == 'loss' else ''}"


def best_of(method: BestOf) -> str:
    more = f" (of {len(method.configurations) + method.left_out:,} that were run)" if method.left_out else ""
    chosen = f"the one of {', '.join(method.configurations)}{more} that its validation rows choose"
    return f"{method.label}: each client has {chosen}, by the rule that chooses the best alone."


def independence(group: str | None) -> str:
    """``group``: the column of rows that count as one, where --group named it."""
    return "Test rows are assumed independent" if group is None else f"Test rows of one {group} count as one"


def after(choose_rounds: bool) -> str:
    """Which round a record's numbers are of."""
    return f"after {LOWEST if choose_rounds else 'the last round'}"


def assumed(family: str, unit: Unit, method: MethodTransfer) -> str:
    """``family`` names what Holm's method is over."""
    usual = "the last round, or at an earlier one that validation rows clearly prefer"
    margin = "2 points" if unit.percent else "0.02" if unit.higher_is_better else f"2 % of the {unit.name} alone"
    return (
        f"Method and alone are each taken at {LOWEST if method.choose_rounds else usual}. "
        f"{independence(method.group)}. Clearly: at the 5 % level over {family} (Holm's method), which is stricter "
        f"than an interval that leaves out zero. Equivalent: the whole interval lies within ±{margin}."
    )


def seeds(methods: Sequence[MethodTransfer]) -> str:
    all_, folds = {seed for method in methods for seed in method.seeds}, methods[0].folds
    tested = Counter(seed % folds for seed in all_) if folds else Counter[int]()
    times = min(tested.values(), default=0)
    if folds and len(tested) < folds:
        return (
            f"Only {len(tested)} of {folds} folds are finished, so a verdict is on those of a client's rows that they "
            "test; what the trainings differ by counts as chance too."
        )
    if folds and times == 1:
        return (
            f"Every row of a client was tested once, by a model trained without it ({folds} folds); what the {folds} "
            f"trainings differ by counts as chance too. --seeds 0-{2 * folds - 1} tests every row twice."
        )
    if folds:
        return (
            f"Every row of a client was tested on {times} seeds, by models trained without it ({folds} "
            "folds), so a verdict is about the method."
        )
    if len(all_) == 1:
        return (
            "One seed tells you about these trained models, not about the method; for that, add "
            "--seeds 0-4 --split-seed 0."
        )
    if all(method.one_split for method in methods):
        return f"Clients and test rows are the same on all {len(all_)} seeds, so a verdict is about the method."
    return (
        "Every seed splits the data anew, so client 3 has other rows in each, and verdicts are on client-runs: one "
        "client in one training. --split-seed 0 keeps clients and test rows the same."
    )
