"""Work items over processes of one thread each, which on a CPU beat one process of many threads."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from fedekd.errors import FedekdError, in_words
from fedekd.runs.execution import Failure, Outcome, Started
from fedekd.runs.observers import Event, Observer
from fedekd.runs.store import Store
from fedekd.runs.worker import Busy, WorkItem, work

LOADED = ("fedekd.runs.processes", "torch.fx.experimental.symbolic_shapes")
"""Modules that a worker has from its first moment; the last is what a dry pass imports, half a second."""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare() -> None:
    """Begin to load torch in the process that all workers are forked from, while this one does something else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LOADED))
    resource_tracker.ensure_running()  # on its own it would lift the mask below
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # for workers too: the parent decides
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def over_processes(items: Sequence[WorkItem], store: Store, observer: Observer, workers: int) -> Generator[Outcome]:
    """A process that dies takes down the run it was at, nothing else."""
    _check_sendable(items)
    prepare()
    waiting: deque[WorkItem] = deque(items)
    ended = set(store.among(set().union(*(item.needs for item in items))))
    busy: dict[Any, Worker] = {}
    idle: list[Worker] = []
    try:
        while waiting or busy:
            while len(busy) < workers and (item := _next(waiting, ended, stuck=not busy)):
                worker = idle.pop() if idle else Worker(store.folder)
                worker.give(item)
                busy[worker.pipe] = worker
            for pipe in wait(list(busy)):
                worker = busy[pipe]
                try:
                    what, value = worker.pipe.recv()
                except (EOFError, OSError):
                    del busy[pipe]
                    for failure in worker.bury(waiting):
                        ended.add(failure.key)
                        yield failure
                    continue
                if what == "event":
                    observer.observe(value)
                elif what == "outcome":
                    worker.hear(value)
                    if not isinstance(value, Started):
                        ended.add(value.key if isinstance(value, Failure) else value["key"])
                    yield value
                elif what == "raised":
                    raise value
                else:
                    if what == "busy":
                        waiting.append(replace(worker.item, patient=True))
                    elif what == "broken":
                        for failure in worker.item.failed(value):
                            ended.add(failure.key)
                            yield failure
                    del busy[pipe]
                    idle.append(worker)
    finally:
        for worker in (*busy.values(), *idle):
            worker.process.terminate()  # it holds nothing that is not on the disk but the round in flight
        for worker in (*busy.values(), *idle):
            worker.process.join()


def _next(waiting: deque[WorkItem], ended: Collection[str], stuck: bool) -> WorkItem | None:
    """The first item that needs no run that has not ended; any, if nothing else will ever end."""
    for item in waiting:
        if stuck or item.needs <= set(ended):
            waiting.remove(item)
            return item
    return None


def _check_sendable(items: Sequence[WorkItem]) -> None:
    for item in items:
        try:
            pickle.dumps(item)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise FedekdError(f"a run cannot be sent to another process ({error}); use workers=1") from None


class Worker:
    """A process and what is left of its work item."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        given = (theirs, folder, dict(os.environ))
        self.process = context.Process(target=serve, args=given, daemon=True)
        self.process.start()
        theirs.close()

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


def serve(pipe: Connection, folder: Path, environment: Mapping[str, str]) -> None:
    """A worker's life: work items in, outcomes and events out, until the pipe closes."""
    os.environ.clear()  # it is of the time when the first worker was forked
    os.environ.update(environment)
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
                pipe.send(("raised", _sendable(error)) if item.strict else ("broken", in_words(error)))


def _sendable(error: Exception) -> Exception:
    """The error with its traceback as a note, or a plain one in its place if it cannot be pickled."""
    error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(in_words(error))
    return error


class PipeObserver(Observer):
    """Passes on what it sees to another process."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def observe(self, event: Event) -> None:
        self.pipe.send(("event", event))
