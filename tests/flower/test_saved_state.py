"""A state on disk outlives a SIGKILL at any moment and a spoilt file."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from fedekd.errors import FedekdError
from fedekd.flower.saved_state import SavedState, locked


def state(visit: int) -> dict:
    return {"weights": {"w": torch.full((5,), float(visit))}, "memory": {"list": [1, "two", 3.0, None]}, "name": "a"}


def test_what_was_saved_comes_back(tmp_path):
    kept = SavedState(tmp_path / "new" / "folder")
    assert kept.load() is None
    for visit in range(3):
        kept.save(visit, state(visit))
        number, found = kept.load()
        assert number == visit
        assert torch.equal(found["weights"]["w"], state(visit)["weights"]["w"])
        assert found["memory"] == state(visit)["memory"]
    assert kept.load(1)[0] == 1
    assert kept.load(7)[0] == 2
    assert not list(kept.folder.glob("*.part"))


@pytest.mark.parametrize(
    "spoil", [lambda b: b[:-1], lambda b: b"", lambda b: b[:200] + b"x" + b[201:], lambda b: b + b"0"]
)
def test_a_spoilt_newest_falls_back_to_the_one_before(tmp_path, spoil):
    kept = SavedState(tmp_path)
    for visit in range(3):
        kept.save(visit, state(visit))
    kept.newest.write_bytes(spoil(kept.newest.read_bytes()))
    assert kept.load()[0] == 1
    kept.save(2, state(2))
    assert kept.load()[0] == 2
    kept.newest.write_bytes(b"again")
    assert kept.load()[0] == 1, "the spoilt version must not have replaced the previous one"


def test_both_spoilt_is_said_and_not_begun_anew(tmp_path):
    kept = SavedState(tmp_path)
    kept.save(0, state(0))
    kept.save(1, state(1))
    for file in (kept.newest, kept.previous):
        file.write_bytes(b"nothing")
    with pytest.raises(FedekdError, match=r"every version of the state .* is damaged"):
        kept.load()


def test_a_disk_that_is_full_spoils_neither_version(tmp_path, monkeypatch):
    kept = SavedState(tmp_path)
    for visit in range(2):
        kept.save(visit, state(visit))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(FedekdError, match="disk full; make room there, or choose another `state`"):
            kept.save(2, state(2))
    assert [kept.load()[0], kept.load(0)[0]] == [1, 0]


def test_a_server_that_lost_rounds_is_told(tmp_path):
    kept = SavedState(tmp_path)
    for visit in (4, 5):
        kept.save(visit, state(visit))
    with pytest.raises(FedekdError, match="at visit 5, past the wanted visit 3"):
        kept.load(3)
    assert kept.load(4)[0] == 4
    kept.save(8, state(8))
    with pytest.raises(FedekdError, match="at visit 8, past the wanted visit 6"):
        kept.load(6)  # which is not to be done from visit 5, now that 8 is done


def test_foreign_objects_are_not_unpickled(tmp_path):
    import hashlib
    import pickle

    from fedekd.flower.saved_state import MARK

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "evil"),)

    payload = pickle.dumps({"visit": 1, "state": Evil()}, protocol=2)
    (tmp_path / "state.pt").write_bytes(MARK + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
    with pytest.raises(Exception, match=r"(?i)weights|unpickl|magic"):
        SavedState(tmp_path).load()
    assert not (tmp_path / "evil").exists()


def test_a_second_process_waits_and_gives_up(tmp_path):
    with (
        locked(tmp_path),
        pytest.raises(FedekdError, match="another process has been at work"),
        locked(tmp_path, seconds=0.1),
    ):
        pass
    with locked(tmp_path, seconds=0.1):
        pass


def write_without_end(folder: Path, out: int) -> None:
    kept = SavedState(folder)
    with locked(folder):
        last = kept.load()
        visit = last[0] + 1 if last else 0
        while True:
            kept.save(visit, {"w": torch.full((400_000,), float(visit))})
            os.write(out, f"{visit}\n".encode())
            visit += 1


def test_sigkill_in_the_middle_of_writing_loses_no_finished_visit(tmp_path):
    """A real process writes megabytes without pause and is killed at moments that no visit's end decides."""
    finished = -1
    for attempt in range(12):
        told, out = os.pipe()
        writer = os.fork()
        if writer == 0:
            try:
                write_without_end(tmp_path, out)
            finally:
                os._exit(1)
        os.close(out)
        with open(told, "rb") as lines:
            try:
                for _ in range(2):
                    assert lines.readline().strip(), "the writer died by itself"
                time.sleep(0.0037 * attempt)
            finally:
                os.kill(writer, signal.SIGKILL)
                os.waitpid(writer, 0)
            finished = max([finished + 2, *(int(line) for line in lines)])
        number, found = SavedState(tmp_path).load()
        assert number >= finished, "a visit that had ended is gone"
        assert torch.equal(found["w"], torch.full((400_000,), float(number)))
        finished = number
    with locked(tmp_path):
        assert not list(Path(tmp_path).glob("*.part")), "what the killed ones left is cleared"
