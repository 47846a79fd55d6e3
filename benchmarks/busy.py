"""A small tabular job beside busy processes: what `fedekd run` does by itself against each way of running it.

    python benchmarks/cpu.py --only busy     (or with everything else, at the end of cpu.py)

Four hospitals, FedeKD and FML with three seeds. The busy processes compute without a pause and share the job's cores.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from measure import measure
from rich.console import Console
from rich.table import Table

NEIGHBOURS = (0, 1, 3)
DEFAULT = "fedekd run, as it is"
PATIENCE = 600  # seconds


@dataclass(frozen=True)
class Way:
    """How the job is run: more options, and what is set in the environment."""

    name: str
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


WAYS = (
    Way(DEFAULT),
    Way("one process, one thread", ("--workers", "1"), {"OMP_NUM_THREADS": "1"}),
    Way("two processes, one thread", ("--workers", "2"), {"OMP_NUM_THREADS": "1"}),
    Way("two threads, passive wait", ("--workers", "1"), {"OMP_NUM_THREADS": "2"}),
    Way("two threads, torch's own wait", ("--workers", "1"), {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "ACTIVE"}),
)


def compute() -> None:
    while True:
        sum(range(100_000))


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    busy = [multiprocessing.Process(target=compute, daemon=True) for _ in range(count)]
    for one in busy:
        one.start()
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.join()


def run(work: Path, given: Mapping[str, str], root: Path, passes: int, quick: bool, console: Console) -> list[dict]:
    """Every way beside every number of neighbours, pass by pass; one that fails or takes too long is tried once.

    ``given`` is the environment of all.
    """
    found = [{"way": way.name, "neighbours": count, "seconds": []} for count in NEIGHBOURS for way in WAYS]
    out = work / "busy"
    for number in range(1, passes + 1):
        for entry, (count, way) in zip(found, [(c, w) for c in NEIGHBOURS for w in WAYS], strict=True):
            if entry.get("problem"):
                continue
            shutil.rmtree(out, ignore_errors=True)
            job = ["run", "--dataset", "heart", "--methods", "fedekd,fml", "--seeds", "0-2", "--no-report", "--quiet"]
            job += ["--rounds", "2" if quick else "20", "--out", str(out), *way.options]
            with neighbours(count):
                done = measure([sys.executable, "-m", "fedekd", *job], {**given, **way.environment}, root, PATIENCE)
            if done.status:
                entry["problem"] = f"status {done.status}, or longer than {PATIENCE} s"
            else:
                entry["seconds"].append(round(done.seconds, 1))
            console.print(f"[dim]busy, pass {number}, {count} neighbours, {way.name}: {done.seconds:.1f} s")
    return found


def show(console: Console, found: list[dict]) -> None:
    table = Table(title="Four hospitals, 9 runs, beside busy processes: wall seconds", title_justify="left")
    for name in ("", *(f"{count} busy" for count in NEIGHBOURS)):
        table.add_column(name, justify="left" if not name else "right")
    for way in WAYS:
        cells = [_cell(entry) for entry in found if entry["way"] == way.name]
        table.add_row(way.name, *cells)
    table.add_row("as it is, of the best", *(f"{ratio(found, count):.2f}x" for count in NEIGHBOURS))
    console.print(table)


def _cell(entry: dict) -> str:
    return entry.get("problem") or f"{statistics.median(entry['seconds']):.1f}"


def ratio(found: list[dict], count: int) -> float:
    """The default against the fastest way beside as many neighbours, medians over passes."""
    medians = {
        entry["way"]: statistics.median(entry["seconds"])
        for entry in found
        if entry["neighbours"] == count and entry["seconds"]
    }
    return medians[DEFAULT] / min(medians.values()) if DEFAULT in medians else float("nan")
