"""The documentation does what it says: every block of code in it runs, and the site builds and needs no net.

Blocks of a page run in order in one empty folder. ``python`` blocks of a page share their names; a block with a title
becomes a file of that name; each line of an ``sh`` block is a fedekd command. A block that cannot run here follows a
line ``<!-- not run: WHY -->``, and NOT_RUN counts those.
"""

from __future__ import annotations

import argparse
import html
import inspect
import itertools
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedekd import __version__, api, cli, methods

HOME = Path(__file__).resolve().parents[1]
PAGES = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").glob("*.md"))]
NOT_RUN: dict[str, int] = {"README.md": 1, "deployment.md": 6}
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n+)?```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    title: str | None
    why_not: str | None


def blocks(page: Path) -> list[Block]:
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Block(f["language"], f["code"], f["title"], f["why"]) for f in found]


def commands(block: Block) -> Iterator[list[str]]:
    for line in block.code.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_fence_is_understood(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("```") == 2 * len(blocks(page))
    for block in blocks(page):
        known = block.language in ("python", "sh") or block.title or block.why_not
        assert known or "fedekd" not in block.code, f"a block of {page.name} is neither run nor marked:\n{block.code}"
    assert sum(block.why_not is not None for block in blocks(page)) == NOT_RUN.get(page.name, 0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_not_run_are_at_least_spelt_right(page: Path) -> None:
    for block in blocks(page):
        if block.why_not and block.language == "sh":
            for program, *words in commands(block):
                assert program == "fedekd"
                given, rest = cli.make_parser().parse_known_args(words)
                assert given.act
                assert not rest


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(methods, "_REGISTRY", methods.known())  # what a page registers is forgotten after it
    names: dict[str, object] = {"__name__": "__main__"}
    known = set(sys.modules)
    try:
        for block in blocks(page):
            if block.why_not:
                continue
            if block.title:
                Path(block.title).write_text(block.code)
            elif block.language == "python":
                exec(compile(block.code, f"{page.name}: {block.code.splitlines()[0]}", "exec"), names)
            elif block.language == "sh":
                for program, *words in commands(block):
                    assert program == "fedekd", f"only fedekd commands are run, not {program}"
                    status = cli.main(words)
                    assert status == 0, f"fedekd {' '.join(words)}: {capsys.readouterr().err}"
    finally:
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]


# What the first pages claim


def test_the_first_page_says_what_the_records_say() -> None:
    """The counts on the first page are the sums of the table in reproduction.md, which is made from the records."""
    lines = (HOME / "docs" / "reproduction.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("| cell | method | clearly harmed | clearly helped | equivalent | undecided |")
    sums: dict[str, list[int]] = {}
    for line in itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :]):
        _, cell, method, *counts, _ = line.split("|")
        if "Retin" in cell:
            continue  # a regression of few rows
        so_far = sums.setdefault(method.strip(), [0] * len(counts))
        sums[method.strip()] = [a + int(b) for a, b in zip(so_far, counts, strict=True)]
    first = (HOME / "docs" / "index.md").read_text(encoding="utf-8")
    for title, method in (("FedAvg", "fedavg"), ("FML", "fml"), ("FedeKD", "fedekd")):
        assert f"| {title} | {' | '.join(map(str, sums[method]))} |" in first
    assert f"{sum(sums['fedekd'])} comparisons" in first
    readme = (HOME / "README.md").read_text(encoding="utf-8")
    faq = (HOME / "docs" / "faq.md").read_text(encoding="utf-8")
    for count in (sum(sums["fedekd"]), sums["fedavg"][0], sums["fedekd"][0]):
        assert all(re.search(rf"\b{count}\b", text) for text in (readme, faq))
    joining = (HOME / "docs" / "joining.md").read_text(encoding="utf-8")
    few = re.search(r"(\d+) of (\d+) client-runs\s+were\s+clearly\s+helped and (\d+) clearly harmed", joining)
    assert few
    clearly = r"clearly helped\s+(\d+) of (\d+)\s+client-runs.*?clearly\s+harmed\s+(\d+)"
    for text in (first, readme, (HOME / "docs" / "choosing.md").read_text(encoding="utf-8")):
        said = re.search(clearly, text, re.DOTALL)
        assert said
        assert said.groups() == few.groups()
    twin = re.search(
        r"the last round,\s+(\d+) of \d+\s+client-runs are clearly helped and (\d+)\s+clearly harmed",
        joining,
    )
    assert twin
    assert f"it clearly helped {twin[1]} and clearly harmed {twin[2]}." in " ".join(readme.split())
    for text in (first, (HOME / "docs" / "choosing.md").read_text(encoding="utf-8")):
        assert re.search(rf"\b{twin[1]} and {twin[2]}\b", text)
    ahead = re.search(r"clearly ahead of all of them in (\d+); a rival is clearly ahead of it in none", joining)
    assert ahead
    assert "but neither was clearly ahead." in " ".join(readme.split())
    assert f"clearly ahead of all of them in {ahead[1]}." in " ".join(readme.split())
    highest = re.search(r"higher mean than every rival in (\d+) of (\d+)", joining)
    assert highest
    assert f"higher mean than every rival in {highest[1]} of the {highest[2]} settings" in " ".join(readme.split())
    apart = [line.split(" | ") for line in joining.splitlines() if re.match(r"\| \S+ α=.* of \d+ \|$", line)]
    spans = {
        (many, column): [float(row[column].split(" ")[0]) for row in apart if ("all rows" in row[0]) == many]
        for many in (False, True)
        for column in (4, 5)  # federation, gain
    }
    few_gain, few_added, all_gain, all_added = (
        f"{min(some):.1f} to {max(some):.1f}"
        for some in (spans[key] for key in ((False, 5), (False, 4), (True, 5), (True, 4)))
    )
    one_line = " ".join(readme.split())
    assert f"it gained {few_gain} points over the best alone, and the exchange itself added {few_added}." in one_line
    assert f"With all rows it gained {all_gain}, and the exchange added {all_added}." in one_line
    hospitals = re.search(r"-near` has a Δ of \+(\S+) .*?federation\s+\+(\S+) ", joining, re.DOTALL)
    assert hospitals
    for text in (one_line, " ".join(first.split())):
        assert f"gained {hospitals[1]} points over local training" in text
        assert f"of which the exchange added {hospitals[2]}, which may be chance" in text
    found = re.search(r"better than plain Local on (\d of \d) datasets", lines[2])
    assert found
    assert all(f"{found[1]} datasets" in text for text in (first, readme))


def test_the_citation_is_of_this_version() -> None:
    cited = (HOME / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in cited
    assert f"## {__version__}" in (HOME / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_reference_has_words_for_everything() -> None:
    """A function's first parameter is what its first sentence is about; the others are named."""
    lacking = set()
    for name in re.findall(r"^::: (\S+)$", (HOME / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE):
        one = pkgutil.resolve_name(name)
        words = one.__doc__ or ""
        if not words or words.startswith(f"{name.rpartition('.')[2]}("):  # as dataclasses without words begin
            lacking.add(name)
        if inspect.isfunction(one):
            others = [*inspect.signature(one).parameters.values()][1:]
            named = [other.name for other in others if other.kind != other.VAR_KEYWORD]
            lacking |= {f"{name}: {other}" for other in named if not re.search(rf"\b{other}\b", words)}
    assert not lacking


# The site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="pip install 'fedekd[docs]' to build the documentation")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=HOME, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_loads_nothing_from_the_net(site: Path) -> None:
    pages = list(site.glob("**/*.html"))
    assert len(pages) > 10
    for page in pages:
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\bsrc=\"([^\"]+)", page.read_text())
        loaded += re.findall(r"<link[^>]*rel=\"(?:stylesheet|preconnect|icon)\"[^>]*href=\"([^\"]+)", page.read_text())
        assert loaded
        assert not [url for url in loaded if re.match(r"(https?:)?//", url)], page
    for sheet in site.glob("**/*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def test_the_reference_is_made_from_the_docstrings(site: Path) -> None:
    page = html.unescape((site / "api.html").read_text())
    for name in ("fedekd.api.run", "fedekd.verdicts.judge", "fedekd.gate.trust", "fedekd.methods.base.Method.steps"):
        assert f'id="{name}"' in page
    assert (api.run.__doc__ or "").splitlines()[0] in page


def test_formulas_need_no_script(site: Path) -> None:
    page = (site / "method.html").read_text()
    assert page.count("<math") >= 6
    assert "arithmatex" not in page
    assert "round.svg" in page


def test_the_reference_has_every_command_and_option(site: Path) -> None:
    page = html.unescape((site / "commands.html").read_text())

    def walk(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for sub in action.choices.values():
                    yield sub
                    yield from walk(sub)

    parsers = list(walk(cli.make_parser()))
    assert len(parsers) > 8
    for parser in parsers:
        if not parser.get_default("act"):
            continue
        start = page.index(f"{parser.prog}<a")
        section = page[start : page.find("<h2", start)]
        for action in parser._actions:
            if action.dest != "help":
                assert (action.option_strings or [str(action.metavar)])[-1] in section, (parser.prog, action.dest)
