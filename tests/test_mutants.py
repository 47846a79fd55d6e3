"""The mutation tester: what it changes, what it leaves alone, and a small share of what `make mutants` does."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "mutants.py"
SPEC = importlib.util.spec_from_file_location("mutants_tool", TOOL)
mutants = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = mutants  # dataclasses look their module up
SPEC.loader.exec_module(mutants)


def changes(source: str) -> set[tuple[str, str]]:
    return {(m.before, m.after) for m in mutants.mutants_of("file.py", source)}


def contents(folder: Path) -> dict[str, str]:
    """Every file that git would see, with what is in it; other tests may write bytecode at the same time."""
    paths = [p for p in folder.rglob("*") if p.is_file() and not {"__pycache__", ".git"} & set(p.parts)]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def tool(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, arguments)], capture_output=True, text=True, timeout=600
    )


# What is changed


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a + b", {"x = a - b"}),
        ("x = a * b", {"x = a / b"}),
        ("x **= b", {"x *= b"}),
        ("x = a < b", {"x = a <= b", "x = a >= b"}),
        ("x = a is None", {"x = a is not None"}),
        ("x = a and b", {"x = a or b"}),
        ("x = not a", {"x = a"}),
        ("x = -a", {"x = a"}),
        ("x = 2", {"x = 3", "x = 1"}),
        ("x = 0", {"x = 1"}),
        ("x = a.sum(-1)", {"x = a.mean(-1)", "x = a.sum(-2)"}),
        ("x = 0.5", {"x = 1.0", "x = 0.25"}),
        ("x = True", {"x = False"}),
        ("x = max(a, b)", {"x = min(a, b)"}),
        ("x = a.mean()", {"x = a.sum()"}),
        ("x = np.min(a)", {"x = np.max(a)"}),
        ("x = a.detach()", {"x = a"}),
        ("x = a if b else c", {"x = a if not b else c"}),
        ("def f():\n    return a['private']", {"return a['proxy']"}),
    ],
)
def test_each_kind_of_change(source, expected):
    assert {after for _, after in changes(source)} == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""Adds 1 + 1, at most 2"""',
        "def f(a: Literal[1] | None) -> tuple[int, Literal[2]]:\n    'Not 3'\n    return a",
        "x: Literal[1]",
        "if TYPE_CHECKING:\n    Tree = 1 + 2",
        "if a:\n    raise ValueError(f'more than {1 + 2}', 3)".replace("if a:\n    ", ""),
        "raise NotImplementedError(1)",
        "x = f'{a + 1}'",
        "Step = Train | Exchange",
        "name: ClassVar[str] = 'private'",
        "roles = ('private', 'proxy')",
        "@dataclass(frozen=True)\nclass A:\n    pass",
        "zip(a, b, strict=True)",
        "from a import b",
    ],
)
def test_what_cannot_matter_is_left_alone(source):
    assert changes(source) == set()


def test_a_mutant_says_where_it_is_and_differs_from_the_file_in_that_place_only():
    source = "def f(a, b):\n    c = a * 2\n    return c - b\n"
    found = mutants.mutants_of("file.py", source)
    assert [str(m) for m in found] == [
        "file.py:2: c = a * 2 -> c = a / 2",
        "file.py:2: c = a * 2 -> c = a * 3",
        "file.py:2: c = a * 2 -> c = a * 1",
        "file.py:3: return c - b -> return c + b",
    ]
    assert found[3].source == "def f(a, b):\n    c = a * 2\n    return c + b"
    assert len({m.source for m in found}) == 4


def test_files_get_their_share_and_the_seed_decides():
    every = {
        name: mutants.mutants_of(name, "\n".join(f"x{i} = a + b" for i in range(n)))
        for name, n in (("a", 30), ("b", 10))
    }
    picked = mutants.chosen(every, 20, seed=1)
    assert [sum(m.file == name for m in picked) for name in "ab"] == [15, 5]
    assert picked == mutants.chosen(every, 20, seed=1) != mutants.chosen(every, 20, seed=2)
    assert len(set(mutants.chosen(every, 500, seed=1))) == 40


def test_every_file_has_tests():
    files = mutants.files_of(ROOT)
    assert {"src/fedekd/gate.py", "src/fedekd/exchange.py", "src/fedekd/methods/fedprox.py"} <= set(files)
    assert all(mutants.tests_of(file, ROOT) for file in files)
    assert mutants.tests_of("src/fedekd/methods/feddyn.py", ROOT)[0] == "tests/methods/test_feddyn.py"
    assert mutants.files_of(ROOT, ["gate.py"]) == ["src/fedekd/gate.py"]
    assert mutants.files_of(ROOT, ["methods/fml.py"]) == ["src/fedekd/methods/fml.py"]
    with pytest.raises(SystemExit, match=r"gates\.py is none of the files"):
        mutants.files_of(ROOT, ["gates.py"])


# What becomes of mutants

TOY = """
def double(x):
    return x * 2

def same(x):
    return max(x, x)

def down(x):
    while x > 0:
        x -= 1
    return x
"""
TOY_TESTS = """
from fedekd import gate

def test_toy():
    assert gate.double(3) == 6
    assert gate.same(3) == 3
    assert gate.down(2) == 0
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A project with one wrong-able function, one where min and max are the same, and one that may never end."""
    root = tmp_path_factory.mktemp("toy")
    for name, text in (("src/fedekd/__init__.py", ""), ("src/fedekd/gate.py", TOY), ("tests/test_gate.py", TOY_TESTS)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    before = contents(root)
    out = root.parent / "toy.json"
    ended = tool("--root", root, "--out", out, "--patience", 2)
    tried = {m["after"]: m for m in json.loads(out.read_text())["mutants"]}
    return ended, tried, before, root


def test_a_wrong_mutant_is_killed_an_equal_one_survives_and_one_without_an_end_is_stopped(toy):
    ended, tried, _, _ = toy
    for wrong in ("return x / 2", "return x * 3", "return x * 1"):
        assert tried[wrong]["outcome"] == "killed"
    assert tried["return min(x, x)"]["outcome"] == "survived"
    assert tried["x += 1"]["outcome"] == "timeout"
    assert "src/fedekd/gate.py:6: return max(x, x) -> return min(x, x)" in ended.stdout
    assert f"{len(tried)} mutants: " in ended.stdout


def test_a_share_below_the_wanted_one_is_an_error(toy):
    ended, tried, _, _ = toy
    dead = 100 * sum(m["outcome"] != "survived" for m in tried.values()) / len(tried)
    assert f"{dead:.1f} %" in ended.stdout
    assert ended.returncode == (dead < 90)


def test_nothing_is_written_beside_the_sources(toy):
    _, _, before, root = toy
    assert contents(root) == before
    assert not list(root.rglob("__pycache__"))
    assert not list(root.rglob(".*"))


def test_tests_that_fail_as_they_are_stop_it(toy, tmp_path):
    root = toy[3]
    for name in contents(root):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((root / name).read_text().replace("== 6", "== 7"))
    ended = tool("--root", tmp_path)
    assert ended.returncode == 1
    assert "tests/test_gate.py fail as they are" in ended.stderr


def test_a_small_share_of_all_mutants_is_killed(tmp_path):
    """Twelve of the files whose tests are quick, another twelve than those of `make mutants` by the seed."""
    folders = [ROOT / name for name in ("src", "tests", "tools")]
    before = [contents(folder) for folder in folders]
    out = tmp_path / "out.json"
    ended = tool(
        "--only", "gate.py", "tasks.py", "metrics.py", "--count", 12, "--seed", 1, "--out", out, "--at-least", 80
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(json.loads(out.read_text())["mutants"]) == 12
    assert [contents(folder) for folder in folders] == before
