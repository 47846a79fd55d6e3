"""What a worker does with its part of many runs, wherever it works."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedekd.files import writing
from fedekd.runs.execution import NOTHING, Artifacts, Failure, Outcome, Started, execute
from fedekd.runs.observers import Observer
from fedekd.runs.plan import Cell, PlannedRun, RunSpec
from fedekd.runs.store import Store


@dataclass(frozen=True)
class WorkItem:
    """What a worker is given: cells of one dataset, and which of their runs to do."""

    cells: tuple[Cell, ...]
    runs: tuple[RunSpec, ...]
    planned: tuple[PlannedRun, ...] = ()  # every run of the cells, for a worker in the process that planned them
    patient: bool = False  # wait for another process that is at the same cells, instead of passing them by
    part: str = ""  # which part of its cells it is, where they have several items
    artifacts: Artifacts = NOTHING
    strict: bool = False  # the first error ends it, and reaches whoever gave the item

    @property
    def needs(self) -> set[str]:
        """Runs of other items that must have ended before this one begins."""
        return {run.local_key for run in self.runs} - {run.key for run in self.runs}

    def after(self, outcome: Outcome) -> WorkItem:
        """What is left when ``outcome`` has come."""
        if isinstance(outcome, Started):
            return self
        return self.without({outcome.key if isinstance(outcome, Failure) else outcome["key"]})

    def without(self, keys: set[str]) -> WorkItem:
        return replace(self, runs=tuple(r for r in self.runs if r.key not in keys))

    def failed(self, error: Exception | str) -> list[Failure]:
        return [Failure.of(run, error) for run in self.runs]


class Busy(Exception):
    """Another process is at the same cells."""


def work(item: WorkItem, store: Store, observer: Observer) -> Iterator[Outcome]:
    """A record or a failure for each run of the item."""
    with claimed(store.folder, item):
        runs = item.planned or [r for cell in item.cells for r in cell.runs()]
        wanted, found = {r.key: r for r in item.runs}, {r.key for r in runs}
        for key in wanted.keys() - found:
            yield Failure.of(wanted[key], "the data or the code here differ from those the study was planned with")
        here, engine = [key for key in wanted if key in found], item.cells[0].first.engine
        yield from execute(runs, here, store, observer, engine, item.artifacts, item.strict)


@contextlib.contextmanager
def claimed(folder: Path, item: WorkItem) -> Iterator[None]:
    """Hold the item's cells against other processes on the same folder; the system lets go when a process dies."""
    name = "\n".join([*(cell.name for cell in item.cells), *([item.part] if item.part else [])])
    place = int(hashlib.sha256(name.encode()).hexdigest()[:12], 16)
    with writing(folder):
        file = open(folder / ".claims", "ab")  # noqa: SIM115 (what goes wrong while it is held is not its)
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if item.patient else fcntl.LOCK_NB), 1, place)
        except (BlockingIOError, PermissionError):
            raise Busy from None
        yield


def in_process(items: Sequence[WorkItem], store: Store, observer: Observer) -> Iterator[Outcome]:
    """One item after another in this process."""
    waiting = deque(items)
    while waiting:
        item = waiting.popleft()
        try:
            for outcome in work(item, store, observer):
                item = item.after(outcome)
                yield outcome
        except Busy:
            waiting.append(replace(item, patient=True))
        except Exception as error:
            yield from item.failed(error)
