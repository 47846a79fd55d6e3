"""FedAvg with 1,000 and 10,000 clients of whom few take part, on one CPU thread: fedekd, pfl-research and FedJAX.

    python benchmarks/many_peers.py [--passes N] [--only "10 of 1,000"]

Every measurement is a process of its own, held to one core; passes are interleaved and ratios are taken within a pass.
Results are written after each, by default to benchmarks/results/many_peers.json; what is there already is not measured
again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpu import HERE, ROOT, WORK, environment, machine, rival
from measure import measure
from rich.console import Console
from rich.table import Table

CASES = {"10 of 1,000": (10, 1_000, 4), "10 of 10,000": (10, 10_000, 4), "100 of 1,000": (100, 1_000, 2)}
"""Who takes part, of how many, and rounds; the first of them is not counted."""
OURS, STACKED, PFL, PLAIN, FEDJAX = (
    "fedekd",
    "fedekd, stacked engine",
    "pfl-research, tuned",
    "pfl-research, plain",
    "FedJAX",
)
SIDES = {
    OURS: ("", "many_ours.py", ""),
    PFL: ("pfl", "rivals/pfl/many.py", "tuned"),
    FEDJAX: ("fedjax", "rivals/fedjax/many.py", ""),
    STACKED: ("", "many_ours.py", "stacked"),
    PLAIN: ("pfl", "rivals/pfl/many.py", "plain"),
}
"""Its environment, its script and the setting that it is given."""
TIMEOUT = 1800


def perform(side: str, case: str, python: str) -> dict[str, Any]:
    _, script, setting = SIDES[side]
    present, clients, rounds = CASES[case]
    size = {"--present": present, "--clients": clients, "--rounds": rounds, "--setting": setting}
    command = [python, str(HERE / script), *(f"{name}={value}" for name, value in size.items())]
    one_thread = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    load = os.getloadavg()[0]
    run = measure(command, {**environment(), **one_thread, "PYTHONPATH": str(ROOT / "src")}, ROOT, TIMEOUT)
    if run.status:
        return {"error": f"status {run.status}: {run.output.strip().splitlines()[-1:]}"}
    line = json.loads(next(text for text in reversed(run.output.splitlines()) if text.startswith("{")))
    return {**line, "load": load}


def a_round(found: dict[str, Any], what: str) -> float:
    return statistics.median(found[what][1:])


def told(found: dict[str, Any]) -> str:
    if "error" in found:
        return found["error"]
    return f"{a_round(found, 'cpu_seconds'):.2f} CPU-s, {a_round(found, 'seconds'):.2f} s a round"


def check_same_job(case: str, table: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Whether all sides trained a model of the same size on as many samples."""
    runs = [(side, run) for side, passes in table.items() for run in passes if "error" not in run]
    kinds = {(run["parameters"], run["trained"]) for _, run in runs}
    return [f"{case}: the sides did different jobs: {sorted(kinds)}"] if len(kinds) > 1 else []


def show(console: Console, case: str, table: dict[str, list[dict[str, Any]]]) -> None:
    shown = Table(title=f"{case} clients, one round", title_justify="left")
    for name in ("", "CPU s", f"of {OURS}", "wall s", f"of {OURS}", "loss", "peak MB", "passes"):
        shown.add_column(name, justify="right" if name else "left")
    for side, passes in table.items():
        good = [run for run in passes if "error" not in run]
        if not good:
            shown.add_row(side, "failed")
            continue
        pairs = [
            (mine, ours)
            for mine, ours in zip(passes, table.get(OURS, ()), strict=False)
            if "error" not in {**mine, **ours}
        ]
        cells = []
        for what in ("cpu_seconds", "seconds"):
            cells.append(f"{statistics.median(a_round(run, what) for run in good):.2f}")
            ratios = [a_round(mine, what) / a_round(ours, what) for mine, ours in pairs]
            spread = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
            cells.append(f"{statistics.median(ratios):.2f}x{spread}" if ratios else "")
        loss = statistics.median(run["loss"] for run in good)
        peak = max(run["peak_mb"] for run in good)
        shown.add_row(side, *cells, f"{loss:.2f}", f"{peak:.0f}", str(len(good)))
    console.print(shown)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--only", choices=tuple(CASES), help="one of the cases")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "many_peers.json")
    options = parser.parse_args(argv)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    WORK.mkdir(parents=True, exist_ok=True)
    pythons = {name: rival(name, console) if name else sys.executable for name in {env for env, *_ in SIDES.values()}}
    content = json.loads(options.out.read_text()) if options.out.exists() else {"machine": machine(1), "cases": {}}
    cases = [options.only] if options.only else list(CASES)
    for number in range(options.passes):
        for case in cases:
            table = content["cases"].setdefault(case, {})
            for side, (env, *_) in SIDES.items():
                passes = table.setdefault(side, [])
                if not pythons[env] or len(passes) > number:
                    continue
                passes.append(perform(side, case, pythons[env]))
                options.out.write_text(json.dumps(content, indent=1) + "\n")
                last = passes[-1]
                told = (
                    last.get("error") or f"{a_round(last, 'cpu_seconds'):.2f} CPU-s, {a_round(last, 'seconds'):.2f} s"
                )
                console.print(f"[dim]pass {number + 1}, {case}, {side}: {told} a round")
    problems = []
    for case in cases:
        show(console, case, {side: passes for side, passes in content["cases"][case].items() if passes})
        problems += check_same_job(case, content["cases"][case])
    for problem in problems:
        console.print(f"[red]{problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
