"""Records of several seeds as one row per method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from fedekd.metrics import OverSeeds, over_seeds, paired_interval
from fedekd.runs.records import Record
from fedekd.runs.row_results import mean_interval
from fedekd.settings import NEWER

SHARED = ("rounds", "epochs", "batch_size", "lr", "optimizer", "weighting", "precision", *NEWER)


class AverageDelta(OverSeeds):
    interval: tuple[float, float] | None
    """Paired over seeds, 95 %."""
    over_rows: tuple[float, float] | None
    """Of a single seed, 95 %: over its test rows, hence about these trained models and not about the method."""


class SummaryRow(TypedDict):
    dataset: str
    alpha: float | None
    method: str
    label: str
    metric: str
    seeds: list[int]
    avg_delta: AverageDelta
    worst_delta: OverSeeds
    tail_delta: OverSeeds
    mean: OverSeeds
    worst: OverSeeds
    clients: int
    bytes_up: float
    bytes_down: float
    seconds: float


def shared_settings(record: Record) -> tuple[Any, ...]:
    """What runs must share to stand in one table; the device is not among it."""
    return tuple(named_settings(record).values())


def named_settings(record: Record) -> dict[str, Any]:
    """The same by what they are called on the command line, where they have a name there."""
    params, partition = {**NEWER, **record["params"]}, record["partition"]
    public = partition.get("public", {})
    return {name: params.get(name) for name in SHARED} | {
        "private": record.get("private") or models_told(record),
        "proxy": record.get("proxy"),
        "partition": partition["kind"],
        "clients": partition["clients"],
        "fraction": partition.get("fraction"),
        "group": partition.get("group"),
        "subgroups": partition.get("subgroups", {}).get("column"),
        "split_seed": partition["seed"] if partition.get("fixed") else None,
        "folds": partition.get("folds"),
        "public": public.get("share"),
        "public file": public.get("file"),
    }


def models_told(record: Record) -> str | None:
    """The private models that the clients' rows name; None where all have the default one."""
    return in_one([client["model"] for client in record["clients"] if "model" in client]) or None


def in_one(titles: Sequence[str]) -> str:
    """What all clients have, or what each has."""
    return ", ".join(titles[:1] if len(set(titles)) == 1 else titles)


def usual_settings(records: Sequence[Record]) -> list[Record]:
    """Each dataset's runs with its most frequent settings, of equally frequent ones the latest, every run once."""
    unique = list({record["key"]: record for record in records}.values())
    counts: dict[str, Counter[tuple[Any, ...]]] = {}
    for record in reversed(unique):
        counts.setdefault(record["dataset"], Counter())[shared_settings(record)] += 1
    usual = {dataset: counter.most_common(1)[0][0] for dataset, counter in counts.items()}
    return [record for record in unique if shared_settings(record) == usual[record["dataset"]]]


def as_shown(records: Sequence[Record]) -> list[Record]:
    """Methods as they are. One that a dataset and alpha have only with changed parameters is shown with those: it would
    be missing otherwise."""
    plain = {(r["method"], r["dataset"], r["alpha"]) for r in records if r["label"] == r["method"]}
    return [r for r in records if r["label"] == r["method"] or (r["method"], r["dataset"], r["alpha"]) not in plain]


def in_order(records: Sequence[Record]) -> list[Record]:
    """As they were begun, each method's controls right after it: runs side by side end in any order."""
    bases = list(dict.fromkeys(record["method"].split("@")[0] for record in records))
    labels = list(dict.fromkeys(record["label"] for record in records))

    def place(record: Record) -> tuple[bool, int, bool, int, int]:
        base = record["method"].split("@")[0]
        own = labels.index(record["label"])
        return base != "local", bases.index(base), "@" in record["method"], own, record["seed"]

    return sorted(records, key=place)


def grouped(records: Sequence[Record], *keys: Literal["dataset", "alpha", "seed", "label"]) -> list[list[Record]]:
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in keys), []).append(record)
    return list(groups.values())


def aggregate(records: Sequence[Record], folder: Path | None = None) -> list[SummaryRow]:
    """Records of several seeds as one row per dataset, alpha, method and settings, in order of appearance.

    ``folder`` is where they lie: without it ``over_rows`` is known of accuracy and RMSE alone.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        same = (record["dataset"], record["alpha"], record["label"], *shared_settings(record))
        groups.setdefault(same, []).append(record)
    alone = {_cell(record): record for record in records if record["method"] == "local"}
    return [_row(group, alone.get(_cell(group[0])), folder) for group in groups.values()]


def _cell(record: Record) -> tuple[Any, ...]:
    return (record["dataset"], record["alpha"], record["seed"], *shared_settings(record))


def _row(group: Sequence[Record], alone: Record | None, folder: Path | None) -> SummaryRow:
    first = group[0]
    average = [r["avg_delta"] for r in group]
    single = len(group) == 1 and first is not alone
    over_rows = mean_interval(first, alone, folder) if single and alone is not None else None
    return {
        "dataset": first["dataset"],
        "alpha": first["alpha"],
        "method": first["method"],
        "label": first["label"],
        "metric": first["metric"],
        "seeds": [r["seed"] for r in group],
        "avg_delta": {**over_seeds(average), "interval": paired_interval(average), "over_rows": over_rows},
        "worst_delta": over_seeds([r["worst_delta"] for r in group]),
        "tail_delta": over_seeds([r["tail_delta"] for r in group]),
        "mean": over_seeds([r["mean"] for r in group]),
        "worst": over_seeds([r["worst"] for r in group]),
        "clients": sum(len(r["clients"]) for r in group),
        "bytes_up": float(np.mean([r["bytes_up"] for r in group])),
        "bytes_down": float(np.mean([r["bytes_down"] for r in group])),
        "seconds": float(np.mean([r["seconds"] for r in group])),
    }
