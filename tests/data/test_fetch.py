from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fedekd.data import fetch
from fedekd.data.paper import PAPER

from . import files
from .publisher import Publisher, fails, listing, md5, offer


def test_what_is_no_download(tmp_path: Path) -> None:
    fails(tmp_path, "digits", "nothing to fetch")
    fails(tmp_path, "digit", "did you mean 'digits'")


def cifar_archive(home: Path, rename: str = "cifar-10-batches-bin") -> tuple[bytes, dict[str, str | None]]:
    files.write_cifar(home)
    members: dict[str, str | None] = {path.name: md5(path.read_bytes()) for path in home.iterdir()}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tape:
        tape.add(home, rename)
        evil = tarfile.TarInfo("../../evil.bin")
        evil.size = 4
        tape.addfile(evil, io.BytesIO(b"evil"))
    shutil.rmtree(home)
    return packed.getvalue(), members


def test_an_archive_is_unpacked_and_mended(
    tmp_path: Path, publisher: Publisher, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, members = cifar_archive(tmp_path / "made")
    spec = tiny("cifar10", 20)
    publisher.files["cifar.tar.gz"] = archive
    offer(monkeypatch, "cifar10", publisher.url("cifar.tar.gz"), md5(archive), members)
    folder = tmp_path / "data"
    assert fetch("cifar10", folder, progress=False) == folder / "cifar10"
    assert listing(tmp_path) == [f"data/cifar10/data_batch_{number}.bin" for number in range(1, 6)]
    assert len(spec.load(folder).y) == 20
    fetch("cifar10", folder, progress=False)
    assert len(publisher.asked) == 1
    (folder / "cifar10" / "data_batch_2.bin").write_bytes(b"damaged")
    fetch("cifar10", folder, progress=False)
    assert len(spec.load(folder).y) == 20


def test_an_archive_with_a_wrong_member(
    tmp_path: Path, publisher: Publisher, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, members = cifar_archive(tmp_path / "made")
    tiny("cifar10", 20)
    publisher.files["cifar.tar.gz"] = archive
    offer(
        monkeypatch,
        "cifar10",
        publisher.url("cifar.tar.gz"),
        md5(archive),
        members | {"data_batch_4.bin": "0" * 32},
    )
    fails(tmp_path, "cifar10", "data_batch_4.bin is missing or has the wrong checksum")
    assert listing(tmp_path) == []


def medimeta_archive(home: Path, prefix: str) -> bytes:
    files.write_medimeta(home)
    (home / "images").mkdir()
    (home / "images" / "000000.tiff").write_bytes(b"tiff")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(home.rglob("*")):
            archive.write(path, f"{prefix}{path.relative_to(home)}")
    shutil.rmtree(home)
    return packed.getvalue()


@pytest.mark.parametrize("prefix", ["dr_regular/", ""])
def test_the_medimeta_archive(
    tmp_path: Path, publisher: Publisher, tiny: Any, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    publisher.files["dr_regular.zip"] = medimeta_archive(tmp_path / "made", prefix)
    spec = tiny("dr_regular", 5)
    offer(monkeypatch, "dr_regular", publisher.url("dr_regular.zip"), None, dict(PAPER[-1].remotes[0].members))
    fetch("dr_regular", tmp_path, progress=False)
    assert listing(tmp_path / "dr_regular") == [
        "images.hdf5",
        "info.yaml",
        "original_splits/train.txt",
        "splits/train.txt",
        "task_labels/DR level.npy",
    ]
    assert len(spec.load(tmp_path).y) == 5
    (tmp_path / "dr_regular" / "images.hdf5").write_bytes(b"damaged")
    fetch("dr_regular", tmp_path, progress=False)
    assert len(spec.load(tmp_path).y) == 5
    assert len(publisher.asked) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["dr_regular"]


def test_a_medimeta_archive_that_is_none(tmp_path: Path, publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher.files["dr_regular.zip"] = b"<html>busy</html>"
    offer(monkeypatch, "dr_regular", publisher.url("dr_regular.zip"), None, {"images.hdf5": None})
    fails(tmp_path, "dr_regular", "dr_regular.zip is not the right archive")
    assert listing(tmp_path) == []
    publisher.files["dr_regular.zip"] = medimeta_archive(tmp_path / "made", "")
    fails(tmp_path, "dr_regular", "is not the right archive")
    assert listing(tmp_path) == []


def test_what_the_loaders_read_is_what_is_fetched() -> None:
    for published in PAPER:
        remotes = published.remotes
        offered = {remote.file for remote in remotes} | {name for remote in remotes for name in remote.members}
        for file in published.files:
            assert file in offered or f"{Path(file).parent}/" in offered
        for checksum in [remote.md5 for remote in remotes]:
            assert checksum is None or len(checksum) == 32
