"""Progress of a study in plain lines: what has ended, how much is left, and how long that takes. Needs no rich."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from fedekd.runs.eta import Eta
from fedekd.runs.observers import (
    ClientTrained,
    Note,
    Observer,
    RunFailed,
    RunFinished,
    RunsPlanned,
    RunStarted,
    on_test_rows,
    outcome,
    planned,
)
from fedekd.runs.records import Record
from fedekd.units import duration

QUIET_SECONDS = 60.0  # at most, while there is nothing to tell but the time


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Tally(Observer):
    """An observer of runs that may go on at the same time: it counts work, and work alone."""

    def __init__(self, write: Callable[[str], None] = to_stderr) -> None:
        self.write = write
        self.runs = self.ended = 0
        self.eta = Eta()
        self.wrote = time.monotonic()

    def on_runs_planned(self, event: RunsPlanned) -> None:
        self.runs, self.eta.total = len(event.runs), sum(work for *_, work in event.runs)
        self.write_line(planned(self.runs, event.kept))

    def on_run_started(self, event: RunStarted) -> None:
        self.eta.skip(event.work * event.resumed // max(event.rounds, 1))

    def on_client_trained(self, event: ClientTrained) -> None:
        self.eta.advance(event.work)
        if time.monotonic() - self.wrote > QUIET_SECONDS:
            self.write_line(f"{self.ended:,}/{self.runs:,} training")

    def on_run_finished(self, event: RunFinished) -> None:
        if event.cached:
            return
        self.ended += 1
        record = event.record
        alpha = "" if record["alpha"] is None else f" α={record['alpha']:g}"
        self.write_line(
            f"{self.ended:,}/{self.runs:,} {record['dataset']}{alpha} {outcome(record, self.result(record))}"
        )

    def result(self, record: Record) -> str:
        return on_test_rows(record)

    def on_run_failed(self, event: RunFailed) -> None:
        self.ended += 1
        self.eta.total -= event.work
        self.write_line(f"{self.ended:,}/{self.runs:,} FAILED {event.text}")

    def on_note(self, event: Note) -> None:
        self.write_line(event.line)

    def write_line(self, line: str) -> None:
        self.wrote, left = time.monotonic(), self.eta.seconds()
        self.write(line if left is None else f"{line} (about {duration(left)} left)")
