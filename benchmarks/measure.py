"""One command, measured whole: wall time, CPU seconds and memory of everything it started. Linux.

CPU time is what the kernel hands over when a process is reaped (user + system, wait4). A process counts those of its
children that it waited for; those that it left behind (Flower's SuperLink, Ray's daemons and workers) are handed to
this process, which declares itself their reaper, ends them, and adds theirs. A second count, by reading /proc while
the job runs, catches what neither saw (children of a process that ignores SIGCHLD); the larger count is reported.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

INTERVAL = 0.25
PATIENCE = 15.0  # seconds that left-over processes get to end themselves
PR_SET_CHILD_SUBREAPER = 36
TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True)
class Measurement:
    seconds: float
    cpu_seconds: float
    cpu_reaped: float
    cpu_sampled: float
    peak_process_mb: float
    """The largest resident size of any one process, as the kernel saw it."""
    peak_tree_mb: float
    """The largest sum over all processes at one time, shared pages divided among their users; sampled."""
    processes: int
    status: int
    output: str


class Tree:
    """Processes below this one, followed through /proc."""

    def __init__(self) -> None:
        self.cpu: dict[tuple[int, str], float] = {}
        self.peak_kb = 0

    def sample(self) -> None:
        total = 0
        for pid, stat in _below(os.getpid()):
            self.cpu[pid, stat[19]] = (int(stat[11]) + int(stat[12])) / TICKS
            total += _resident_kb(pid)
        self.peak_kb = max(self.peak_kb, total)


def measure(command: Sequence[str], env: Mapping[str, str], cwd: Path, timeout: float) -> Measurement:
    """Run one command to its end, then end what it left running. Nothing else may run below this process."""
    _become_reaper()
    tree, reaped, peak = Tree(), 0.0, 0
    status = None
    with tempfile.TemporaryFile() as log:
        start = time.perf_counter()
        main = subprocess.Popen(command, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        finish, deadline = None, start + timeout
        while True:
            tree.sample()
            now = time.perf_counter()
            if status is None and now > deadline:
                _signal_all(signal.SIGKILL)
            if finish is not None:
                _signal_all(signal.SIGTERM if now < finish + PATIENCE else signal.SIGKILL)
            ended = _reap()
            for pid, code, usage in ended:
                reaped += usage.ru_utime + usage.ru_stime
                peak = max(peak, usage.ru_maxrss)
                if pid == main.pid:
                    status, finish = code, time.perf_counter()
                    main.returncode = code
            if status is not None and not any(True for _ in _below(os.getpid())):
                break
            if not ended:
                time.sleep(INTERVAL if status is None else INTERVAL / 5)
        log.seek(0)
        output = log.read().decode(errors="replace")
    sampled = sum(tree.cpu.values())
    return Measurement(
        seconds=finish - start,
        cpu_seconds=max(reaped, sampled),
        cpu_reaped=reaped,
        cpu_sampled=sampled,
        peak_process_mb=peak / 1024,
        peak_tree_mb=max(tree.peak_kb, peak) / 1024,
        processes=len(tree.cpu),
        status=status,
        output=output,
    )


def _become_reaper() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become the reaper of left-over processes")


def _reap() -> list[tuple[int, int, object]]:
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, os.waitstatus_to_exitcode(status), usage))
    return ended


def _signal_all(number: int) -> None:
    for pid, _ in _below(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _below(root: int) -> list[tuple[int, list[str]]]:
    """Every descendant of a process, with the fields of its /proc stat from the state on."""
    stats: dict[int, list[str]] = {}
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            stats[int(entry.name)] = fields
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        found.append((pid, stats[pid]))
        waiting += children.get(pid, ())
    return found


def _resident_kb(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
