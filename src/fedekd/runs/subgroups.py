"""Δ by subgroup: a method against Local on the test rows of women and men, of young and old.

It is the mean over the clients, each with its own test rows of the subgroup and by their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedekd import metrics, verdicts
from fedekd.runs import packing
from fedekd.runs.alone import Runs, by_table, needs_federation, plain_local
from fedekd.runs.folds import end_to_end, fold_of, same_clients
from fedekd.runs.records import Record
from fedekd.runs.row_results import compared, groups_of, rows_of
from fedekd.runs.verdict_text import STATES
from fedekd.units import Unit
from fedekd.verdicts import Comparison, Verdict

HEADS = ("test rows of", "rows", "Δ", "95 % interval", "verdict")


@dataclass(frozen=True)
class SubgroupDelta:
    name: str
    rows: int
    """Test rows, in the mean over seeds."""
    delta: float
    low: float
    high: float
    """95 %: over rows where all seeds share them, else over seeds."""
    state: str | None
    """None where every seed has other test rows: then only ``low`` and ``high`` tell."""


@dataclass(frozen=True)
class MethodSubgroups:
    dataset: str
    alpha: float | None
    column: str
    label: str
    unit: Unit
    found: tuple[SubgroupDelta, ...]

    @property
    def worst(self) -> SubgroupDelta | None:
        known = [one for one in self.found if math.isfinite(one.delta)]
        return max(known, key=lambda one: self.unit.harm(one.delta), default=None)

    @property
    def title(self) -> str:
        what = f"Δ of {self.unit.name}{' in points' if self.unit.percent else ''}"
        return f"{self.label} against Local by {self.column}: {what}, mean over clients by their rows"

    @property
    def told(self) -> str:
        """The subgroup with the worst Δ."""
        worst, unit = self.worst, self.unit
        if worst is None:
            return f"Δ of {unit.name} is not defined in any subgroup"
        interval = f", 95 % {_interval(worst, unit)}" if math.isfinite(worst.low) else ""
        return f"the worst: {self.column}={worst.name}, Δ {unit.delta(worst.delta)}{interval}"

    def cells(self) -> list[tuple[str, str, str, str, str]]:
        """A line for each subgroup, as HEADS names them."""
        return [
            (
                f"{self.column}={one.name}",
                f"{one.rows:,}",
                self.unit.delta(one.delta) if math.isfinite(one.delta) else "undefined",
                _interval(one, self.unit),
                "" if one.state is None else STATES[one.state],
            )
            for one in self.found
        ]

    def text(self) -> str:
        lines = [HEADS, *self.cells()]
        widths = [max(len(line[k]) for line in lines) for k in range(len(HEADS))]
        texts = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([self.title, *texts, self.told])


def _interval(one: SubgroupDelta, unit: Unit) -> str:
    return f"{unit.delta(one.low)} to {unit.delta(one.high)}" if math.isfinite(one.low) else "unknown"


def by_subgroup(records: Sequence[Record], folder: str | Path | None = None) -> list[MethodSubgroups]:
    """Every method of these records that needs a federation, where they hold subgroups.

    Holm's method is over what one table shows: all methods and subgroups of one dataset, alpha and settings. ``folder``
    is where the records lie, which is needed for metrics other than accuracy and RMSE.
    """
    known = [record for record in records if "subgroups" in record["partition"]]
    where = None if folder is None else Path(folder)
    return [method for runs in by_table(known) for method in _table(runs, where)]


def _table(runs: Runs, folder: Path | None) -> list[MethodSubgroups]:
    plain = plain_local(runs)
    units: list[tuple[str, str, list[Comparison]]] = []
    for label, some in runs.items():
        shown = needs_federation(next(iter(some.values())))
        pairs = [(record, plain[seed]) for seed, record in some.items() if seed in plain and shown]
        if pairs:
            names = pairs[0][0]["partition"]["subgroups"]["names"]
            units += [(label, name, _comparisons(pairs, k, folder)) for k, name in enumerate(names)]
    judged = iter(verdicts.judge([some[0] for _, _, some in units if len(some) == 1]))
    found: dict[str, list[SubgroupDelta]] = {}
    for label, name, pair in units:
        found.setdefault(label, []).append(_delta(name, pair, next(judged) if len(pair) == 1 else None))
    every = [record for some in runs.values() for record in some.values()]
    first, unit = every[0], Unit.of(every)
    column = first["partition"]["subgroups"]["column"]
    return [
        MethodSubgroups(first["dataset"], first["alpha"], column, label, unit, tuple(some))
        for label, some in found.items()
    ]


def _delta(name: str, some: Sequence[Comparison], verdict: Verdict | None) -> SubgroupDelta:
    rows = round(float(np.mean([one.joined.shape[1] for one in some]))) if some else 0
    if verdict is not None:
        return SubgroupDelta(name, rows, verdict.difference, verdict.low, verdict.high, verdict.state)
    every = [float((one.measure(one.joined) - one.measure(one.alone)).mean()) for one in some]
    deltas = [delta for delta in every if math.isfinite(delta)]
    low, high = (metrics.paired_interval(deltas) if deltas else None) or (math.nan, math.nan)
    return SubgroupDelta(name, rows, float(np.mean(deltas)) if deltas else math.nan, low, high, None)


def _comparisons(pairs: Sequence[tuple[Record, Record]], subgroup: int, folder: Path | None) -> list[Comparison]:
    """One for all seeds that test the same clients, where the subgroup has any rows.

    ``pairs``: a method's runs and Local's.
    """
    same: dict[str, list[tuple[Record, Record]]] = {}
    for pair in pairs:
        same.setdefault(same_clients(pair[0]), []).append(pair)
    found = []
    for some in same.values():
        rows: list[tuple[np.ndarray | None, ...]] = []
        folds = [fold_of(joined) for joined, _ in some]
        for (joined, alone), fold in zip(some, folds, strict=True):
            here = [packing.unpack_codes(c["subgroups"], c["n_test"]) == subgroup for c in joined["clients"]]
            whose = np.repeat(np.arange(len(here)), [own.sum() for own in here])
            known = (partial(rows_of, joined, folder=folder), partial(rows_of, alone, folder=folder))
            of_rows = (_here(of, here) for of in (*known, partial(groups_of, joined)))
            rows.append((*of_rows, whose, np.full(len(whose), fold)))
        method, local, groups, clients, of = (end_to_end(by_seed, folds) for by_seed in zip(*rows, strict=True))
        if clients[0] is None or not len(clients[0]):
            continue
        tested = of[0] if len(set(folds)) > 1 else None
        one = compared(method, local, some[0][0]["metric"], groups[0], clients[0], tested)
        found += [one] if one is not None else []
    return found


def _here(of: Callable[[int], np.ndarray | None], here: Sequence[np.ndarray]) -> np.ndarray | None:
    """What is known ``of`` each client's test rows, of the chosen rows of all of them."""
    parts = [rows[own] for k, own in enumerate(here) if (rows := of(k)) is not None]
    return np.concatenate(parts) if len(parts) == len(here) else None
