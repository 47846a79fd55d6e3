"""Who watches runs, and several at once. Imports no torch: a display is there before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Trust = dict[str, Any]
"""One client's trust weights in a round: mean, std, and a histogram of 20 counts over 0..1."""


class Observer(Protocol):
    """A live display, plain lines, a tracker, or nobody."""

    def plan(self, jobs: list[tuple[str, int, int]]) -> None: ...  # (label, seed, samples to train on)
    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None: ...
    def advance(self, round: int, client: str, samples: int) -> None: ...
    def measured(
        self, label: str, seed: int, round: int, clients: dict[str, float], trust: dict[str, Trust] | None
    ) -> None: ...  # the test metric after a round, which counts from 1
    def finish(self, record: dict[str, Any], cached: bool) -> None: ...
    def note(self, line: str) -> None: ...


class Nobody:
    def plan(self, jobs: list[tuple[str, int, int]]) -> None: ...
    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None: ...
    def advance(self, round: int, client: str, samples: int) -> None: ...
    def measured(
        self, label: str, seed: int, round: int, clients: dict[str, float], trust: dict[str, Trust] | None
    ) -> None: ...
    def finish(self, record: dict[str, Any], cached: bool) -> None: ...
    def note(self, line: str) -> None: ...


class Together:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = list(observers)

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

    def finish(self, record: dict[str, Any], cached: bool) -> None:
        for each in self.observers:
            each.finish(record, cached)

    def note(self, line: str) -> None:
        for each in self.observers:
            each.note(line)
