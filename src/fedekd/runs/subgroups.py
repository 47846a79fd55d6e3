"""Δ by subgroup: a method against Local on the test rows of women and men, of young and old, over all clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedekd import metrics, scores, verdicts
from fedekd.runs import answers, packing
from fedekd.runs.aggregate import shared_settings
from fedekd.runs.records import Record
from fedekd.units import METRICS, Unit
from fedekd.verdicts import Comparison, Verdict

MEASURES = {"accuracy": verdicts.share, "rmse": verdicts.root_mean_square}  # of what a record holds of its rows


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
    column: str
    label: str
    unit: Unit
    found: tuple[SubgroupDelta, ...]

    @property
    def worst(self) -> SubgroupDelta | None:
        known = [one for one in self.found if math.isfinite(one.delta)]
        return max(known, key=lambda one: self.unit.harm(one.delta), default=None)

    def text(self) -> str:
        unit = self.unit
        lines = [("test rows of", "rows", "Δ", "95 %", "")]
        for one in self.found:
            interval = f"{unit.delta(one.low)} to {unit.delta(one.high)}" if math.isfinite(one.low) else "unknown"
            delta = unit.delta(one.delta) if math.isfinite(one.delta) else "undefined"
            lines.append((f"{self.column}={one.name}", str(one.rows), delta, interval, one.state or ""))
        widths = [max(len(line[k]) for line in lines) for k in range(5)]
        texts = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        points = " in points" if unit.percent else ""
        title = f"{self.label} against Local by {self.column}: Δ of {unit.name}{points}, over all clients"
        worst = self.worst
        told = f"the worst: {self.column}={worst.name}, Δ {unit.delta(worst.delta)}" if worst else "Δ is not defined"
        return "\n".join([title, *texts, told])


def by_subgroup(records: Sequence[Record], folder: str | Path | None = None) -> list[MethodSubgroups]:
    """Every method of these records but Local, where they hold subgroups.

    Holm's method is over what one table shows: all methods and subgroups of one dataset, alpha and settings. ``folder``
    is where the records lie, which is needed for metrics other than accuracy and RMSE.
    """
    tables: dict[tuple[Any, ...], dict[str, dict[int, Record]]] = {}
    for record in records:
        if "subgroups" in record["partition"]:
            table = (record["dataset"], record["alpha"], *shared_settings(record))
            tables.setdefault(table, {}).setdefault(record["label"], {})[record["seed"]] = record
    return [method for table in tables.values() for method in _table(table, None if folder is None else Path(folder))]


def _table(runs: Mapping[str, Mapping[int, Record]], folder: Path | None) -> list[MethodSubgroups]:
    plain = next((some for some in runs.values() if next(iter(some.values()))["method"] == "local"), {})
    units: list[tuple[str, str, list[Comparison]]] = []
    for label, some in runs.items():
        pairs = [(record, plain[seed]) for seed, record in some.items() if seed in plain and plain is not some]
        if pairs:
            names = pairs[0][0]["partition"]["subgroups"]["names"]
            units += [(label, name, _comparisons(pairs, k, folder)) for k, name in enumerate(names)]
    judged = iter(verdicts.judge([some[0] for _, _, some in units if len(some) == 1]))
    found: dict[str, list[SubgroupDelta]] = {}
    for label, name, compared in units:
        one = _delta(name, compared, next(judged) if len(compared) == 1 else None)
        found.setdefault(label, []).append(one)
    every = [record for some in runs.values() for record in some.values()]
    column = every[0]["partition"]["subgroups"]["column"]
    return [MethodSubgroups(column, label, Unit.of(every), tuple(some)) for label, some in found.items()]


def _delta(name: str, some: Sequence[Comparison], verdict: Verdict | None) -> SubgroupDelta:
    rows = round(float(np.mean([one.joined.shape[1] for one in some]))) if some else 0
    if verdict is not None:
        return SubgroupDelta(name, rows, verdict.difference, verdict.low, verdict.high, verdict.state)
    deltas = [float((one.measure(one.joined) - one.measure(one.alone)).mean()) for one in some]
    low, high = (metrics.paired_interval(deltas) if deltas else None) or (math.nan, math.nan)
    return SubgroupDelta(name, rows, float(np.mean(deltas)) if deltas else math.nan, low, high, None)


def _comparisons(pairs: Sequence[tuple[Record, Record]], subgroup: int, folder: Path | None) -> list[Comparison]:
    """One for all seeds that share their test rows, where the subgroup has any.

    ``pairs``: a method's runs and Local's.
    """
    same: dict[str, list[tuple[Record, Record]]] = {}
    for pair in pairs:
        same.setdefault(pair[0]["partition"]["fingerprint"], []).append(pair)
    found = []
    for some in same.values():
        first, metric = some[0][0], some[0][0]["metric"]
        here = [_codes(client, "subgroups") == subgroup for client in first["clients"]]
        joined, alone = ([_rows(pair[k], here, folder) for pair in some] for k in (0, 1))
        if any(rows is None or not len(rows) for rows in (*joined, *alone)):
            continue
        measure = MEASURES.get(metric) or scores.SCORES[metric].measure
        better, groups = METRICS[metric].higher_is_better, _groups(first, here)
        found.append(Comparison(np.stack(joined), np.stack(alone), measure, better, groups))  # type: ignore[arg-type]
    return found


def _rows(record: Record, here: Sequence[np.ndarray], folder: Path | None) -> np.ndarray | None:
    """What a run's models made of the chosen test rows, client by client."""
    parts = []
    for position, (client, chosen) in enumerate(zip(record["clients"], here, strict=True)):
        if "rows" in client:
            own: np.ndarray | None = packing.unpack(client["rows"]["last"], client["n_test"], record["metric"])
        else:
            own = answers.read(folder, record["key"], position) if folder else None
        if own is None:
            return None
        parts.append(own[chosen])
    return np.concatenate(parts)


def _codes(client: Any, what: str) -> np.ndarray:
    return packing.unpack_codes(client[what], client["n_test"])


def _groups(record: Record, here: Sequence[np.ndarray]) -> np.ndarray | None:
    """Numbers of the groups that the chosen rows belong to."""
    if "group" not in record["partition"]:
        return None
    return np.concatenate([_codes(client, "groups")[own] for client, own in zip(record["clients"], here, strict=True)])
