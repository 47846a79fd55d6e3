"""The CPU benchmark: fedekd against a bare PyTorch loop, Flower and pfl-research, side by side in one run.

    python benchmarks/cpu.py [--passes N] [--quick] [--no-rivals]

See benchmarks/README.md for what is measured and how fairness is kept.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import busy
import synthetic
from measure import Measurement, measure
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rivals.install import NotInstalled, ensure

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORK = ROOT / "local" / "bench"
TIMEOUT = 1800
BF16_FLAGS = {"avx512_bf16", "amx_bf16"}
REFERENCE = "bare loop, tuned"
OURS = "fedekd"
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}  # fedekd's own; a thread that spins beside other work counts as CPU time
PATIENCE = 2  # failures of a case before it is given up
TOLERANCE = 0.05  # of a client's accuracy, when all sides did the job in full


@dataclass
class Case:
    """One thing to measure, and what came of it, pass by pass."""

    mode: str  # throughput or job
    name: str
    command: list[str]
    runs: dict[int, Measurement] = field(default_factory=dict)
    lines: dict[int, dict] = field(default_factory=dict)
    problem: str = ""
    failures: int = 0

    def values(self, what: str) -> dict[int, float]:
        if what == "rate":
            return {number: line["samples_per_second"] for number, line in self.lines.items()}
        return {number: getattr(run, what) for number, run in self.runs.items()}

    def median(self, what: str) -> float:
        return statistics.median(self.values(what).values())


@dataclass(frozen=True)
class Verdict:
    promise: str
    found: str
    held: bool | None  # None: cannot be judged here


# --- what is measured ------------------------------------------------------------------------------------


def make_cases(options: argparse.Namespace, bf16: bool, console: Console) -> list[Case]:
    size = ["--rounds", "1", "--epochs", "1", "--repeats", "2"] if options.quick else []
    data = ["--data", str(dataset(options.quick)), *size]

    def case(mode: str, name: str, script: str, *more: str, python: str = sys.executable, takes_mode: bool = True):
        arguments = [mode] if takes_mode else []
        return Case(mode, name, [python, str(HERE / script), *arguments, *more, *data])

    cases = []
    for mode in ("throughput", "job"):
        cases += [
            case(mode, "bare loop, plain", "bare.py", "--setting", "plain"),
            case(mode, REFERENCE, "bare.py"),
            case(mode, OURS, "ours.py"),
        ]
        if bf16:
            cases += [
                case(mode, f"{REFERENCE}, bf16", "bare.py", "--precision", "bf16"),
                case(mode, f"{OURS}, bf16", "ours.py", "--precision", "bf16"),
            ]
    if options.rivals and options.only != "busy":
        python = rival("flower", console)
        for name, how, setting in (
            ("Flower run_simulation, plain", "in-process", "plain"),
            ("Flower run_simulation, tuned", "in-process", "tuned"),
            ("Flower flwr run, tuned", "cli", "tuned"),
        ):
            script = "rivals/flower/run.py"
            cases += [case("job", name, script, how, "--setting", setting, python=python, takes_mode=False)]
        python = rival("pfl", console)
        for setting in ("plain", "tuned"):
            name, script = f"pfl-research, {setting}", "rivals/pfl/run.py"
            cases += [case("job", name, script, "--setting", setting, python=python, takes_mode=False)]
    return cases


def dataset(quick: bool) -> Path:
    train, test = (128, 64) if quick else (640, 160)
    path = WORK / f"clients-{train}.npz"
    synthetic.make(path, train, test)
    return path


def rival(name: str, console: Console) -> str:
    console.print(f"[dim]{name}: environment in local/bench-{name} (made on the first run)")
    try:
        return str(ensure(name, WORK.parent))
    except NotInstalled as reason:
        console.print(f"[yellow]{name} could not be installed: {escape(str(reason))}")
        return ""


def perform(case: Case, number: int, console: Console) -> None:
    """One measurement in a process of its own. A case that fails twice is not tried again."""
    if not case.command[0]:
        case.problem, case.failures = "not installed", PATIENCE
    if case.failures == PATIENCE:
        return
    run = measure(case.command, {**environment(), **PASSIVE}, ROOT, TIMEOUT)
    try:
        line = json.loads(next(text for text in reversed(run.output.splitlines()) if text.startswith("{")))
    except (StopIteration, ValueError):
        line = None
    if run.status or line is None:
        log = WORK / f"failed-{case.mode}-{case.name.replace(' ', '-').replace(',', '')}.log"
        log.write_text(run.output)
        case.problem = f"pass {number} ended with status {run.status}, see {log.relative_to(ROOT)}"
        case.failures += 1
        console.print(f"[red]{case.mode}, {case.name}: {case.problem}")
        return
    case.runs[number], case.lines[number] = run, line
    rate = f", {line['samples_per_second']:.0f} samples/s" if case.mode == "throughput" else ""
    console.print(f"[dim]{case.mode}, {case.name}: {run.seconds:.1f} s, {run.cpu_seconds:.1f} CPU-s{rate}")


def environment() -> dict[str, str]:
    """The caller's, less what would make the sides unequal: thread counts, and recompiling at each start."""
    unequal = ("OMP_", "GOMP_", "KMP_", "MKL_", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
    return {key: value for key, value in os.environ.items() if not key.startswith(unequal)}


# --- what came of it -------------------------------------------------------------------------------------


def check_same_job(cases: dict[str, Case], quick: bool) -> list[str]:
    """Whether every side trained the same model on as many samples, to much the same accuracy."""
    reference, problems = cases[REFERENCE], []
    if not reference.lines:
        return [f"{REFERENCE} did not finish, so nothing can be compared"]
    expected = next(iter(reference.lines.values()))
    for case in cases.values():
        for line in case.lines.values():
            for what in ("parameters", "trained", "torch"):
                if line[what] != expected[what]:
                    problems.append(f"{case.name}: {what} {line[what]}, but {expected[what]} in {REFERENCE}")
            pairs = zip(line["accuracies"], expected["accuracies"], strict=True)
            worst = max(abs(mine - other) for mine, other in pairs)
            if worst > TOLERANCE and not quick:
                problems.append(f"{case.name}: a client's accuracy differs by {worst:.3f} from {REFERENCE}")
    return sorted(set(problems))


def paired(case: Case, other: Case, what: str) -> float:
    """The median over passes of one side against another in the same pass."""
    mine, others = case.values(what), other.values(what)
    common = mine.keys() & others.keys()
    return statistics.median(mine[number] / others[number] for number in common) if common else float("nan")


def verdicts(throughput: dict[str, Case], jobs: dict[str, Case], bf16: bool) -> list[Verdict]:
    found: list[Verdict] = []

    def judge(promise: str, case: Case | None, other: Case | None, what: str, holds, why_not: str = "not run") -> None:
        if not (case and other and case.runs.keys() & other.runs.keys()):
            found.append(Verdict(promise, why_not, None))
            return
        ratio = paired(case, other, what)
        found.append(Verdict(promise, f"{ratio:.2f}x", bool(holds(ratio))))

    ours, bare = throughput[OURS], throughput[REFERENCE]
    judge("throughput at least 0.95x of the bare loop, same settings", ours, bare, "rate", lambda r: r >= 0.95)
    with_bf16 = [
        ("throughput at least 1.5x of the bare loop in fp32", throughput, REFERENCE, "rate", lambda r: r >= 1.5),
        ("CPU time of the job below its own in fp32", jobs, OURS, "cpu_seconds", lambda r: r < 1),
        ("CPU time of the job below the bare loop's", jobs, f"{REFERENCE}, bf16", "cpu_seconds", lambda r: r < 1),
    ]
    without = "this CPU has no bf16 instructions"
    for promise, cases, other, what, holds in with_bf16:
        half = cases.get(f"{OURS}, bf16")
        judge(f"with bf16, {promise}", half, cases.get(other), what, holds, "not run" if bf16 else without)
        if not bf16 and found[-1].held is not None:
            found[-1] = replace(found[-1], found=f"{found[-1].found}; {without}", held=None)
    ours, bare = jobs[OURS], jobs[REFERENCE]
    for name, other in jobs.items():
        if name.startswith(("Flower", "pfl")):
            judge(f"CPU time of the job below {name}", ours, other, "cpu_seconds", lambda r: r < 1)
    judge("memory of the job at most 1.2x of the bare loop", ours, bare, "peak_process_mb", lambda r: r <= 1.2)
    return found


def show(console: Console, throughput: dict[str, Case], jobs: dict[str, Case], found: list[Verdict]) -> None:
    table = Table(title="Training throughput: private CNN, 28x28, batch 64", title_justify="left")
    for name in ("", "samples/s", "range", f"of {REFERENCE}", "peak MB"):
        table.add_column(name, justify="left" if not name else "right")
    for case in throughput.values():
        if not case.runs:
            table.add_row(case.name, case.problem or "not run")
            continue
        of = f"{paired(case, throughput[REFERENCE], 'rate'):.2f}x" if throughput[REFERENCE].runs else ""
        peak = f"{case.median('peak_process_mb'):.0f}"
        table.add_row(case.name, f"{case.median('rate'):.0f}", spread(case.values("rate"), 0), of, peak)
    console.print(table)

    table = Table(title="FedAvg job, six clients: everything from start to end", title_justify="left")
    for name in ("", "CPU s", "range", "wall s", "peak MB", "in all MB", "processes", "accuracy"):
        table.add_column(name, justify="left" if not name else "right")
    for case in jobs.values():
        if not case.runs:
            table.add_row(case.name, case.problem or "not run")
            continue
        accuracy = statistics.mean(next(iter(case.lines.values()))["accuracies"])
        table.add_row(
            case.name,
            f"{case.median('cpu_seconds'):.1f}",
            spread(case.values("cpu_seconds"), 1),
            f"{case.median('seconds'):.1f}",
            f"{case.median('peak_process_mb'):.0f}",
            f"{case.median('peak_tree_mb'):.0f}",
            f"{case.median('processes'):.0f}",
            f"{accuracy:.3f}",
        )
    console.print(table)

    table = Table(title="Promises", title_justify="left")
    for name in ("", "found", ""):
        table.add_column(name)
    words = {True: "[green]held", False: "[red]missed", None: "not judged"}
    for verdict in found:
        table.add_row(verdict.promise, verdict.found, words[verdict.held])
    console.print(table)


def spread(values: dict[int, float], digits: int) -> str:
    return f"{min(values.values()):.{digits}f}-{max(values.values()):.{digits}f}"


def machine(cores: int) -> dict:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    lines = dict(tuple(part.strip() for part in line.split(":", 1)) for line in info if ":" in line)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": lines.get("model name", platform.processor()),
        "cores_used": cores,
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
        "bf16_instructions": sorted(BF16_FLAGS & set(lines.get("flags", "").split())),
        "load_at_start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": version("torch"),
        "fedekd": version("fedekd"),
        "date": time.strftime("%Y-%m-%d"),
    }


def judge_busy(found: list[dict]) -> list[Verdict]:
    ratios = {count: busy.ratio(found, count) for count in busy.NEIGHBOURS}
    promise = "beside {} busy processes the default takes at most 1.2x of the best way to run a small job"
    return [Verdict(promise.format(count), f"{ratio:.2f}x", ratio <= 1.2) for count, ratio in ratios.items()]


def save(
    path: Path, about: dict, options: argparse.Namespace, cases: list[Case], found: list[Verdict], beside: list[dict]
) -> None:
    measured = []
    for case in cases:
        if not case.runs and not case.problem:  # left out by --only
            continue
        passes = [{"pass": number, **asdict(run), "said": case.lines[number]} for number, run in case.runs.items()]
        for one in passes:
            del one["output"]
        shown = ("seconds", "cpu_seconds", "peak_process_mb", "peak_tree_mb")
        medians = {what: case.median(what) for what in shown} if passes else {}
        if case.mode == "throughput" and passes:
            medians["samples_per_second"] = case.median("rate")
        measured.append(
            {
                "mode": case.mode,
                "name": case.name,
                "problem": case.problem,
                "median": medians,
                "passes": passes,
            }
        )
    content = {
        "machine": about,
        "passes": options.passes,
        "quick": options.quick,
        "promises": [asdict(verdict) for verdict in found],
        "measured": measured,
        "beside_busy_processes": beside,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="fedekd against a bare PyTorch loop, Flower and pfl-research")
    parser.add_argument("--passes", type=int, help="interleaved passes (default 5; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="tiny job: shows that the harness works, no more")
    parser.add_argument("--no-rivals", dest="rivals", action="store_false", help="without Flower and pfl-research")
    parser.add_argument("--bf16", choices=("auto", "always", "never"), default="auto")
    parser.add_argument("--cores", type=int, default=2, help="CPU cores that all sides are held to (default 2)")
    parser.add_argument("--only", help="only the cases whose mode or name contains this")
    parser.add_argument("--out", type=Path, help="default benchmarks/results/cpu.json; with --quick or --only none")
    options = parser.parse_args()
    options.passes = options.passes or (1 if options.quick else 5)
    if options.out is None and not options.quick and not options.only:
        options.out = HERE / "results" / "cpu.json"

    console = Console() if sys.stdout.isatty() else Console(width=120)
    available = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, available[: options.cores])
    about = machine(min(options.cores, len(available)))
    console.print(f"{about['cpu']}, {about['cores_used']} of {about['cores']} cores, torch {about['torch']}")
    if about["load_at_start"] > 0.5:
        console.print(f"[yellow]load average {about['load_at_start']}: the machine is not quiet, timings are unsafe")
    for folder in (HERE, ROOT / "src"):
        compileall.compile_dir(folder, quiet=2)

    has_bf16 = bool(about["bf16_instructions"])
    wants_bf16 = options.bf16 == "always" or (options.bf16 == "auto" and has_bf16)
    cases = make_cases(options, wants_bf16, console)
    for number in range(1, options.passes + 1):
        console.print(f"[bold]pass {number} of {options.passes}")
        for case in cases:
            if not options.only or options.only in f"{case.mode} {case.name}":
                perform(case, number, console)

    beside = []
    if not options.only or options.only == "busy":
        beside = busy.run(WORK, environment(), ROOT, options.passes, options.quick, console)
    throughput, jobs = ({c.name: c for c in cases if c.mode == mode} for mode in ("throughput", "job"))
    found = verdicts(throughput, jobs, has_bf16) + (judge_busy(beside) if beside else [])
    if options.quick:
        found = [replace(verdict, held=None) for verdict in found]
    if beside:
        busy.show(console, beside)
    show(console, throughput, jobs, found)
    problems = check_same_job(jobs, options.quick)
    problems += [f"{case.name}: {case.problem}" for case in cases if case.problem]
    for problem in problems:
        console.print(f"[red]{escape(problem)}")
    if options.out:
        save(options.out, about, options, cases, found, beside)
        console.print(f"[dim]written to {options.out}")
    return 1 if problems and not options.only else 0


if __name__ == "__main__":
    sys.exit(main())
