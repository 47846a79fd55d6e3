"""What a client can do alone: the menu among a table's records, and the best of it for each client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedekd.runs.aggregate import shared_settings
from fedekd.runs.choosing import Option, best_on_validation, choice_of, option
from fedekd.runs.records import Record
from fedekd.settings import ChosenBy
from fedekd.units import describe

ALONE = "@alone"  # after a method's name: its twin that exchanges nothing
Runs = Mapping[str, Mapping[int, Record]]  # of one table, by label and seed


def is_menu(method: str) -> bool:
    """Whether a client could do this by itself; a method, or the label of a run."""
    name = method.partition(" (")[0]
    return name == "local" or name.startswith("local-smooth") or name.endswith(ALONE)


def needs_federation(record: Record) -> bool:
    """Whether this is a method to join with. What is not is a control: a twin, or something done alone."""
    sent = record["bytes_up"] + record["bytes_down"] > 0
    return sent and "@" not in record["method"] and not is_menu(record["method"])


def twin_label(record: Record) -> str:
    """What the isolated twin of a run is called."""
    return str(record["label"]).replace(record["method"], record["method"] + ALONE, 1)


def alone_run(records: Sequence[Record], position: int, seed: int, folder: Path | None = None) -> Record | None:
    """Of the records of one table, that of the best that a client can do alone; None where there is no Local."""
    (runs,) = by_table(records)
    there = [runs[label][seed] for label in menu_of(runs) if seed in runs[label]]
    best = best_alone(there, position, folder, choice_of(records))
    return runs[best.label][seed] if best else None


def by_table(records: Sequence[Record]) -> list[Runs]:
    """One for each dataset, alpha and settings."""
    tables: dict[tuple[Any, ...], dict[str, dict[int, Record]]] = {}
    for record in records:
        table = (record["dataset"], record["alpha"], *shared_settings(record))
        tables.setdefault(table, {}).setdefault(record["label"], {})[record["seed"]] = record
    return list(tables.values())


def plain_local(runs: Runs) -> Mapping[int, Record]:
    """Local's runs by seed; nothing where there are none."""
    return next((some for some in runs.values() if next(iter(some.values()))["method"] == "local"), {})


def twins_of(runs: Runs) -> dict[str, str]:
    """Of each method that needs a federation, what its twin is called."""
    first = {label: next(iter(some.values())) for label, some in runs.items()}
    return {label: twin_label(record) for label, record in first.items() if needs_federation(record)}


def menu_of(runs: Runs) -> tuple[str, ...]:
    """What a client can do alone, plain Local first, then the least smoothed, then twins by name.

    Not in the order of the records, which differs from run to run.
    """
    first = {label: next(iter(some.values())) for label, some in runs.items()}
    plain = [label for label, one in first.items() if one["method"] == "local"]
    smooth = [x for x, one in first.items() if is_menu(one["method"]) and "@" not in one["method"] and x not in plain]
    smooth.sort(key=lambda label: (first[label]["params"].get("weight", math.inf), label))
    return (*plain[:1], *smooth, *sorted({twin for twin in twins_of(runs).values() if twin in runs}))


def best_alone(there: Sequence[Record], position: int, folder: Path | None, by: ChosenBy) -> Option | None:
    """``there``: a seed's runs of the menu."""
    if not there or there[0]["method"] != "local":
        return None
    options = [option(one, position, folder) for one in there]
    row, metric = there[0]["clients"][position], there[0]["metric"]
    return best_on_validation(options, row["n_val"], describe(metric).higher_is_better, by)
