"""How much work there is, how much of it is done, and how long the rest will take. Needs neither torch nor rich."""

from __future__ import annotations

import time

from fedekd.runs.observers import ClientTrained, Observer, RunFailed, RunsPlanned, RunStarted
from fedekd.units import duration

QUIET_SECONDS = 60.0  # at most, between plain lines


class Eta:
    """Counts work and estimates the time left, at the pace since the first of it: what came before was no training."""

    def __init__(self) -> None:
        self.total = self.done = 0
        self._fresh = 0
        self._began: float | None = None

    def skip(self, work: int) -> None:
        """Work that an earlier process did."""
        self.done += work

    def advance(self, work: int) -> None:
        self.done += work
        if self._began is None:
            self._began = time.monotonic()
        else:
            self._fresh += work

    def seconds(self) -> float | None:
        """None before there is a pace, and when nothing is left."""
        rest = self.total - self.done
        if self._began is None or not self._fresh or rest <= 0:
            return None
        return (time.monotonic() - self._began) / self._fresh * rest


class WorkCounter(Observer):
    """Counts the work of runs, also of several at the same time; how that is shown is up to the subclass."""

    def __init__(self) -> None:
        self.runs = 0
        self.eta = Eta()

    def on_runs_planned(self, event: RunsPlanned) -> None:
        self.runs, self.eta.total = len(event.runs), sum(work for *_, work in event.runs)

    def on_run_started(self, event: RunStarted) -> None:
        self.eta.skip(event.work * event.resumed // max(event.rounds, 1))

    def on_client_trained(self, event: ClientTrained) -> None:
        self.eta.advance(event.work)

    def on_run_failed(self, event: RunFailed) -> None:
        self.eta.total -= event.work

    def left(self) -> str:
        """The time left, in words; nothing where it is not known."""
        seconds = self.eta.seconds()
        return "" if seconds is None else f"about {duration(seconds)} left"
