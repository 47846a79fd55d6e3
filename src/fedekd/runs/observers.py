"""Who watches a run: the live display, plain lines, a tracker, or nobody. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fedekd.runs.records import Record

Trust = dict[str, Any]  # mean, std and histogram of one client's trust weights in one round


class Observer(Protocol):
    def plan(self, jobs: list[tuple[str, int, int]]) -> None:
        """What is waiting: (label, seed, samples to train on)."""

    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None:
        """A run, or a stack of runs, starts or goes on after ``resumed`` rounds."""

    def advance(self, round: int, client: str, samples: int) -> None:
        """A client has been trained in a round (which counts from 0)."""

    def measured(
        self, label: str, seed: int, round: int, clients: dict[str, float], trust: dict[str, Trust] | None
    ) -> None:
        """A round (which counts from 1) is over: each client's test metric, and its trust where there is a gate."""

    def finish(self, record: Record, cached: bool) -> None:
        """A run has its record, which the results held already if it is ``cached``."""

    def note(self, line: str) -> None:
        """Something worth knowing that stops nothing."""


class Nobody:
    def plan(self, jobs: list[tuple[str, int, int]]) -> None: ...
    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None: ...
    def advance(self, round: int, client: str, samples: int) -> None: ...
    def measured(
        self, label: str, seed: int, round: int, clients: dict[str, float], trust: dict[str, Trust] | None
    ) -> None: ...
    def finish(self, record: Record, cached: bool) -> None: ...
    def note(self, line: str) -> None: ...


class Together:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers

    def plan(self, jobs: list[tuple[str, int, int]]) -> None:
        for each in self.observers:
            each.plan(jobs)

    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None:
        for each in self.observers:
            each.begin(label, seed, work, rounds, resumed)

    def advance(self, round: int, client: str, samples: int) -> None:
        for each in self.observers:
            each.advance(round, client, samples)

    def measured(
        self, label: str, seed: int, round: int, clients: dict[str, float], trust: dict[str, Trust] | None
    ) -> None:
        for each in self.observers:
            each.measured(label, seed, round, clients, trust)

    def finish(self, record: Record, cached: bool) -> None:
        for each in self.observers:
            each.finish(record, cached)

    def note(self, line: str) -> None:
        for each in self.observers:
            each.note(line)
