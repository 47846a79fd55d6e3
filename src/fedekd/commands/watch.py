"""fedekd watch: follow a run or a study that another process is working on."""

from __future__ import annotations

import argparse
import difflib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedekd.commands.parser import command, console
from fedekd.errors import FedekdError

if TYPE_CHECKING:
    from rich.console import Console

    from fedekd.runs.progress_file import Progress

LOOK = 0.5  # seconds between two looks at the file


def add(commands: Any) -> None:
    watch = command(commands, "watch", watch_folder, "follow a run or a study that another process is working on")
    watch.add_argument("folder", metavar="DIR", help="results folder of the run or the study")
    watch.add_argument("--once", action="store_true", help="print the current state and exit")
    watch.add_argument(
        "--timeout", type=float, default=3600.0, metavar="SECONDS",
        help="how long to wait for something to start (default: 3600)",
    )  # fmt: skip


def watch_folder(given: argparse.Namespace) -> None:
    """Ends as the run did: with status 0 if it is done, or still running after --once."""
    from fedekd.report.status import status_view
    from fedekd.runs.progress_file import read

    folder, screen = Path(given.folder), console()
    if not 0 <= given.timeout < math.inf:
        raise FedekdError(f"--timeout must be a number of seconds >= 0, got {given.timeout}")
    _check(folder)
    if given.once:
        progress = read(folder)
        if progress is None:
            raise FedekdError(f"nothing has started in {folder} yet: it has no progress.json")
        screen.print(status_view(progress))
        _judge(folder, progress, screen)
        return
    _judge(folder, _follow(folder, _wait(folder, given.timeout, screen), screen), screen)


def _check(folder: Path) -> None:
    """Refuse the folder of a real federation, in which no run ever starts."""
    from fedekd.flower.setup.folders import server_state, site_state

    state = server_state(folder) or site_state(folder)
    if state is not None:
        log = next((path for path in (state / "log", state.parent / "log") if path.exists()), state / "log")
        raise FedekdError(
            f"{folder} belongs to a federation of real sites: `fedekd server status` or `fedekd site status` tells how "
            f"far it is, `tail -f {log}` follows it, and `fedekd report {folder}` shows what came of it"
        )


def _wait(folder: Path, timeout: float, screen: Console) -> Progress:
    """The first that there is to see."""
    from fedekd.runs.progress_file import read

    deadline, said = time.monotonic() + timeout, False
    while (progress := read(folder)) is None:
        if time.monotonic() > deadline:
            raise FedekdError(f"nothing has started in {folder} within {timeout:g} s")
        if not said:
            missing = "" if folder.exists() else f"{folder} is not there yet; "
            screen.print(f"{missing}waiting for a run to start in {folder}{_beside(folder)}", soft_wrap=True)
            said = True
        time.sleep(LOOK)
    return progress


def _beside(folder: Path) -> str:
    """A hint at the sibling folder that was probably meant, if this one does not exist."""
    if folder.exists():
        return ""
    found = [path.parent.name for path in folder.absolute().parent.glob("*/progress.json")]
    close = difflib.get_close_matches(folder.name, found, 1)
    return f" (did you mean {folder.parent / close[0]}?)" if close else ""


def _follow(folder: Path, progress: Progress, screen: Console) -> Progress:
    """Show the run until it ends: in place on a terminal, elsewhere with a line whenever a run has ended."""
    from rich.live import Live

    from fedekd.report.status import status_line, status_view
    from fedekd.runs.progress_file import condition, read

    if not screen.is_terminal:
        told = None
        while condition(progress) == "running":
            if told != (told := (progress["ended"], progress["pid"])):
                screen.print(status_line(progress), soft_wrap=True)
            time.sleep(LOOK)
            progress = read(folder) or progress
        screen.print(status_view(progress))
        return progress
    with Live(status_view(progress), console=screen, auto_refresh=False, vertical_overflow="crop") as live:
        while condition(progress) == "running":
            time.sleep(LOOK)
            progress = read(folder) or progress
            live.update(status_view(progress), refresh=True)
    return progress


def _judge(folder: Path, progress: Progress, screen: Console) -> None:
    from fedekd.report.status import age
    from fedekd.runs.progress_file import condition

    process = f"process {progress['pid']} on {progress['host']}"
    again = "the same command continues where it stopped"
    match condition(progress):
        case "done":
            failed = progress["failed"]
            screen.print(f"ended {age(progress)} ago" + (f", {failed} failed: see failures.jsonl" if failed else ""))
        case "interrupted":
            raise FedekdError(f"{folder}: interrupted {age(progress)} ago; {again}")
        case "failed":
            raise FedekdError(f"{folder}: ended {age(progress)} ago by an error: {progress['error']}")
        case "gone":
            raise FedekdError(f"{folder}: {process} died, last heard of {age(progress)} ago; {again}")
        case "silent":
            raise FedekdError(f"{folder}: {process} has not been heard of for {age(progress)}; it is dead or suspended")
