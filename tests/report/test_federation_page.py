"""What `fedekd report` and `fedekd watch` make of the folders of a real federation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_page import Outline, page_data

from fedekd.cli import main

REPORT = {
    "method": "fedekd", "complete": True, "rounds": 3, "bytes_up": 1_234_000, "bytes_down": 999, "seconds": 41.6,
    "sites": [
        {"name": "north", "n": 600, "metric": "accuracy", "local": 0.9, "value": 0.925, "delta": 0.025, "low": 0.01,
         "high": 0.04},
        {"name": "south", "answered": True, "metric": "accuracy", "delta": -0.01},
        {"name": "<b>west", "answered": True},
        {"name": "east", "answered": False},
    ],
    "privacy": {"south": {"epsilon": 7.99, "delta": 1e-5, "clip": 1.0, "guarantee": "the sent models, end to end"}},
    "compression": "int8", "combine": "median", "counted": [["north", "south"]],
    "refused": [{"visit": 1, "site": "north", "reason": "fc.bias has NaN or infinite numbers"}],
}  # fmt: skip
OWN = {
    "name": "north", "method": "fedekd", "metric": "accuracy", "local": 0.9, "value": 0.925, "delta": 0.025,
    "n_train": 480, "n_val": 60, "n_test": 60, "privacy": None,
}  # fmt: skip


def put(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path.parent


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A server's folder, after the end, whose state is not where it mostly is."""
    keys = ("ca", "certificate", "key", "nodes")
    text = "".join(f'{key} = "{key}"\n' for key in keys) + 'address = "a:1"\nstate = "elsewhere"\n'
    put(tmp_path / "fed" / "elsewhere" / "report.json", REPORT)
    return put(tmp_path / "fed" / "server.toml", text)


def test_a_federations_page_says_what_sites_share(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(server)]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == server / "elsewhere" / "report.html"
    text = path.read_text()
    words = " ".join(Outline(text).words)
    for said in (
        "fedekd: 0 clearly harmed, 1 clearly helped, 1 undecided, of the 2 sites that share their Δ",
        "No Δ is known of 2 sites", "+2.5", "−1.0",
        "north 600 90.0 92.5 +2.5", "south kept kept kept −1.0", "<b>west kept kept kept kept",
        "east no answer no answer no answer no answer", "1.2 MB", "999 B", "42 s", "int8", "median",
        "visit 2, north fc.bias has NaN", "south epsilon 7.99 at delta 1e-05",
    ):  # fmt: skip
        assert said in words, said
    chart = page_data(text)["charts"]["deltas"]
    rows = [dict(zip(chart["fields"], row, strict=True)) for row in chart["rows"][""]]
    assert [(row["site"], row["delta"], row["said"], row["effect"]) for row in rows] == [
        ("south", -1.0, "−1.0", "undecided"), ("north", 2.5, "+2.5", "helped"),
        ("<b>west", None, "kept", "unknown"), ("east", None, "no answer", "unknown"),
    ]  # fmt: skip


def test_the_state_alone_is_enough_and_the_page_may_go_elsewhere(server: Path, tmp_path: Path) -> None:
    assert main(["report", str(server / "elsewhere"), "--out", str(tmp_path / "page.html")]) == 0
    assert "0 clearly harmed, 1 clearly helped" in (tmp_path / "page.html").read_text()
    assert not (server / "elsewhere" / "report.html").exists()


def test_nobody_shares_anything(server: Path) -> None:
    put(server / "elsewhere" / "report.json", {**REPORT, "sites": [{"name": "north"}], "privacy": None, "refused": []})
    assert main(["report", str(server)]) == 0
    text = (server / "elsewhere" / "report.html").read_text()
    assert "No site shares its Δ" in text
    assert "every answer that came counted" in text
    assert page_data(text)["charts"] == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has not begun; its log is"),
        ({**REPORT, "complete": False, "sites": [], "error": "no such column"}, "stopped: no such column"),
        ("{", "cannot read"),
    ],
)
def test_what_is_not_there_is_said(
    server: Path, capsys: pytest.CaptureFixture[str], content: object, message: str
) -> None:
    report = server / "elsewhere" / "report.json"
    report.unlink() if content is None else put(report, content)
    assert main(["report", str(server)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "fedekd run" not in error, "a simulation has no business in a server's state"
    assert error.count("\n") == 1


@pytest.mark.parametrize("given", ["site/state/abc", "site/state", "site"])
def test_a_sites_own_report_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str) -> None:
    put(tmp_path / "site" / "state" / "abc" / "report.json", OWN)
    put(tmp_path / "site" / "state" / "flower" / "supernode.log", "")
    keys = {"name": "north", "server": "a:1", "ca": "c", "key": "k", "state": "state", "data": "digits"}
    put(tmp_path / "site" / "site.toml", "".join(f'{key} = "{value}"\n' for key, value in keys.items()))
    assert main(["report", str(tmp_path / given)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "north, fedekd"
    assert lines[1] == "  accuracy in % 90.0 alone, 92.5 with the federation, Δ +2.5 points, 480 training rows"
    assert lines[-1].endswith("site/state/abc/report.json")
    assert not list(tmp_path.rglob("*.html"))


def test_what_a_site_should_do_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = {"state": "helped", "recommendation": "join", "reason": "it is clearly better"}
    own = {**OWN, "recipe": 0.01, "federation": 0.015, "gain": 0.02, "verdict": verdict}
    put(tmp_path / "state" / "abc" / "report.json", own)
    put(tmp_path / "state" / "flower" / "supernode.log", "")
    assert main(["report", str(tmp_path / "state")]) == 0
    first, advice, numbers, parts, path = capsys.readouterr().out.splitlines()
    assert (first, advice) == ("north, fedekd", "  join: it is clearly better")
    assert "90.0 alone, 92.5 with the federation" in numbers
    assert parts == "  recipe +1.0, federation +1.5, gain +2.0"
    assert path.strip().endswith("report.json")


def test_a_site_whose_federation_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "state" / "flower" / "supernode.log", "")
    assert main(["report", str(tmp_path / "state")]) == 2
    assert "is complete yet; its log is" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["fed", "fed/elsewhere", "site/state/abc"])
@pytest.mark.parametrize("once", [[], ["--once"]])
def test_watching_a_federation_does_not_wait(
    server: Path, capsys: pytest.CaptureFixture[str], given: str, once: list[str]
) -> None:
    put(server.parent / "site" / "state" / "abc" / "report.json", OWN)
    put(server.parent / "site" / "state" / "log", "")
    assert main(["watch", str(server.parent / given), *once]) == 2
    error = capsys.readouterr().err
    assert "belongs to a federation of real sites: `fedekd server status`" in error
    assert ("site/state/log`" if "site" in given else "fed/elsewhere/log`") in error
    assert error.count("\n") == 1


def test_what_is_drawn_as_clear_is_what_the_headline_counts(server: Path) -> None:
    """One interval of twenty leaves out zero, which is chance: no mark says otherwise."""
    usual = {"metric": "accuracy", "delta": -0.1, "low": -0.2, "high": -0.01}
    sites = [{"name": "north", **usual}, *({**usual, "name": f"{k}", "high": 0.01} for k in range(19))]
    put(server / "elsewhere" / "report.json", {**REPORT, "sites": sites})
    assert main(["report", str(server)]) == 0
    text = (server / "elsewhere" / "report.html").read_text()
    assert "0 clearly harmed, 0 clearly helped, 20 undecided" in text
    chart = page_data(text)["charts"]["deltas"]
    assert {row[chart["fields"].index("effect")] for row in chart["rows"][""]} == {"undecided"}
    assert 'class="harmed"' not in text
