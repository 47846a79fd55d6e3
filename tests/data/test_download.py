from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from fedekd.data import download, fetch

from .publisher import Publisher, fails, listing, md5, offer

CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def retina(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """The publisher of one plain file, retinamnist.npz."""
    publisher.files["retinamnist.npz"] = CONTENT
    offer(monkeypatch, "retinamnist", publisher.url("retinamnist.npz"), md5(CONTENT))
    return publisher


def test_a_file_is_fetched_once(tmp_path: Path, retina: Publisher) -> None:
    folder = tmp_path / "new" / "folder"
    assert fetch("RetinaMNIST", folder, progress=False) == folder / "retinamnist.npz"
    assert listing(folder) == ["retinamnist.npz"]
    assert (folder / "retinamnist.npz").read_bytes() == CONTENT
    fetch("retinamnist", folder, progress=False)
    assert retina.asked == [None]


def test_a_bar_goes_to_standard_error(tmp_path: Path, retina: Publisher, capsys: pytest.CaptureFixture[str]) -> None:
    fetch("retinamnist", tmp_path)
    out, err = capsys.readouterr()
    assert out == ""
    assert "retinamnist.npz" in err


def test_a_broken_connection_is_taken_up_again(tmp_path: Path, retina: Publisher) -> None:
    retina.cuts = [300_000, 200_000]
    fetch("retinamnist", tmp_path, progress=False)
    assert retina.asked == [None, "bytes=300000-", "bytes=500000-"]
    assert listing(tmp_path) == ["retinamnist.npz"]


def test_a_killed_download_goes_on(tmp_path: Path, retina: Publisher) -> None:
    (tmp_path / "retinamnist.npz.part").write_bytes(CONTENT[:700_001])
    fetch("retinamnist", tmp_path, progress=False)
    assert retina.asked == ["bytes=700001-"]
    assert (tmp_path / "retinamnist.npz").read_bytes() == CONTENT


@pytest.mark.parametrize("have", [len(CONTENT), len(CONTENT) + 5])
def test_a_part_that_is_whole_or_too_long(tmp_path: Path, retina: Publisher, have: int) -> None:
    (tmp_path / "retinamnist.npz.part").write_bytes((CONTENT + b"12345")[:have])
    fetch("retinamnist", tmp_path, progress=False)
    assert len(retina.asked) == (1 if have == len(CONTENT) else 2)
    assert (tmp_path / "retinamnist.npz").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(tmp_path: Path, retina: Publisher) -> None:
    retina.ranges = False
    (tmp_path / "retinamnist.npz.part").write_bytes(b"x" * 1000)
    fetch("retinamnist", tmp_path, progress=False)
    assert (tmp_path / "retinamnist.npz").read_bytes() == CONTENT


def test_no_progress_is_the_end(tmp_path: Path, retina: Publisher) -> None:
    retina.cuts = [400_000, 0]
    fails(tmp_path, "retinamnist", "it broke off", "to go on from 0.4 MB", str(tmp_path / "retinamnist.npz"))
    assert listing(tmp_path) == ["retinamnist.npz.part"]
    fetch("retinamnist", tmp_path, progress=False)
    assert listing(tmp_path) == ["retinamnist.npz"]


def test_a_wrong_checksum_leaves_nothing(tmp_path: Path, retina: Publisher) -> None:
    retina.files["retinamnist.npz"] = b"<html>Sorry, we are moving</html>"
    fails(tmp_path, "retinamnist", "wrong checksum", md5(CONTENT), "fedekd data fetch retinamnist")
    assert listing(tmp_path) == []
    retina.files["retinamnist.npz"] = CONTENT
    fetch("retinamnist", tmp_path, progress=False)
    assert listing(tmp_path) == ["retinamnist.npz"]


def test_a_damaged_file_is_replaced(tmp_path: Path, retina: Publisher) -> None:
    (tmp_path / "retinamnist.npz").write_bytes(CONTENT[:-1])
    fetch("retinamnist", tmp_path, progress=False)
    assert (tmp_path / "retinamnist.npz").read_bytes() == CONTENT


@pytest.mark.parametrize(("status", "words"), [(404, "404 Not Found"), (503, "503 Service Unavailable")])
def test_the_server_says_no(tmp_path: Path, retina: Publisher, status: int, words: str) -> None:
    retina.status = status
    fails(tmp_path, "retinamnist", words, "put the file at")
    assert listing(tmp_path) == []


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        offer(monkeypatch, "octmnist", f"http://127.0.0.1:{closed.getsockname()[1]}/octmnist.npz", "0" * 32)
        fails(tmp_path, "octmnist", "no network", "fedekd data fetch octmnist")
    assert listing(tmp_path) == []


def test_a_silent_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        offer(monkeypatch, "octmnist", f"http://127.0.0.1:{silent.getsockname()[1]}/octmnist.npz", "0" * 32)
        fails(tmp_path, "octmnist", "no answer in 0.2 s")


@pytest.mark.usefixtures("retina")
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 1000))
    fails(tmp_path, "retinamnist", "1.0 MB are needed and 0.0 MB are free", "--data DIR")
    assert listing(tmp_path) == []


@pytest.mark.usefixtures("retina")
def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fails(tmp_path / "file" / "data", "retinamnist", "cannot write in", "--data DIR")
