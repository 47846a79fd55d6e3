"""Files are written whole, and nobody who can write beside them has a say in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedekd.errors import FedekdError
from fedekd.files import write_whole


def test_a_temporary_file_is_new_and_has_a_name_that_cannot_be_foreseen(tmp_path: Path, monkeypatch) -> None:
    seen = []
    opened = os.open

    def watched(name, flags, mode=0o777):
        seen.append((Path(name).name, flags))
        return opened(name, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    for _ in range(2):
        write_whole(tmp_path / "report.json", b"whole", mode=0o600)
    names = [name for name, _ in seen]
    assert len(set(names)) == 2
    assert all(flags & os.O_EXCL for _, flags in seen)
    assert (tmp_path / "report.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_link_that_lies_in_wait_is_not_followed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "foreseen")
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    (tmp_path / "report.json.foreseen.part").symlink_to(victim)
    with pytest.raises(FedekdError, match="cannot write"):
        write_whole(tmp_path / "report.json", b"whole")
    assert victim.read_text() == "as it was"


def test_content_is_on_the_disk_before_the_file_has_its_name(tmp_path, monkeypatch):
    order, replaced = [], os.replace
    monkeypatch.setattr(os, "fsync", lambda file: order.append(("sync", os.fstat(file).st_size)))
    monkeypatch.setattr(os, "replace", lambda old, new: (order.append(("name", 0)), replaced(old, new)))
    write_whole(tmp_path / "one", b"12345")
    assert order == [("sync", 5), ("name", 0)]


def test_a_pipe_or_a_device_is_not_replaced(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(FedekdError, match="it is a device or a pipe; choose another --out"):
        write_whole(pipe, b"content")
    assert pipe.is_fifo()
