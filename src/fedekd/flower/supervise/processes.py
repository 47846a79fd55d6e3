"""Child processes that end when we do, however we end, each in a group of its own with a log of its own."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from fedekd.errors import FedekdError
from fedekd.files import owner_only

PR_SET_PDEATHSIG = 1
TRIES = 3
GRACE = 10.0  # seconds from SIGTERM to SIGKILL; Flower ends itself 5 s after a SIGTERM
LOG_LIMIT = 20_000_000  # bytes; a longer log is put aside as NAME.log.old when its process starts
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
AGAIN = "nothing is lost: the same command continues"
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Child:
    """A running process."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.name, self.log, self.born = name, log, time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_LIMIT:
            os.replace(log, log.with_name(f"{log.name}.old"))
        parent = os.getpid()
        with open(log, "ab") as file:
            self.start = file.tell()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                preexec_fn=lambda: end_with(parent),
            )

    @property
    def code(self) -> int | None:
        """None while it runs; its exit status, or the negative number of the signal that ended it."""
        return self.process.poll()

    def lines(self) -> list[str]:
        """What it has written since it started, without colours."""
        with open(self.log, "rb") as file:
            file.seek(self.start)
            return COLOUR.sub("", file.read().decode(errors="replace")).splitlines()

    def signal(self, number: int) -> None:
        """To the whole group: also to what the process has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def reap(self) -> None:
        """After its end: nothing that it had started stays."""
        self.signal(signal.SIGKILL)
        self.process.wait()


def stop(children: Sequence[Child]) -> None:
    """End all of them and what they started: first by request, then by force."""
    for child in children:
        child.signal(signal.SIGTERM)
    end = time.monotonic() + GRACE
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, end - time.monotonic()))
    for child in children:
        child.reap()


@contextlib.contextmanager
def stopping(children: list[Child], then: str = "") -> Iterator[None]:
    """Stop whatever is in ``children`` at the end, also when this process gets SIGTERM, SIGINT or SIGHUP.

    ``then``: what the user who sent it is told.
    """

    def end(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt(*filter(None, (signal.Signals(number).name, then)))

    before: dict[int, Any] = {n: signal.signal(n, end) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # nothing interrupts the stopping itself
        stop(children)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def sole_owner(folder: Path) -> Iterator[None]:
    """Make the folder, for us alone, and hold it: no second process works in it at the same time.

    What we and our children write meanwhile holds models and keys, and is for the owner's eyes only.
    """
    before = os.umask(0o077)
    try:
        with _held(folder):
            yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = open(folder / ".lock", "a")  # noqa: SIM115
    except OSError as error:
        raise FedekdError(f"cannot write to {folder}: {error.strerror}; check `state` and its owner") from None
    with file:
        for left in range(TRIES, 0, -1):  # whoever asks whether it is held holds it for a moment
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if left == 1:
                    raise FedekdError(f"{folder} is in use by another process; stop that one first") from None
                time.sleep(0.1)
        yield


def is_held(folder: Path) -> bool:
    """Whether another process works in it."""
    try:
        with open(folder / ".lock") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except PermissionError:
        raise owner_only(folder) from None
    except OSError:
        return True
    return False


def command(module: str, *arguments: str) -> list[str]:
    """A Python module as a command, in the environment that we run in."""
    return [sys.executable, "-m", module, *arguments]


def environment(home: Path, modules: Path | None = None, **more: str) -> dict[str, str]:
    """For Flower's processes: no telemetry, a home of its own, its commands in the path, and a folder of modules."""
    paths = [*([str(modules)] if modules else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # seconds; a look costs both ends some milliseconds
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
        "FORWARDED_ALLOW_IPS": "",  # nobody may claim another address than the one he connects from
        **more,
    }


def say(text: str) -> None:
    """A line for the terminal or the journal, at once."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def end_with(parent: int) -> None:
    """In the child: have the kernel end it when the parent ends, even by SIGKILL."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended in the meantime
            os._exit(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
