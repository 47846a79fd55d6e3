"""What is shown while a run lasts."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from fedekd.report import progress
from fedekd.report.progress import Lines, Live, Watcher, watch
from fedekd.runs.observers import ClientTrained, Note, RunFinished, RunsPlanned, RunStarted

Make = Callable[..., Any]


def drive(observer: Watcher, record: Make) -> None:
    """Two runs of three rounds and two clients, the second resumed after its first round, and one kept."""
    observer.observe(RunsPlanned([("local", 0, 600), ("fedekd", 0, 600)], kept=1))
    for method, resumed in (("local", 0), ("fedekd", 1)):
        observer.observe(RunStarted(method, 0, 600, 3, resumed))
        for round in range(resumed, 3):
            for client in ("0", "1"):
                observer.observe(ClientTrained(round, client, 100))
        observer.observe(RunFinished(record(method), False))
    observer.observe(RunFinished(record("fedavg"), True))


def test_lines(record: Make, capsys: pytest.CaptureFixture[str]) -> None:
    drive(Lines(), record)
    out, err = capsys.readouterr()
    assert out == ""
    start, local, resumed, fedekd = err.splitlines()
    assert start == "training 2 runs; 1 kept from earlier"
    assert local.startswith("1/2 local, seed 0: mean accuracy 85.5 %, 12 s (about ")
    assert resumed == "fedekd, seed 0: goes on after round 1 of 3"
    assert fedekd == "2/2 fedekd, seed 0: Avg Δ +1.6 points, 12 s"


def test_lines_when_all_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    Lines().observe(RunsPlanned([], kept=3))
    assert capsys.readouterr().err == "nothing to train: 3 runs kept from earlier\n"


def test_loading_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with watch(doing="loading digits"):
        assert capsys.readouterr().err == "loading digits\n"
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Live(console, "loading digits") as live:
        live.progress.refresh()
        assert "loading digits" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_time_left_is_of_this_process_pace(record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier process did is done, but says nothing of the pace."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watcher = Watcher()
    watcher.observe(RunsPlanned([("fedekd", 0, 1000)], kept=2))
    watcher.observe(RunStarted("fedekd", 0, 1000, 10, 8))
    assert watcher.left() == ""
    for _ in range(2):
        watcher.observe(ClientTrained(8, "0", 50))
        now[0] += 1.0
    assert watcher.left() == "about 4.0 s left"


@pytest.mark.parametrize("width", [60, 160])
def test_the_bar_uses_the_width(record: Make, width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    with Live(console) as live:
        drive(live, record)
        live.progress.refresh()
    bar = max(console.file.getvalue().splitlines(), key=lambda line: line.count("━"))  # type: ignore[attr-defined]
    assert width - 30 < bar.count("━") < width


def test_a_long_run_is_heard_of(
    record: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    drive(Lines(), record)
    assert "local, seed 0: round 1 of 3\nlocal, seed 0: round 1 of 3 (about " in capsys.readouterr().err


def test_runs_side_by_side_are_told_together(
    record: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    watcher = Lines()
    watcher.observe(RunsPlanned([("local", 0, 600), ("fedekd", 0, 600), ("fedavg", 0, 600)]))
    for method in ("local", "fedekd"):
        watcher.observe(RunStarted(method, 0, 600, 3, 0))
    watcher.observe(ClientTrained(0, "0", 100))
    assert watcher.now == "0/3 local, seed 0; fedekd, seed 0"
    watcher.observe(RunFinished(record("local"), False))
    assert watcher.eta.done == 100, "nobody knows whose it was"
    watcher.observe(RunStarted("fedavg", 0, 600, 3, 0))
    for method in ("fedekd", "fedavg"):
        watcher.observe(RunFinished(record(method), False))
    assert (watcher.finished, watcher.running) == (3, [])
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "local, seed 0; fedekd, seed 0"
    assert [line[:3] for line in lines[2:]] == ["1/3", "2/3", "3/3"]


def test_counts_what_was_resumed(record: Make) -> None:
    watcher = Watcher()
    drive(watcher, record)
    assert (watcher.eta.done, watcher.finished, watcher.kept) == (1200, 2, 1)
    assert watcher.left() == ""


def test_live_display(record: Make) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Live(console) as live:
        drive(live, record)
        live.progress.refresh()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2/2 fedekd, seed 0, round 3/3, client 1" in text
    assert "Avg Δ +1.6 points" in text
    assert "100%" in text


def test_notes(record: Make, capsys: pytest.CaptureFixture[str]) -> None:
    Lines().observe(Note("fedekd: serial engine"))
    assert capsys.readouterr().err == "fedekd: serial engine\n"
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    Live(console).observe(Note("fedekd: serial engine"))
    assert "serial engine" in console.file.getvalue()  # type: ignore[attr-defined]


def test_watch(capsys: pytest.CaptureFixture[str], record: Make) -> None:
    with watch(False) as silent:
        drive(silent, record)  # type: ignore[arg-type]
    assert capsys.readouterr() == ("", "")
    with watch() as plain:
        assert isinstance(plain, Lines)


def test_of_very_many_runs_only_some_are_told(
    record: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    watcher = Lines()
    watcher.observe(RunsPlanned([("local", seed, 600) for seed in range(50)]))
    for seed in range(50):
        now += 1.0
        watcher.observe(RunStarted("local", seed, 600, 3, 0))
        watcher.observe(RunFinished(record("local", seed=seed), False))
    told = [line.split("/50")[0] for line in capsys.readouterr().err.splitlines()[1:]]
    assert told == [str(k) for k in range(5, 51, 5)]
