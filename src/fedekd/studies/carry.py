"""Carrying runs out, whatever happens to some of them: what a worker does, wherever it works."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fedekd.errors import FedekdError
from fedekd.files import writing
from fedekd.runs.execution import in_groups, run_group, stack_key
from fedekd.runs.observers import Observer, Trust
from fedekd.runs.plan import Run
from fedekd.runs.store import Record, Store
from fedekd.studies.cells import Cell, Sketch, loaded, width

MODELS = 540  # in one stack: enough to fill a GPU, few enough that records come steadily


@dataclass(frozen=True)
class Failure:
    """A run that ended in an error, or a whole cell or dataset; the next call of the study tries it again."""

    key: str
    label: str
    dataset: str
    alpha: float | None
    seed: int | None
    error: str
    time: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    @classmethod
    def of(cls, run: Sketch, error: Exception | str) -> Failure:
        return cls(run.key, run.label, run.dataset, run.alpha, run.seed, in_words(error))

    def text(self) -> str:
        alpha = "" if self.alpha is None else f" α={self.alpha:g}"
        seed = "" if self.seed is None else f" seed {self.seed}"
        return f"{self.dataset}{alpha}{seed} {self.label}: {self.error}"


def in_words(error: Exception | str) -> str:
    """An error in one line; one that is not the user's keeps its kind."""
    own = isinstance(error, (FedekdError, str))
    return " ".join((str(error) if own else f"{type(error).__name__}: {error}").split())


@dataclass(frozen=True)
class Started:
    """These runs are being trained now: what is to blame if their process dies."""

    keys: tuple[str, ...]


Item = Record | Failure | Started


@dataclass(frozen=True)
class Task:
    """What a worker is given: cells of one dataset, and which of their runs to do."""

    cells: tuple[Cell, ...]
    runs: tuple[Sketch, ...]
    patient: bool = False  # wait for another process that is at the same cells, instead of passing them by

    def after(self, item: Item) -> Task:
        """What is left when ``item`` has come."""
        if isinstance(item, Started):
            return self
        return self.without({item.key if isinstance(item, Failure) else item["key"]})

    def without(self, keys: set[str]) -> Task:
        return replace(self, runs=tuple(r for r in self.runs if r.key not in keys))

    def failed(self, error: Exception | str) -> list[Failure]:
        return [Failure.of(run, error) for run in self.runs]


class Busy(Exception):
    """Another process is at the same cells."""


def carry_out(task: Task, store: Store, observer: Observer) -> Iterator[Item]:
    """A record or a failure for each run of the task, Local first. Runs of one stack come together."""
    with claimed(store.folder, task):
        wanted, runs = {r.key: r for r in task.runs}, [r for cell in task.cells for r in cell.runs()]
        keys = {r.key for r in runs}
        known = {record["key"]: record for record in store.records() if record["key"] in keys}
        yield from (known[key] for key in wanted if key in known)  # what another process has done meanwhile
        for key in wanted.keys() - keys:
            yield Failure.of(wanted[key], "the data or the code here differ from those the study was planned with")
        attempt = Attempt(wanted, known, store, observer, task.cells[0])
        for group in in_groups(runs, attempt.engine):  # of all runs, so that a resumed stack is the same stack
            most = max(1, MODELS // len(group[0].job.federation.clients))
            for start in range(0, len(group), most):
                whole = group[start : start + most]
                stack = [r for r in whole if r.key in wanted and r.key not in known]
                if any(r.key in known for r in whole):  # no longer the stack that may have left a checkpoint
                    store.discard(stack_key(whole))
                yield from attempt(stack)


class Attempt:
    """Trains stacks of runs; one that fails is halved until the runs that fail stand alone."""

    def __init__(
        self, wanted: dict[str, Sketch], known: dict[str, Record], store: Store, observer: Observer, cell: Cell
    ) -> None:
        self.wanted, self.known, self.store, self.engine = wanted, known, store, cell.first.engine
        self.observer = Weighted(observer, width(loaded(*cell.source)[0]))

    def __call__(self, stack: Sequence[Run]) -> Iterator[Item]:
        coming = self.known.keys() | {r.key for r in stack}
        orphans = [r for r in stack if r.local_key not in coming]
        stack = [r for r in stack if r.local_key in coming]
        yield from (Failure.of(self.wanted[r.key], "Local failed, and every Δ is measured against it") for r in orphans)
        if not stack:
            return
        yield Started(tuple(r.key for r in stack))
        try:
            for record in run_group(stack, self.store, self.observer, self.known, self.engine):
                self.known[record["key"]] = record
                yield record
        except Exception as error:
            if len(stack) == 1:
                yield Failure.of(self.wanted[stack[0].key], error)
                return
        rest = [r for r in stack if r.key not in self.known]
        if rest:
            self.store.discard(stack_key(stack))
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            half = (len(rest) + 1) // 2
            yield from self(rest[:half])
            yield from self(rest[half:])


@contextlib.contextmanager
def claimed(folder: Path, task: Task) -> Iterator[None]:
    """Hold the task's cells against other processes on the same folder; the system lets go when a process dies."""
    name = "\n".join(cell.name for cell in task.cells)
    place = int(hashlib.sha256(name.encode()).hexdigest()[:12], 16)
    with writing(folder):
        file = open(folder / ".claims", "ab")  # noqa: SIM115 (what goes wrong while it is held is not its)
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if task.patient else fcntl.LOCK_NB), 1, place)
        except (BlockingIOError, PermissionError):
            raise Busy from None
        yield


@dataclass
class Weighted:
    """Tells an observer of work by its cost, since one large input takes the time of many small ones."""

    observer: Observer
    weight: int

    def plan(self, jobs: list[tuple[str, int, int]]) -> None: ...

    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None:
        self.observer.begin(label, seed, work * self.weight, rounds, resumed)

    def advance(self, round: int, client: str, samples: int) -> None:
        self.observer.advance(round, client, samples * self.weight)

    def measured(
        self, label: str, seed: int, round: int, clients: dict[str, float], trust: dict[str, Trust] | None
    ) -> None:
        self.observer.measured(label, seed, round, clients, trust)

    def finish(self, record: Record, cached: bool) -> None: ...

    def note(self, line: str) -> None:
        self.observer.note(line)


def here(tasks: Sequence[Task], store: Store, observer: Observer) -> Iterator[Item]:
    """One task after another in this process."""
    waiting = deque(tasks)
    while waiting:
        task = waiting.popleft()
        try:
            for item in carry_out(task, store, observer):
                task = task.after(item)
                yield item
        except Busy:
            waiting.append(replace(task, patient=True))
        except Exception as error:
            yield from task.failed(error)
