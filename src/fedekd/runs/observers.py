"""Who watches a run: the live display, plain lines, a tracker, or nobody. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from fedekd.runs.records import Record
from fedekd.units import Unit, count, duration

Trust = dict[str, Any]  # mean, std and histogram of one client's trust weights in one round


@dataclass(frozen=True, slots=True)
class RunsPlanned:
    runs: list[tuple[str, int, int]]
    """What is waiting: (label, seed, work). Work is counted in samples times their width, which time goes with."""
    kept: int = 0
    """How many runs the results hold already."""


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run, or a stack of runs, starts or goes on after ``resumed`` rounds."""

    label: str
    seed: int
    work: int
    rounds: int
    resumed: int


@dataclass(frozen=True, slots=True)
class ClientTrained:
    round: int
    """Counts from 0."""
    client: str
    work: int


@dataclass(frozen=True, slots=True)
class RoundMeasured:
    label: str
    seed: int
    round: int
    """Counts from 1."""
    clients: dict[str, float]
    """Each client's test metric."""
    trust: dict[str, Trust] | None
    """By client, where there is a gate."""


@dataclass(frozen=True, slots=True)
class RunFinished:
    record: Record
    cached: bool
    """Whether the results held it already."""


@dataclass(frozen=True, slots=True)
class RunFailed:
    label: str
    seed: int | None
    work: int
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth knowing that stops nothing."""

    line: str


Event = RunsPlanned | RunStarted | ClientTrained | RoundMeasured | RunFinished | RunFailed | Note

HANDLERS = {kind: "on" + re.sub("([A-Z])", r"_\1", kind.__name__).lower() for kind in get_args(Event)}


class Observer:
    """Passes each event to its own method ``on_run_started`` and so on; what it has no method for, it ignores."""

    def observe(self, event: Event) -> None:
        handler = getattr(self, HANDLERS[type(event)], None)
        if handler is not None:
            handler(event)


class ObserverGroup(Observer):
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers

    def observe(self, event: Event) -> None:
        for each in self.observers:
            each.observe(event)


def is_of(running: tuple[str, int], label: str, seed: int | None) -> bool:
    """Whether what is running is this run; a stack is known by its first one, as "fedekd and 5 more"."""
    return (re.sub(r" and \d+ more$", "", running[0]), running[1]) == (label, seed)


def planned(runs: int, kept: int) -> str:
    """What there is to do, in one line, as every display tells it."""
    if not runs:
        return f"nothing to train: {count(kept, 'run')} kept from earlier"
    return f"training {count(runs, 'run')}" + (f"; {kept:,} kept from earlier" if kept else "")


def outcome(record: Record, result: str | None = None) -> str:
    """A finished run in one line, as every display tells it; ``result``: in place of that on its test rows."""
    result = on_test_rows(record) if result is None else result
    return f"{record['label']}, seed {record['seed']}: {result}, {duration(record['seconds'])}"


def on_test_rows(record: Record) -> str:
    unit = Unit.of([record])
    if record["method"] == "local":
        return f"mean {unit.name} {unit.value(record['mean'])}{' %' if unit.percent else ''}"
    return f"Avg Δ {unit.delta(record['avg_delta'])}{' points' if unit.percent else ''}"
