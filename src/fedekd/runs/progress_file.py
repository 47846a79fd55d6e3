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
from typing import Any

from fedekd import __version__
from fedekd.errors import FedekdError, in_words
from fedekd.files import write_whole
from fedekd.runs.eta import Eta
from fedekd.runs.observers import (
    ClientTrained,
    Event,
    Observer,
    RoundMeasured,
    RunFailed,
    RunFinished,
    RunsPlanned,
    RunStarted,
    is_of,
)

EVERY = 1.0  # seconds at least between two writings
STILL = 15.0  # seconds after which the file is written with nothing new in it: a sign of life
SILENT = 60.0  # without a sign of life for so long, a process counts as dead
RECENT = 50  # finished runs that are listed
KINDS = {
    **dict.fromkeys(("pid", "runs", "ended", "kept", "failed", "done", "total"), int),
    **dict.fromkeys(("started", "updated"), float),
    **dict.fromkeys(("host", "state"), str),
    **dict.fromkeys(("now", "finished"), list),
}
OUTCOME = ("dataset", "alpha", "label", "method", "seed", "metric", "mean", "avg_delta", "worst_delta", "seconds")


class ProgressFile(Observer):
    """An observer of runs, also of several at the same time. A thread writes, so that the training never waits."""

    def __init__(self, folder: str | Path) -> None:
        self.file = Path(folder) / "progress.json"
        self.lock, self.over = threading.RLock(), threading.Event()
        self.thread: threading.Thread | None = None
        self.changed = True
        self.eta = Eta()
        self.state: dict[str, Any] = {
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
        self.state |= {"state": "done", "now": []}
        if isinstance(error, KeyboardInterrupt):
            self.state["state"] = "interrupted"
        elif error is not None:
            self.state |= {"state": "failed", "error": in_words(error)}
        self._write()

    def observe(self, event: Event) -> None:
        with self.lock:
            self.changed = True
            super().observe(event)

    def on_runs_planned(self, event: RunsPlanned) -> None:
        self.state["runs"], self.eta.total = len(event.runs), sum(work for *_, work in event.runs)
        self._write()
        self.thread = threading.Thread(target=self._keep_writing, name="fedekd-progress-file", daemon=True)
        self.thread.start()

    def on_run_started(self, event: RunStarted) -> None:
        self.eta.skip(event.work * event.resumed // max(event.rounds, 1))
        self._add(event.label, event.seed, event.resumed, event.rounds, {})

    def on_client_trained(self, event: ClientTrained) -> None:
        self.eta.advance(event.work)
        if len(self.state["now"]) == 1:  # of several, who knows whose round it is
            self.state["now"][0]["round"] = event.round + 1

    def on_round_measured(self, event: RoundMeasured) -> None:
        known = {name: value if math.isfinite(value) else None for name, value in event.clients.items()}
        for run in self.state["now"]:
            if (run["label"], run["seed"]) == (event.label, event.seed):
                run |= {"round": event.round, "clients": known}
                return
        rounds = max((run["rounds"] for run in self.state["now"]), default=event.round)  # one of a stack
        self._add(event.label, event.seed, event.round, rounds, known)

    def on_run_finished(self, event: RunFinished) -> None:
        record = event.record
        self.state["kept" if event.cached else "ended"] += 1
        self._remove(record["label"], record["seed"])
        outcome = {name: value for name, value in record.items() if name in OUTCOME}
        bad = [name for name, value in outcome.items() if isinstance(value, float) and not math.isfinite(value)]
        outcome |= dict.fromkeys(bad) | {"cached": event.cached}
        self.state["finished"] = [*self.state["finished"], outcome][-RECENT:]

    def on_run_failed(self, event: RunFailed) -> None:
        self.state["failed"] += 1
        self.state["ended"] += 1
        self.eta.total -= event.work
        self._remove(event.label, event.seed)

    def _add(self, label: str, seed: int, round: int, rounds: int, clients: dict[str, float | None]) -> None:
        run = {"label": label, "seed": seed, "round": round, "rounds": rounds, "clients": clients}
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
            self.state |= {"updated": time.time(), "done": self.eta.done, "total": self.eta.total}
            self.state["left"] = self.eta.seconds()
            text = json.dumps(self.state, allow_nan=False)
        with contextlib.suppress(FedekdError, OSError):  # a full disk stops the training where it matters, not here
            if not _of_another(self.file):
                write_whole(self.file, text.encode())


def _of_another(file: Path) -> bool:
    """Whether a living process that came first shows itself there: two in turns would show neither."""
    try:
        other = read(file.parent)
    except FedekdError:
        return False
    return other is not None and other["pid"] != os.getpid() and condition(other) == "running"


def read(folder: str | Path) -> dict[str, Any] | None:
    """What a process has left in ``progress.json``; None where there is none."""
    file = Path(folder) / "progress.json"
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise FedekdError(f"{folder} is not a folder; give the one that a run or a study writes") from None
    except OSError as error:
        raise FedekdError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        content = None
    if not isinstance(content, dict) or not all(isinstance(content.get(k), kind) for k, kind in KINDS.items()):
        raise FedekdError(f"{file} is not a progress file of fedekd; remove it")
    return content


def condition(progress: dict[str, Any]) -> str:
    """``running``, or how it ended: ``done``, ``interrupted``, ``failed``; ``gone`` or ``silent`` if it did not say."""
    if progress["state"] != "running":
        return str(progress["state"])
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
