"""Are the tests strict? Plant small faults in the equations, one at a time, and count those that a test notices.

    python tools/mutants.py                                     # 500 faults over the methods and what they compute with
    python tools/mutants.py --only gate.py fedprox.py --count 80 --seed 3 --out faults.json

A fault ("mutant") changes one operator, comparison, number, condition, role or reduction. It lives in the memory of a
forked child, which runs the tests of the changed file only; the work tree is never written. A mutant that no test
notices is printed: either a test is missing, or the change is none (an equivalent mutant).
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch; and a child of fork has no other threads

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/fedekd"
PLACES = ("gate.py", "exchange.py", "metrics.py", "tasks.py", "conformal.py", "methods/*.py")

# By file under the package: its tests, under tests/, the fastest first. Other methods: see `tests_of`.
TESTS = {
    "gate.py": ("test_gate.py", "test_gate_theory.py"),
    "exchange.py": ("test_exchange.py",),
    "metrics.py": ("test_metrics.py",),
    "tasks.py": ("test_tasks.py",),
    "conformal.py": ("test_conformal.py",),
    "methods/__init__.py": ("methods/test_registry.py",),
    "methods/fedtype.py": ("methods/test_fedtype.py", "methods/test_registry.py", "methods/test_equalities.py"),
    "methods/fedavg.py": ("methods/test_local.py", "methods/test_fedprox.py", "methods/test_registry.py"),
    "methods/base.py": ("methods/test_base.py", "methods/test_registry.py", "methods/test_fedtype.py"),
    "methods/batch.py": ("methods/test_base.py", "methods/test_twins.py", "methods/test_fedtype.py"),
}
OF_EVERY_METHOD = ("methods/test_registry.py",)

# Imported once, before any child: what the package and its tests need, but nothing of the package.
WARM = (
    "torch",
    "torch.func",
    "torch.testing",
    "torch._dynamo",
    "numpy",
    "scipy.stats",
    "sklearn.datasets",
    "sklearn.linear_model",
    "sklearn.cluster",
    "pandas",
    "threadpoolctl",
)
PATIENCE = 5.0  # a child may take this many times what the tests take unchanged, or --patience where that is more

OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
_PAIRS = ("min max", "amin amax", "minimum maximum", "argmin argmax", "any all", "mean sum", "ceil floor", "std var")
SWAPPED = {a: b for pair in _PAIRS for a, b in (pair.split(), reversed(pair.split()))}
SWAPPED |= {"square": "abs", "relu": "abs"}
BUILTIN = {"min": "max", "max": "min", "any": "all", "all": "any", "sum": "max"}
DROPPED = {"detach", "clone", "sqrt", "exp", "clamp", "round", "relu"}  # x.detach() becomes x
ROLES = {"private": "proxy", "proxy": "private"}


@dataclass(frozen=True)
class Mutant:
    file: str  # under the project's root
    line: int
    before: str
    after: str
    source: str  # of the whole changed module

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Tried:
    mutant: Mutant
    outcome: str  # killed, timeout or survived
    seconds: float


# Making mutants


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Every mutant of one file, each once, none equal to the file."""
    tree = ast.parse(source)
    seen, found = {ast.unparse(tree)}, []
    for path, field, place, child, other in _changes(tree, []):
        shown = _shown([*path, child])
        before = ast.unparse(shown)
        _put(path[-1], field, place, other)
        changed = ast.unparse(tree)
        if changed not in seen:
            seen.add(changed)
            line = next(getattr(node, "lineno", 0) for node in (child, *reversed(path)) if hasattr(node, "lineno"))
            after = ast.unparse(other if shown is child else shown)
            found.append(Mutant(file, line, before, after, changed))
        _put(path[-1], field, place, child)
    return found


def _put(parent: ast.AST, field: str, place: int | None, child: ast.AST) -> None:
    if place is None:
        setattr(parent, field, child)
    else:
        getattr(parent, field)[place] = child


def _shown(path: Sequence[ast.AST], width: int = 90) -> ast.AST:
    """The largest part around the change that fits in a line; operators alone say nothing."""
    nodes = [
        n for n in path if isinstance(n, (ast.expr, ast.keyword, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return))
    ]
    return next((n for n in nodes if len(text := ast.unparse(n)) <= width and "\n" not in text), nodes[-1])


def _changes(node: ast.AST, above: list[ast.AST]) -> Iterator[tuple[list[ast.AST], str, int | None, ast.AST, ast.AST]]:
    """(path to the parent, its field, place in that field, the child there, what may stand in its place)."""
    path = [*above, node]
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for place, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if not isinstance(child, ast.AST) or _idle(child, node, field):
                continue
            for other in _others(child, path, field):
                yield path, field, place, child, other
            yield from _changes(child, path)


def _idle(node: ast.AST, parent: ast.AST, field: str) -> bool:
    """What no test should have to notice: messages, types, the zip's own check, the dataclass decorator."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return True
    if field == "decorator_list" and ast.unparse(node).startswith("dataclass"):
        return True
    if isinstance(node, ast.AnnAssign) and "ClassVar[str]" in ast.unparse(node.annotation):
        return True
    types = isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr)
    return types and isinstance(parent, ast.Module)  # Step = Train | Remember | Exchange


def _others(node: ast.AST, path: list[ast.AST], field: str) -> Iterator[ast.AST]:
    parent = path[-1]
    if type(node) in OPERATORS:
        yield from (other() for other in OPERATORS[type(node)])
    elif isinstance(node, ast.Constant):
        yield from (ast.Constant(value) for value in _other_values(node.value, path))
    elif isinstance(node, ast.UnaryOp):
        axis = isinstance(parent, (ast.Call, ast.keyword, ast.Subscript, ast.Tuple)) and ast.unparse(node) == "-1"
        if not axis:  # the last axis of a matrix is axis 1; -2 is tried in any case
            yield node.operand  # -x, not x and ~x become x
    elif isinstance(node, ast.Name) and field == "func" and node.id in BUILTIN:
        yield ast.Name(BUILTIN[node.id], ast.Load())
    elif isinstance(node, ast.Attribute) and node.attr in SWAPPED and ast.unparse(node.value) not in ("batch", "self"):
        yield ast.Attribute(node.value, SWAPPED[node.attr], ast.Load())
    elif isinstance(node, ast.keyword) and node.arg in ("min", "max"):
        yield ast.keyword(SWAPPED[node.arg], node.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in DROPPED:
        module = isinstance(node.func.value, ast.Name) and node.func.value.id in ("np", "torch", "math")
        if not module:
            yield node.func.value
    if field == "test" and isinstance(parent, (ast.If, ast.IfExp, ast.While)) and not isinstance(node, ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), copy.deepcopy(node))


def _other_values(value: object, path: list[ast.AST]) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
        minus = isinstance(path[-1], ast.UnaryOp)  # axis -1 and axis 0 are one for a tensor with one axis
        if value > 1 or (value == 1 and not minus):
            yield value - 1
    elif isinstance(value, float):
        yield from (value * 2, value / 2) if value else (1.0,)
    elif isinstance(value, str) and value in ROLES and any(isinstance(n, ast.FunctionDef) for n in path):
        yield ROLES[value]


def files_of(root: Path, only: Sequence[str] = ()) -> list[str]:
    """The files to change, by their path under the root; ``only`` keeps those that end so."""
    base = root / PACKAGE
    found = sorted(path.relative_to(root).as_posix() for place in PLACES for path in base.glob(place))
    unknown = [name for name in only if not any(_ends(path, name) for path in found)]
    if unknown:
        raise SystemExit(f"{unknown[0]} is none of the files to change: {', '.join(found)}")
    return [path for path in found if not only or any(_ends(path, name) for name in only)]


def _ends(path: str, name: str) -> bool:
    return f"/{path}".endswith(f"/{name.removeprefix('./')}")


def tests_of(file: str, root: Path) -> tuple[str, ...]:
    """The tests of a file, under the root, those that exist."""
    inner = file.removeprefix(f"{PACKAGE}/")
    name = Path(inner).stem
    own = TESTS.get(inner)
    if own is None:
        own = (f"methods/test_{name}.py", *OF_EVERY_METHOD) if inner.startswith("methods/") else (f"test_{name}.py",)
    found = tuple(f"tests/{test}" for test in own if (root / "tests" / test).exists())
    if not found:
        raise SystemExit(f"{file} has no tests: none of {', '.join(own)} is in tests/")
    return found


def chosen(every: dict[str, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """``count`` mutants, as many of each file as it has its share of all, in a random order."""
    draw = random.Random(seed)
    total = sum(map(len, every.values()))
    count = min(count, total)
    exact = {file: count * len(found) / total for file, found in every.items()}
    shares = {file: int(share) for file, share in exact.items()}
    by_rest = sorted(every, key=lambda file: shares[file] - exact[file])
    for file in by_rest[: count - sum(shares.values())]:
        shares[file] += 1
    picked = [mutant for file, found in every.items() for mutant in draw.sample(found, shares[file])]
    draw.shuffle(picked)
    return picked


# Running tests in a child


class _Planted(importlib.machinery.SourceFileLoader):
    """Finds and loads one module from a text in place of its file."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        folder = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(name, self.path, loader=self, submodule_search_locations=folder)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec", dont_inherit=True)


def module_name(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts[1:]).removesuffix(".__init__")


def warm_up(tests: Sequence[Path]) -> None:
    """Import what the tests will need; every child has it from here."""
    text = "\n".join(path.read_text() for path in tests)
    names = WARM if "torch" in text else ()
    for name in ("pytest", "hypothesis", *names):
        importlib.import_module(name)
    if "torch" in names:
        importlib.import_module("torch").set_num_threads(1)
    gc.collect()
    gc.freeze()  # pytest collects garbage twice: without this every child would go through all of torch
    if present := [name for name in sys.modules if name.split(".")[0] == "fedekd"]:
        raise RuntimeError(f"{present[0]} is loaded already: no child could load another")


def outcome(root: Path, tests: Sequence[str], mutant: Mutant | None, patience: float, scratch: Path) -> str:
    """killed, timeout or survived: the tests in a forked child of this process, with the mutant in its place."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside idle threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            code = _run_tests(root, tests, mutant, scratch)
        finally:
            os._exit(code)
    os.close(writer)
    try:
        ended, _, _ = select.select([reader], [], [], patience)  # its end of the pipe closes with it
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(reader)
    if not ended:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return "timeout" if not ended else "survived" if status == 0 else "killed"


def _run_tests(root: Path, tests: Sequence[str], mutant: Mutant | None, scratch: Path) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet = os.open(scratch / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.chdir(root)
    sys.pycache_prefix = str(scratch / "bytecode")
    sys.path.insert(0, str(root / "src"))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(scratch / "hypothesis")
    import pytest
    from hypothesis import HealthCheck, Phase, settings

    # The same examples for every mutant, and none made smaller: that one fails is enough.
    settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutants")
    if mutant is not None:
        planted = _Planted(module_name(mutant.file), str(root / mutant.file), mutant.source)
        sys.meta_path.insert(0, planted)
    where = ["--rootdir", str(root), "--basetemp", str(scratch / "pytest")]
    return int(pytest.main(["-x", "-q", "--tb=short", "-p", "no:cacheprovider", *where, *tests]))


# Counting


def percent(tried: Sequence[Tried]) -> float:
    return 100 * sum(t.outcome != "survived" for t in tried) / len(tried) if tried else 100.0


def report(tried: Sequence[Tried]) -> str:
    lines = []
    for file in sorted({t.mutant.file for t in tried}):
        here = [t for t in tried if t.mutant.file == file]
        dead = sum(t.outcome != "survived" for t in here)
        lines.append(f"{file:34} {dead:4} of {len(here):4} killed  {percent(here):5.1f} %")
    survivors = sorted((t.mutant for t in tried if t.outcome == "survived"), key=lambda m: (m.file, m.line))
    lines += ["", "survived:", *(f"  {mutant}" for mutant in survivors)] if survivors else []
    count = Counter(t.outcome for t in tried)
    said = f"{count['killed']} killed, {count['timeout']} timed out, {count['survived']} survived"
    return "\n".join([*lines, "", f"{len(tried)} mutants: {said}: {percent(tried):.1f} %"])


def try_all(root: Path, mutants: Sequence[Mutant], limit: float, least: float, tried: list[Tried]) -> None:
    """Fill ``tried`` as results come, so that whoever interrupts has them."""
    started, patience = time.monotonic(), {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Path(folder)
        for tests in dict.fromkeys(tests_of(m.file, root) for m in mutants):
            before = time.monotonic()
            if outcome(root, tests, None, 600, scratch) != "survived":
                said = (scratch / "output.txt").read_text(errors="replace")
                raise SystemExit(f"{said}\n{' '.join(tests)} fail as they are; mend them first")
            patience[tests] = max(least, PATIENCE * (time.monotonic() - before))
        for number, mutant in enumerate(mutants, 1):
            before = time.monotonic()
            if before - started > limit:
                print(f"{limit:g} s are over after {number - 1} of {len(mutants)} mutants", file=sys.stderr)
                break
            tests = tests_of(mutant.file, root)
            tried.append(
                Tried(mutant, outcome(root, tests, mutant, patience[tests], scratch), time.monotonic() - before)
            )
            if tried[-1].outcome == "survived":
                print(f"\rsurvived: {mutant}", file=sys.stderr, flush=True)
            if sys.stderr.isatty():
                print(f"\r{number} of {len(mutants)}: {percent(tried):.1f} % killed ", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500, help="how many mutants, at most (500)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    parser.add_argument("--only", nargs="+", default=[], metavar="FILE", help="change these files only")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write every mutant and what became of it")
    parser.add_argument(
        "--time", type=float, default=float("inf"), metavar="SECONDS", help="begin no mutant after that"
    )
    parser.add_argument(
        "--at-least", type=float, default=90.0, metavar="PERCENT", help="else the exit status is 1 (90)"
    )
    parser.add_argument("--patience", type=float, default=30.0, metavar="SECONDS", help="a child may take so long (30)")
    parser.add_argument("--root", type=Path, default=ROOT, help="another project of the same layout")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    every = {file: mutants_of(file, (root / file).read_text()) for file in files_of(root, options.only)}
    every = {file: found for file, found in every.items() if found}
    tried: list[Tried] = []
    stopped = False
    picked = chosen(every, options.count, options.seed)
    used = {root / test for mutant in picked for test in tests_of(mutant.file, root)}
    warm_up([*used, *root.glob("tests/conftest.py")])
    for stop in (signal.SIGINT, signal.SIGTERM):  # the first also where a shell in the background ignores it
        signal.signal(stop, signal.default_int_handler)
    try:
        try_all(root, picked, options.time, options.patience, tried)
    except KeyboardInterrupt:
        stopped = True
        print("\ninterrupted", file=sys.stderr)
    print(report(tried))
    if options.out:
        rows = [{**asdict(t.mutant), "outcome": t.outcome, "seconds": round(t.seconds, 2)} for t in tried]
        told = [{key: value for key, value in row.items() if key != "source"} for row in rows]
        whole = {"seed": options.seed, "percent": round(percent(tried), 2), "mutants": told}
        options.out.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    return 130 if stopped else int(percent(tried) < options.at_least)


if __name__ == "__main__":
    sys.exit(main())
