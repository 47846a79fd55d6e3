"""A results folder: lines are whole or not there, whatever is killed, cut, full or in the way."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import multiprocessing
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedekd.errors import FedekdError
from fedekd.runs.store import Store, read_lines
from lines import one_line

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
VALUES = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8)
RECORDS = st.dictionaries(st.text(max_size=5), VALUES | st.lists(VALUES, max_size=3), max_size=4)


def in_order(store):
    return [line for _, line in read_lines(store.results)]


def filled(folder, count=3) -> Store:
    store = Store(folder)
    for i in range(count):
        store.add({"i": i, "text": "é\n\u2028" * i})
    return store


# Lines


@settings(deadline=None, max_examples=30)
@given(st.lists(RECORDS, max_size=5))
def test_what_is_added_is_read_again_in_order(records):
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        assert in_order(store) == []
        for record in records:
            store.add(record)
        assert in_order(store) == in_order(Store(folder)) == records


def test_floats_come_back_to_the_bit(tmp_path):
    values = [0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0]
    Store(tmp_path).add({"values": values})
    assert [v.hex() for v in in_order(Store(tmp_path))[0]["values"]] == [v.hex() for v in values]


@settings(deadline=None, max_examples=60)
@given(st.lists(RECORDS, min_size=1, max_size=4), st.data())
def test_a_line_that_was_cut_is_ignored_and_then_removed(records, data):
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        for record in records:
            store.add(record)
        whole = store.results.read_bytes()
        cut = data.draw(st.integers(0, len(whole)), label="cut")
        store.results.write_bytes(whole[:cut])
        left = records[: whole[:cut].count(b"\n")]
        assert in_order(store) == left
        Store(folder).add({"new": 1})
        assert in_order(store) == [*left, {"new": 1}]
        lines = store.results.read_bytes().split(b"\n")
        assert lines.pop() == b""
        assert [json.loads(line) for line in lines] == [*left, {"new": 1}]


@pytest.mark.parametrize("length", [2**16 - 1, 2**16, 2**16 + 1, 200_000])
@pytest.mark.parametrize("before", [0, 2])
def test_a_long_cut_line_is_removed_whole(tmp_path, before, length):
    store = filled(tmp_path, before)
    with open(store.results, "ab") as file:
        file.write(b"x" * length)
    store.add({"new": 1})
    assert [record.get("i") for record in in_order(store)] == [*range(before), None]
    assert store.results.read_bytes().endswith(b'{"new":1}\n')


def test_a_record_that_is_no_json_leaves_the_file_as_it_was(tmp_path):
    store = filled(tmp_path)
    before = store.results.read_bytes()
    with pytest.raises(TypeError):
        store.add({"bad": object()})
    assert store.results.read_bytes() == before


@pytest.mark.parametrize("line", [b"hello\n", b"{'a': 1}\n", b'{"a":1}\n{"b":\n{"c":3}\n', b"\xff\xfe\n", b"\0\0\n"])
def test_a_file_of_something_else_is_refused(tmp_path, line):
    (tmp_path / "results.jsonl").write_bytes(line)
    with pytest.raises(FedekdError, match="is not JSON") as error:
        in_order(Store(tmp_path))
    assert str(tmp_path) in one_line(error)
    assert (tmp_path / "results.jsonl").read_bytes() == line


@pytest.mark.parametrize("line", [b"[1,2]\n", b"3\n", b"null\n"])
def test_a_line_that_is_not_a_record_is_refused(tmp_path, line):
    (tmp_path / "results.jsonl").write_bytes(line)
    with pytest.raises(FedekdError, match="is not a record of a run"):
        Store(tmp_path).records()


# Two processes


ADD_MANY = """
import sys
from fedekd.runs.store import Store
folder, who = sys.argv[1:]
store = Store(folder)
print("ready", flush=True)
sys.stdin.readline()
for i in range(50):
    store.add({"who": who, "i": i, "long": "x" * (20_000 if i % 7 == 0 else 10)})
"""


def python(code, *words):
    return subprocess.Popen([sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_two_processes_lose_and_corrupt_nothing(tmp_path):
    workers = [python(ADD_MANY, str(tmp_path), who) for who in "ab"]
    for worker in workers:
        assert worker.stdout.readline() == b"ready\n"
    for worker in workers:
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
    while any(worker.poll() is None for worker in workers):
        in_order(Store(tmp_path))  # a reader in between never sees half a line
        time.sleep(0.005)
    for worker in workers:
        worker.communicate()
    assert [worker.returncode for worker in workers] == [0, 0]
    records = in_order(Store(tmp_path))
    assert len(records) == 100
    for who in "ab":
        assert [r["i"] for r in records if r["who"] == who] == list(range(50))


def test_a_process_killed_while_it_writes_leaves_whole_lines(tmp_path):
    code = (
        "import sys; from fedekd.runs.store import Store; s = Store(sys.argv[1]); i = 0\n"
        "while True: s.add({'i': i, 'long': 'x' * 9000}); i += 1; i == 5 and print('go', flush=True)"
    )
    worker = python(code, str(tmp_path))
    worker.stdout.readline()
    worker.kill()
    worker.communicate()
    count = len(in_order(Store(tmp_path)))
    assert count >= 5
    Store(tmp_path).add({"i": count})
    assert [record["i"] for record in in_order(Store(tmp_path))] == list(range(count + 1))


# Refusals of the system


def test_a_file_in_the_way_of_the_folder(tmp_path):
    (tmp_path / "taken").write_text("mine")
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(FedekdError, match="cannot write") as error:
            Store(folder)
        assert "--out" in one_line(error)
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_folder_in_the_way_of_the_results(tmp_path):
    (tmp_path / "results.jsonl").mkdir()
    store = Store(tmp_path)
    with pytest.raises(FedekdError, match="cannot write") as error:
        store.add({"a": 1})
    assert "results.jsonl" in one_line(error)
    with pytest.raises(FedekdError, match="cannot read") as error:
        in_order(store)
    one_line(error)


def test_a_folder_that_is_gone(tmp_path):
    store = filled(tmp_path / "out")
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    (tmp_path / "out").rmdir()
    with pytest.raises(FedekdError, match="cannot write") as error:
        store.add({"a": 1})
    one_line(error)
    assert in_order(store) == []


def test_the_device_that_is_always_full(tmp_path):
    store = Store(tmp_path)
    store.results.symlink_to("/dev/full")
    with pytest.raises(FedekdError, match="cannot write") as error:
        store.add({"a": 1})
    one_line(error)


def test_a_disk_that_is_full_when_the_line_is_synced(tmp_path, monkeypatch):
    store = filled(tmp_path)
    before = store.results.read_bytes()

    def full(fd):
        raise NO_SPACE

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FedekdError, match="disk full; make room there") as error:
        store.add({"i": 3})
    assert "--out" in one_line(error)
    assert store.results.read_bytes() == before
    monkeypatch.undo()
    store.add({"i": 3})
    assert len(in_order(store)) == 4


def limited(folder: str, room: int, length: int, answer) -> None:
    """Add one line of ``length`` bytes where there is room for ``room`` only."""
    store = Store(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (store.results.stat().st_size + room, resource.RLIM_INFINITY))
    try:
        store.add({"long": "x" * (length - 12)})
        text = "added"
    except FedekdError as error:
        text = str(error)
    except BaseException as error:
        text = f"traceback: {error!r}"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    answer.send(text)


@pytest.mark.parametrize(("room", "length"), [(0, 200), (70, 200), (150, 200), (5_000, 60_000), (59_000, 60_000)])
def test_a_disk_with_room_for_a_part_of_the_line(tmp_path, room, length):
    """No rest of the line may follow the truncation, as closing a buffered file would write it."""
    store = filled(tmp_path)
    before = in_order(store)
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    worker = fork.Process(target=limited, args=(str(tmp_path), room, length, there))
    worker.start()
    worker.join()
    text = here.recv()
    assert text.startswith("cannot write")
    assert "\n" not in text
    assert in_order(store) == before
    store.add({"i": 3})
    assert in_order(store) == [*before, {"i": 3}]


# Checkpoints

STATE = {
    "round": 3,
    "clients": [{"private": {"w": torch.randn(3, 2), "n": torch.tensor(7)}}, {}],
    "half": torch.tensor([1.5], dtype=torch.bfloat16),
    "bytes": [12345678901234, 0],
    "trust": [{"mean": 0.1 + 0.2, "histogram": [1, 2]}],
    "seconds": 1e-9,
}


def test_checkpoints_come_back_to_the_bit(tmp_path):
    store = Store(tmp_path)
    assert store.restore("key") is None
    store.save("key", STATE)
    back = Store(tmp_path).restore("key")
    assert str(back) == str(STATE)
    assert torch.equal(back["clients"][0]["private"]["w"], STATE["clients"][0]["private"]["w"])
    assert back["half"].dtype == torch.bfloat16
    assert store.restore("other") is None
    store.save("key", {"round": 4})
    assert store.restore("key") == {"round": 4}
    assert os.listdir(tmp_path / "checkpoints") == ["key.pt"]


def test_discarding_leaves_the_other_checkpoints(tmp_path):
    store = Store(tmp_path)
    store.save("a", {"round": 1})
    store.save("b", {"round": 2})
    store.discard("a")
    assert store.restore("a") is None
    assert store.restore("b") == {"round": 2}
    store.discard("b")
    store.discard("b")
    assert os.listdir(tmp_path / "checkpoints") == []


@pytest.mark.parametrize("failure", [NO_SPACE, KeyboardInterrupt()])
def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path, monkeypatch, failure):
    store = Store(tmp_path)
    store.save("key", {"round": 1})

    def half(state, file):
        file.write(b"PK half of it")
        file.flush()
        raise failure

    monkeypatch.setattr(torch, "save", half)
    expected = KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else FedekdError
    with pytest.raises(expected) as error:
        store.save("key", {"round": 2})
    one_line(error)
    assert store.restore("key") == {"round": 1}
    assert os.listdir(tmp_path / "checkpoints") == ["key.pt"]


@pytest.mark.parametrize("room", [0, 100, 5_000, 9_000, 30_000, 39_000, 40_500, 41_000])
def test_a_disk_that_fills_up_in_the_middle_of_a_checkpoint_is_said_in_words(tmp_path, monkeypatch, room):
    """Some 41,000 bytes: torch hands them over in pieces, and says of the last ones that they are out of place."""

    class Small(io.FileIO):
        def write(self, content):
            if self.tell() + len(content) > room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(content)

    store = Store(tmp_path)
    store.save("other", {"w": torch.zeros(10_000)})
    monkeypatch.setattr(Path, "open", lambda path, mode: io.BufferedWriter(Small(path, "w")))
    with pytest.raises(FedekdError, match=r"cannot write .*key\.pt: disk full; make room there"):
        store.save("key", {"w": torch.zeros(10_000)})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["other.pt"]


def test_a_disk_that_is_full_is_said_in_words(tmp_path):
    """Given a path, torch itself says: enforce fail at inline_container.cc, unexpected pos."""
    store = Store(tmp_path)
    store.save("key", {"round": 1})
    (tmp_path / "checkpoints" / f"key.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(FedekdError, match=r"cannot write .*key\.pt: disk full; make room there") as error:
        store.save("key", {"weights": torch.zeros(100_000)})
    one_line(error)
    assert store.restore("key") == {"round": 1}


def test_a_checkpoint_that_may_not_be_read_is_no_damaged_one(tmp_path):
    """Or the run would begin anew in silence. /proc/self/mem can be opened and not read, even by root."""
    store = Store(tmp_path)
    store.save("key", {"round": 1})
    store.checkpoint("key").unlink()
    store.checkpoint("key").symlink_to("/proc/self/mem")
    with pytest.raises(FedekdError, match="cannot read"):
        store.restore("key")


def test_a_run_that_two_processes_have_done_is_one_line(tmp_path):
    ours, theirs = Store(tmp_path), Store(tmp_path)
    ours.add({"key": "a", "seconds": 1})
    theirs.add({"key": "a", "seconds": 2})
    theirs.add({"key": "b", "seconds": 3})
    ours.add({"key": "b", "seconds": 4})
    ours.add({"key": "b", "seconds": 5})
    assert [(line["key"], line["seconds"]) for line in in_order(ours)] == [("a", 1), ("b", 3)]
    ours.results.write_bytes(b"")
    ours.add({"key": "a", "seconds": 6})
    assert [line["seconds"] for line in in_order(ours)] == [6]
    log = Store(tmp_path, "failures.jsonl")
    for _ in range(2):
        log.add({"key": "a"})
    assert len(in_order(log)) == 2


def killed_while_saving(folder: str) -> None:
    def half(state, file):
        file.write(b"PK half of it")
        file.flush()
        os._exit(9)

    torch.save = half
    Store(folder).save("key", {"round": 2})


def killed(folder) -> None:
    worker = multiprocessing.get_context("fork").Process(target=killed_while_saving, args=(str(folder),))
    worker.start()
    worker.join()
    assert worker.exitcode == 9


def test_a_kill_in_the_middle_of_a_save_leaves_the_old_checkpoint(tmp_path):
    store = Store(tmp_path)
    store.save("key", {"round": 1})
    killed(tmp_path)
    assert any(name.endswith(".part") for name in os.listdir(tmp_path / "checkpoints"))
    assert store.restore("key") == {"round": 1}
    store.save("key", {"round": 3})
    assert store.restore("key") == {"round": 3}


def test_what_a_kill_left_goes_when_the_run_is_done(tmp_path):
    store = Store(tmp_path)
    killed(tmp_path)
    store.save("key", {"round": 3})
    store.discard("key")
    assert os.listdir(tmp_path / "checkpoints") == []


def test_one_process_may_finish_while_another_saves(tmp_path, monkeypatch):
    ours, theirs, save = Store(tmp_path), Store(tmp_path), torch.save
    theirs.save("theirs", {"round": 1})

    def late(state, path):
        theirs.discard("theirs")
        save(state, path)

    monkeypatch.setattr(torch, "save", late)
    ours.save("ours", {"round": 2})
    assert ours.restore("ours") == {"round": 2}


def test_a_file_in_the_way_of_the_checkpoints(tmp_path):
    (tmp_path / "checkpoints").write_text("mine")
    store = Store(tmp_path)
    with pytest.raises(FedekdError, match="cannot write") as error:
        store.save("key", {"round": 1})
    one_line(error)
    assert store.restore("key") is None
    assert (tmp_path / "checkpoints").read_text() == "mine"


def test_a_corrupt_checkpoint_counts_as_none(tmp_path):
    store = Store(tmp_path)
    store.save("key", STATE)
    path = store.checkpoint("key")
    whole = path.read_bytes()
    spoilt = [b"", b"hello", b"\0" * len(whole), whole[:-1], whole[: len(whole) // 2], whole[:10], whole[50:]]
    for content in spoilt:
        path.write_bytes(content)
        assert store.restore("key") is None
    path.unlink()
    path.mkdir()
    assert store.restore("key") is None


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("write", [torch.save, lambda state, path: path.write_bytes(pickle.dumps(state, 2))])
def test_a_checkpoint_that_would_run_code_is_not_run(tmp_path, write):
    store, mark = Store(tmp_path), tmp_path / "mark"
    store.save("key", {"round": 1})
    write({"round": 1, "evil": Evil(mark)}, store.checkpoint("key"))
    assert store.restore("key") is None
    assert not mark.exists()
    with contextlib.suppress(RuntimeError):
        torch.load(store.checkpoint("key"), weights_only=False)
    assert mark.exists()  # it would have run


def test_a_save_while_another_process_sweeps(tmp_path, monkeypatch):
    """Two processes on one run: the one that is done removes what the other is about to put in place."""
    store, other = Store(tmp_path), Store(tmp_path)
    write = torch.save

    def and_swept(state, path):
        write(state, path)
        other.discard("key")

    monkeypatch.setattr(torch, "save", and_swept)
    store.save("key", {"round": 1})
    assert os.listdir(tmp_path / "checkpoints") == []
