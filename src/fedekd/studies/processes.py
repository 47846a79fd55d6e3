"""Work items over processes of one thread each, which on a CPU beat one process of many threads."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from fedekd.runs.execution import Failure, Outcome, Started, in_words
from fedekd.runs.observers import Event, Observer
from fedekd.runs.store import Store
from fedekd.studies.worker import Busy, WorkItem, work


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def over_processes(items: Sequence[WorkItem], store: Store, observer: Observer, workers: int) -> Iterator[Outcome]:
    """A process that dies takes down the run it was at, nothing else."""
    waiting: deque[WorkItem] = deque(items)
    crew: dict[Any, Worker] = {}
    try:
        while waiting or crew:
            while waiting and len(crew) < workers:
                worker = Worker(store.folder, waiting.popleft())
                crew[worker.pipe] = worker
            for pipe in wait(list(crew)):
                worker = crew[pipe]
                try:
                    what, value = worker.pipe.recv()
                except (EOFError, OSError):
                    del crew[pipe]
                    yield from worker.bury(waiting)
                    continue
                if what == "event":
                    observer.observe(value)
                elif what == "outcome":
                    worker.hear(value)
                    yield value
                else:
                    if what == "busy":
                        waiting.append(replace(worker.item, patient=True))
                    elif what == "broken":
                        yield from worker.item.failed(value)
                    if waiting:
                        worker.give(waiting.popleft())
                    else:
                        del crew[pipe]
                        worker.pipe.close()
                        worker.process.join()
    finally:
        for worker in crew.values():
            worker.process.terminate()  # it holds nothing that is not on the disk but the round in flight
        for worker in crew.values():
            worker.process.join()


class Worker:
    """A process and what is left of its work item."""

    def __init__(self, folder: Path, item: WorkItem) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, folder), daemon=True)
        self.process.start()
        theirs.close()
        self.give(item)

    def give(self, item: WorkItem) -> None:
        self.item, self.started = item, tuple[str, ...]()
        with contextlib.suppress(OSError):  # that it is dead is noticed when it is listened to
            self.pipe.send(item)

    def hear(self, outcome: Outcome) -> None:
        self.item = self.item.after(outcome)
        if isinstance(outcome, Started):
            self.started = outcome.keys

    def bury(self, waiting: deque[WorkItem]) -> Iterator[Failure]:
        """The run that the process died of failed; the rest of its item goes to another."""
        self.process.join()
        rest = self.item.without(set(self.started))
        guilty = self.item.without({r.key for r in rest.runs}) if self.started else self.item
        yield from guilty.failed(f"its process ended with status {self.process.exitcode} (out of memory?)")
        if self.started and rest.runs:
            waiting.append(rest)


def serve(pipe: Connection, folder: Path) -> None:
    """A worker's life: work items in, outcomes and events out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    torch.set_num_threads(1)
    store, observer = Store(folder), PipeObserver(pipe)
    with contextlib.suppress(EOFError, OSError):
        while True:
            item: WorkItem = pipe.recv()
            try:
                for outcome in work(item, store, observer):
                    pipe.send(("outcome", outcome))
                pipe.send(("done", None))
            except Busy:
                pipe.send(("busy", None))
            except Exception as error:
                pipe.send(("broken", in_words(error)))


class PipeObserver(Observer):
    """Passes on what it sees to another process."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def observe(self, event: Event) -> None:
        self.pipe.send(("event", event))
