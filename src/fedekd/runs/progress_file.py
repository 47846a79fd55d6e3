"""What is running now, in a file that another terminal can read: ``progress.json`` in the results folder.

Imports neither torch nor rich: a study runs without the latter, and who watches needs neither to read the file.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time
from pathlib import Path
from typing import Literal, TypedDict, cast

from fedekd import __version__
from fedekd.errors import FedekdError, in_words
from fedekd.files import write_whole
from fedekd.runs.eta import WorkCounter
from fedekd.runs.observers import (
    ClientTrained,
    Event,
    RoundMeasured,
    RunFailed,
    RunFinished,
    RunsPlanned,
    RunStarted,
    is_of,
)
from fedekd.validation import Finite, validator

EVERY = 1.0  # seconds at least between two writings
STILL = 15.0  # seconds after which the file is written with nothing new in it: a sign of life
SILENT = 60.0  # without a sign of life for so long, a process counts as dead
RECENT = 50  # finished runs that are listed


class RunningRun(TypedDict):
    """A run, or a stack of runs, in training."""

    label: str
    seed: int
    round: int
    rounds: int
    clients: dict[str, Finite | None]
    """Values after the last whole round; None where the metric is not defined."""


class EndedRun(TypedDict):
    """What of a finished run's record is shown; None in place of NaN."""

    dataset: str
    alpha: Finite | None
    label: str
    method: str
    seed: int
    metric: str
    mean: Finite | None
    avg_delta: Finite | None
    worst_delta: Finite | None
    seconds: Finite
    cached: bool


class Progress(TypedDict):
    """Times are seconds since 1970, or how many; ``done`` and ``total`` count work."""

    fedekd: str
    pid: int
    host: str
    state: Literal["running", "done", "interrupted", "failed"]
    error: str | None
    started: Finite
    updated: Finite
    runs: int
    ended: int
    kept: int
    failed: int
    done: int
    total: int
    left: Finite | None
    now: list[RunningRun]
    finished: list[EndedRun]


class ProgressFile(WorkCounter):
    """An observer of runs, also of several at the same time. A thread writes, so that the training never waits."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.file = Path(folder) / "progress.json"
        self.lock, self.over = threading.RLock(), threading.Event()
        self.thread: threading.Thread | None = None
        self.changed = True
        self.state: Progress = {
            "fedekd": __version__, "pid": os.getpid(), "host": socket.gethostname(), "state": "running", "error": None,
            "started": time.time(), "updated": 0.0, "runs": 0, "ended": 0, "kept": 0, "failed": 0,
            "done": 0, "total": 0, "left": None, "now": [], "finished": [],
        }  # fmt: skip

    def __enter__(self) -> ProgressFile:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self.thread is None:  # nothing was even planned
            return
        self.over.set()
        self.thread.join()
        self.state["state"], self.state["now"] = "done", []
        if isinstance(error, KeyboardInterrupt):
            self.state["state"] = "interrupted"
        elif error is not None:
            self.state["state"], self.state["error"] = "failed", in_words(error)
        self._write()

    def observe(self, event: Event) -> None:
        with self.lock:
            self.changed = True
            super().observe(event)

    def on_runs_planned(self, event: RunsPlanned) -> None:
        super().on_runs_planned(event)
        self.state["runs"] = self.runs
        self._write()
        self.thread = threading.Thread(target=self._keep_writing, name="fedekd-progress-file", daemon=True)
        self.thread.start()

    def on_run_started(self, event: RunStarted) -> None:
        super().on_run_started(event)
        self._add(event.label, event.seed, event.resumed, event.rounds, {})

    def on_client_trained(self, event: ClientTrained) -> None:
        super().on_client_trained(event)
        if len(self.state["now"]) == 1:  # of several, who knows whose round it is
            self.state["now"][0]["round"] = event.round + 1

    def on_round_measured(self, event: RoundMeasured) -> None:
        known = {name: _finite(value) for name, value in event.clients.items()}
        for run in self.state["now"]:
            if (run["label"], run["seed"]) == (event.label, event.seed):
                run["round"], run["clients"] = event.round, known
                return
        rounds = max((run["rounds"] for run in self.state["now"]), default=event.round)  # one of a stack
        self._add(event.label, event.seed, event.round, rounds, known)

    def on_run_finished(self, event: RunFinished) -> None:
        record = event.record
        self.state["kept" if event.cached else "ended"] += 1
        self._remove(record["label"], record["seed"])
        ended: EndedRun = {
            "dataset": record["dataset"], "alpha": record["alpha"], "label": record["label"],
            "method": record["method"], "seed": record["seed"], "metric": record["metric"],
            "mean": _finite(record["mean"]), "avg_delta": _finite(record["avg_delta"]),
            "worst_delta": _finite(record["worst_delta"]), "seconds": record["seconds"], "cached": event.cached,
        }  # fmt: skip
        self.state["finished"] = [*self.state["finished"], ended][-RECENT:]

    def on_run_failed(self, event: RunFailed) -> None:
        super().on_run_failed(event)
        self.state["failed"] += 1
        self.state["ended"] += 1
        self._remove(event.label, event.seed)

    def _add(self, label: str, seed: int, round: int, rounds: int, clients: dict[str, float | None]) -> None:
        run: RunningRun = {"label": label, "seed": seed, "round": round, "rounds": rounds, "clients": clients}
        self.state["now"].append(run)

    def _remove(self, label: str, seed: int | None) -> None:
        if ended := next((run for run in self.state["now"] if is_of((run["label"], run["seed"]), label, seed)), None):
            self.state["now"].remove(ended)

    def _keep_writing(self) -> None:
        wrote = time.monotonic()
        while not self.over.wait(EVERY):
            if self.changed or time.monotonic() - wrote > STILL:
                self._write()
                wrote = time.monotonic()

    def _write(self) -> None:
        with self.lock:
            self.changed = False
            self.state["updated"], self.state["left"] = time.time(), self.eta.seconds()
            self.state["done"], self.state["total"] = self.eta.done, self.eta.total
            text = json.dumps(self.state, allow_nan=False)
        with contextlib.suppress(FedekdError, OSError):  # a full disk stops the training where it matters, not here
            if not _of_another(self.file):
                write_whole(self.file, text.encode())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _of_another(file: Path) -> bool:
    """Whether a living process that came first shows itself there: two in turns would show neither."""
    try:
        other = read(file.parent)
    except FedekdError:
        return False
    return other is not None and other["pid"] != os.getpid() and condition(other) == "running"


def read(folder: str | Path) -> Progress | None:
    """What a process has left in ``progress.json``; None where there is none."""
    file = Path(folder) / "progress.json"
    try:
        content = json.loads(file.read_bytes())
        validator(Progress)(content)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise FedekdError(f"{folder} is not a folder; give the one that a run or a study writes") from None
    except OSError as error:
        raise FedekdError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise FedekdError(f"{file} is not a progress file of fedekd; remove it") from None
    return cast("Progress", content)


def condition(progress: Progress) -> Literal["running", "done", "interrupted", "failed", "gone", "silent"]:
    """``running``, or how it ended: ``done``, ``interrupted``, ``failed``; ``gone`` or ``silent`` if it did not say."""
    if progress["state"] != "running":
        return progress["state"]
    if progress["host"] == socket.gethostname() and not _alive(progress["pid"]):
        return "gone"
    return "silent" if time.time() - progress["updated"] > SILENT else "running"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    with contextlib.suppress(OSError):  # killed, and its parent has not looked yet
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return True
