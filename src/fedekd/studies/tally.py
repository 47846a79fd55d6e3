"""Progress of a study in plain lines: what has ended, how much is left, and how long that takes. Needs no rich."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from fedekd.runs.eta import QUIET_SECONDS, WorkCounter
from fedekd.runs.observers import (
    ClientTrained,
    Note,
    RunFailed,
    RunFinished,
    RunsPlanned,
    on_test_rows,
    outcome,
    planned,
)
from fedekd.runs.records import Record


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Tally(WorkCounter):
    """An observer of runs that may go on at the same time: it counts work, and work alone."""

    def __init__(self, write: Callable[[str], None] = to_stderr) -> None:
        super().__init__()
        self.write, self.ended = write, 0
        self.wrote = time.monotonic()

    def on_runs_planned(self, event: RunsPlanned) -> None:
        super().on_runs_planned(event)
        self.write_line(planned(self.runs, event.kept))

    def on_client_trained(self, event: ClientTrained) -> None:
        super().on_client_trained(event)
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
        super().on_run_failed(event)
        self.ended += 1
        self.write_line(f"{self.ended:,}/{self.runs:,} FAILED {event.text}")

    def on_note(self, event: Note) -> None:
        self.write_line(event.line)

    def write_line(self, line: str) -> None:
        self.wrote, left = time.monotonic(), self.left()
        self.write(f"{line} ({left})" if left else line)
