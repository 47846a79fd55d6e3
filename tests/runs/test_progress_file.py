"""The file that another terminal reads."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedekd.errors import FedekdError
from fedekd.runs import progress_file
from fedekd.runs.observers import ClientTrained, RoundMeasured, RunFailed, RunFinished, RunsPlanned, RunStarted
from fedekd.runs.progress_file import ProgressFile, condition, read


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread stays asleep: the tests say when to write."""
    monkeypatch.setattr(progress_file, "EVERY", 3600.0)


def seen(it: ProgressFile) -> dict:
    it._write()
    return read(it.file.parent)


def test_what_is_running(tmp_path: Path, record) -> None:
    with ProgressFile(tmp_path) as it:
        assert read(tmp_path) is None, "nothing before there is a plan"
        it.observe(RunsPlanned([("local", 0, 600), ("fedekd", 0, 600)]))
        now = read(tmp_path)
        assert (now["pid"], now["host"], now["runs"], now["total"]) == (os.getpid(), socket.gethostname(), 2, 1200)
        assert condition(now) == "running"
        it.observe(RunStarted("local", 0, 600, 3, 0))
        it.observe(ClientTrained(0, "a", 100))
        it.observe(ClientTrained(0, "b", 100))
        assert read(tmp_path) == now, "an event alone writes nothing"
        now = seen(it)
        assert now["done"] == 200
        assert now["left"] > 0
        assert now["now"] == [{"label": "local", "seed": 0, "round": 1, "rounds": 3, "clients": {}}]
        it.observe(RoundMeasured("local", 0, 1, {"a": 0.5, "b": float("nan")}, None))
        assert seen(it)["now"][0]["clients"] == {"a": 0.5, "b": None}
        it.observe(RunFinished(record("local"), False))
        it.observe(RunFinished(record("fedavg"), True))
        now = seen(it)
        assert now["now"] == []
        assert (now["ended"], now["kept"]) == (1, 1)
        assert [(r["label"], r["cached"]) for r in now["finished"]] == [("local", False), ("fedavg", True)]
        it.observe(RunStarted("fedekd", 0, 600, 3, 1))
        assert seen(it)["done"] == 200 + 200
    assert condition(read(tmp_path)) == "done"
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"], "no half-written file is left"


def test_runs_at_the_same_time(tmp_path: Path, record) -> None:
    with ProgressFile(tmp_path) as it:
        it.observe(RunsPlanned([("local", 0, 10), ("fedekd", 0, 10), ("fedavg", 0, 10)]))
        it.observe(RunStarted("local", 0, 10, 2, 0))
        it.observe(RunStarted("fedekd and 1 more", 0, 20, 2, 0))
        it.observe(ClientTrained(0, "a", 5))
        it.observe(RoundMeasured("fedavg", 0, 1, {"a": 0.1}, None))
        rounds = {run["label"]: run["round"] for run in seen(it)["now"]}
        assert rounds == {"local": 0, "fedekd and 1 more": 0, "fedavg": 1}
        for method in ("fedekd", "fedavg"):
            it.observe(RunFinished(record(method), False))
        it.observe(RunFailed("local", 0, 10, "diverged"))
        now = seen(it)
        assert now["now"] == []
        assert (now["ended"], now["failed"], now["total"]) == (3, 1, 20)


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (KeyboardInterrupt(), "interrupted", None),
        (FedekdError("no such\nfile"), "failed", "no such file"),
        (ValueError("odd"), "failed", "ValueError: odd"),
    ],
)
def test_how_it_ended(tmp_path: Path, error: BaseException, state: str, text: str | None) -> None:
    def run() -> None:
        with ProgressFile(tmp_path) as it:
            it.observe(RunsPlanned([("local", 0, 10)]))
            raise error

    with pytest.raises(type(error)):
        run()
    now = read(tmp_path)
    assert (condition(now), now["error"]) == (state, text)


def test_the_thread_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_file, "EVERY", 0.01)
    with ProgressFile(tmp_path) as it:
        it.observe(RunsPlanned([("local", 0, 10)]))
        it.observe(ClientTrained(0, "a", 5))
        deadline = time.monotonic() + 60
        while read(tmp_path)["done"] != 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_process_that_says_nothing_more(tmp_path: Path) -> None:
    with ProgressFile(tmp_path) as it:
        it.observe(RunsPlanned([("local", 0, 10)]))
        now = read(tmp_path)
    assert condition(now) == "running"
    assert condition({**now, "updated": now["updated"] - 100}) == "silent"
    assert condition({**now, "updated": now["updated"] - 100, "host": "elsewhere"}) == "silent"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    if sys.platform == "linux":
        assert condition({**now, "pid": dead.pid}) == "gone", "although nobody has taken note"
    dead.wait()
    assert condition({**now, "pid": dead.pid}) == "gone"
    assert condition({**now, "pid": dead.pid, "host": "elsewhere"}) == "running"


def test_who_came_first_is_shown(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with ProgressFile(tmp_path) as it:
            it.observe(RunsPlanned([("local", 0, 10)]))
            theirs = {**read(tmp_path), "pid": other.pid}
            it.file.write_text(json.dumps(theirs))
            assert seen(it) == theirs
            other.communicate(b"\n")
            assert seen(it)["pid"] == os.getpid()
    finally:
        other.kill()
        other.wait()


def test_a_full_disk_is_no_reason_to_stop(tmp_path: Path) -> None:
    with ProgressFile(tmp_path / "file" / "out") as it:
        (tmp_path / "file").touch()
        it.observe(RunsPlanned([("local", 0, 10)]))
    with pytest.raises(FedekdError, match="is not a folder"):
        read(tmp_path / "file" / "out")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x"}', "\\udc80"])
def test_a_file_of_another_kind(tmp_path: Path, text: str) -> None:
    (tmp_path / "progress.json").write_text(text)
    with pytest.raises(FedekdError, match="not a progress file"):
        read(tmp_path)


@pytest.mark.parametrize("damage", [{"left": ...}, {"now": [1]}, {"finished": [{}]}, {"now": [{"label": "local"}]}])
def test_a_damaged_file(tmp_path: Path, damage: dict) -> None:
    """``...``: without that key."""
    with ProgressFile(tmp_path) as it:
        it.observe(RunsPlanned([("local", 0, 10)]))
    damaged = {name: value for name, value in {**read(tmp_path), **damage}.items() if value is not ...}
    it.file.write_text(json.dumps(damaged))
    with pytest.raises(FedekdError, match="not a progress file"):
        read(tmp_path)
