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
import resource
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

INTERVAL = 0.5
SLOWER = 4  # memory is read at every fourth reading, for it stops the process that is read
PATIENCE = 15.0  # seconds that left-over processes get to end themselves
PR_SET_CHILD_SUBREAPER = 36
TICKS = os.sysconf("SC_CLK_TCK")


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
        self.cpu: dict[tuple[int, bytes], float] = {}
        self.peak_kb = 0
        self.readings = 0

    def sample(self) -> None:
        found = _below(os.getpid())
        for pid, stat in found:
            self.cpu[pid, stat[19]] = (int(stat[11]) + int(stat[12])) / TICKS
        self.readings += 1
        if len(found) > 1 and self.readings % SLOWER == 0:
            self.peak_kb = max(self.peak_kb, sum(_resident_kb(pid) for pid, _ in found))


def measure(command: Sequence[str], env: Mapping[str, str], cwd: Path, timeout: float) -> Measurement:
    """Run one command to its end, then end what it left running. Nothing else may run below this process."""
    _become_reaper()
    tree, ended = Tree(), []
    with tempfile.TemporaryFile() as log:
        start = time.perf_counter()
        main = subprocess.Popen(command, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        over = os.pidfd_open(main.pid)
        try:
            while not select.select([over], [], [], INTERVAL)[0]:
                tree.sample()
                if time.perf_counter() > start + timeout:
                    _signal_all(signal.SIGKILL)
            finish = time.perf_counter()
            while _below(os.getpid()):
                tree.sample()
                ended += _reap()
                _signal_all(signal.SIGTERM if time.perf_counter() < finish + PATIENCE else signal.SIGKILL)
                time.sleep(INTERVAL / 10)
            ended += _reap()
        finally:
            os.close(over)
            _signal_all(signal.SIGKILL)
        log.seek(0)
        output = log.read().decode(errors="replace")
    (status,) = (code for pid, code, _ in ended if pid == main.pid)
    main.returncode = status
    reaped = sum(usage.ru_utime + usage.ru_stime for _, _, usage in ended)
    sampled = sum(tree.cpu.values())
    peak_kb = max(usage.ru_maxrss for _, _, usage in ended)
    return Measurement(
        seconds=finish - start,
        cpu_seconds=max(reaped, sampled),
        cpu_reaped=reaped,
        cpu_sampled=sampled,
        peak_process_mb=peak_kb / 1024,
        peak_tree_mb=max(tree.peak_kb, peak_kb) / 1024,
        processes=len(tree.cpu),
        status=status,
        output=output,
    )


def _become_reaper() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become the reaper of left-over processes")


def _reap() -> list[tuple[int, int, resource.struct_rusage]]:
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


def _below(root: int) -> list[tuple[int, list[bytes]]]:
    """Every descendant of a process, with the fields of its /proc stat from the state on."""
    stats: dict[int, list[bytes]] = {}
    children: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            stats[pid] = file.read().rpartition(b")")[2].split()
            children.setdefault(int(stats[pid][1]), []).append(pid)
    found, waiting = [], list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        found.append((pid, stats[pid]))
        waiting += children.get(pid, ())
    return found


def _resident_kb(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1])
    return 0
