"""Watching from another process: real runs, alive, ended and killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedekd import cli
from fedekd.runs.progress_file import read

RUN = """
import sys, torch
torch.set_num_threads(1)
import fedekd
from tiny import tiny_private, tiny_proxy
fedekd.run("digits", out=sys.argv[1], rounds=int(sys.argv[2]), epochs=1, clients=3, alpha=0.5, methods="fedavg",
           private=tiny_private, proxy=tiny_proxy, models="none", progress=False)
"""
Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start() -> Iterator[Start]:
    """Python in a process of its own, which is there no longer than the test."""
    begun: list[subprocess.Popen] = []

    def go(*words: object, stdout: int | None = None, **more: str) -> subprocess.Popen:
        given = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        given |= {"OMP_NUM_THREADS": "1", **more}
        command = [sys.executable, *map(str, words)]
        begun.append(subprocess.Popen(command, env=given, stdout=stdout, text=True))
        return begun[-1]

    yield go
    for process in begun:
        with process:
            process.kill()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_is_followed_to_its_end_also_on_a_terminal(
    tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start("-c", RUN, tmp_path, 3)
    terminal = start("-m", "fedekd", "watch", tmp_path, stdout=subprocess.PIPE, FORCE_COLOR="1")
    assert cli.main(["watch", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"waiting for a run to start in {tmp_path}\n")
    assert "2/2 runs" in out
    assert out.splitlines()[-1].startswith("ended ")
    local, fedavg = [line.split() for line in out.splitlines() if line.startswith(("local", "fedavg"))]
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert local[:3] == ["local", "0", f"{100 * records[0]['mean']:.1f}"]
    assert fedavg[2] == f"{100 * records[1]['mean']:.1f}"
    assert float(fedavg[3]) == pytest.approx(100 * records[1]["avg_delta"], abs=0.06)
    drawn, _ = terminal.communicate(timeout=60)
    assert terminal.returncode == 0
    assert "\x1b[?25l" in drawn, "drawn in place"
    assert "100%" in drawn


def test_a_run_that_is_killed(tmp_path: Path, start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    process = start("-c", RUN, tmp_path, 100_000)
    until(lambda: (now := read(tmp_path)) and now["now"] and now["now"][0]["clients"])
    assert cli.main(["watch", str(tmp_path), "--once"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("0/2 runs, local, seed 0, round ")
    assert "/100000" in out
    assert "local s0" in out
    process.kill()
    process.wait()
    for more in ([], ["--once"]):
        assert cli.main(["watch", str(tmp_path), *more]) == 2
        err = capsys.readouterr().err
        assert f"process {process.pid} on " in err
        assert "died" in err
        assert len(err.splitlines()) == 1


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", str(tmp_path / "no"), "--once"]) == 2
    assert "nothing has started in" in capsys.readouterr().err
    assert cli.main(["watch", str(tmp_path / "no"), "--timeout", "0"]) == 2
    assert capsys.readouterr().err.strip().endswith("within 0 s")
    assert not (tmp_path / "no").exists()
    for wrong in ("nan", "inf", "-1"):
        assert cli.main(["watch", str(tmp_path / "no"), f"--timeout={wrong}"]) == 2
        assert "--timeout must be a number of seconds >= 0" in capsys.readouterr().err


def test_a_mistyped_folder_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "progress.json").write_text("{}")
    assert cli.main(["watch", str(tmp_path / "resluts"), "--timeout", "0.6"]) == 2
    said = f"{tmp_path / 'resluts'} is not there yet; waiting for a run to start in {tmp_path / 'resluts'}"
    assert capsys.readouterr().out == f"{said} (did you mean {tmp_path / 'results'}?)\n"


def test_nonsense_is_not_watched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "progress.json").write_text("nonsense")
    assert cli.main(["watch", str(tmp_path)]) == 2
    assert "not a progress file" in capsys.readouterr().err
