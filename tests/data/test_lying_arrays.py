"""Arrays that are not what they say: refused in one line that names the file, never half read."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedekd.data import load_dataset

from .files import npz, write_medmnist
from .files import own_fails as fails

X, Y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def header(shape: str, kind: str = "<f8", size: int = 0) -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n" + b"\0" * size


def zipped(path: Path, compression: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (b"just bytes, no array", "'x' is damaged"),
        (b"", "'x' is damaged"),
        (header("(20, 2)", size=8), "its header says 320 bytes and it has 8"),
        (header("(1000000000000,)"), "its header says 8000000000000 bytes"),
        (header("(-1, 2)", size=8), "damaged"),
        (header("(20, 2)", "|O"), "pickled Python objects"),
        (header("((" * 400), "damaged|no header"),
        (b"\x93NUMPY\x09\x09" + bytes(90), "no header|damaged"),
        (npy(np.zeros(20, [("a", "f4"), ("b", "f4")])), "named fields"),
        (npy(X)[:-3], "its header says 320 bytes"),
    ],
)
def test_members_that_lie(tmp_path: Path, member: bytes, words: str) -> None:
    fails(zipped(tmp_path / "a.npz", x=member, y=npy(Y)), words)


def test_a_member_that_is_no_array(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x", b"1,2,3")
        archive.writestr("y.npy", npy(Y))
    fails(tmp_path / "a.npz", "'x' is damaged")


def test_two_members_of_one_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x", npy(X))
        archive.writestr("x.npy", npy(X + 1))
        archive.writestr("y.npy", npy(Y))
    fails(tmp_path / "a.npz", "two arrays called 'x'")


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_odd_compression(tmp_path: Path, compression: int) -> None:
    fails(zipped(tmp_path / "a.npz", compression, x=npy(X), y=npy(Y)), "compressed in a way")


def test_an_encrypted_member(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.npz", x=npy(X), y=npy(Y))
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + place] |= 1
    path.write_bytes(content)
    fails(path, "'x' is encrypted")


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.npz", x=npy(X), y=npy(Y))
    content = bytearray(path.read_bytes())
    content[300] ^= 4
    path.write_bytes(content)
    fails(path, "'x' is damaged")


def test_columns_first_is_read_as_numpy_does(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", x=np.asfortranarray(X), y=Y.astype(">i8"))
    np.testing.assert_array_equal(load_dataset(path).x, X)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": np.array(["2020-01-01", "NaT"] * 10, "M8[D]")}, r"y is datetime64\[D\]"),
        ({"y": Y * 1j}, "y is complex128"),
        ({"y": Y, "client": np.where(Y, np.nan, 1.0)}, "'client' is missing or infinite in 10 rows"),
        ({"y": Y, "client": Y * 1j}, "'client' is complex128"),
        ({"y": Y, "client": np.array(["2020-01-01", "NaT"] * 10, "M8[D]")}, "'client' is datetime64"),
        ({"y": np.array(["a", "\ud800"] * 10)}, "text that is not UTF-8"),
        ({"y": np.array([b"a", b"\xff"] * 10)}, "text that is not UTF-8"),
        ({"y": Y, "client": np.array(["a", "\ud800"] * 10)}, "text that is not UTF-8"),
    ],
)
def test_labels_and_clients_that_are_none(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    fails(npz(tmp_path / "a.npz", x=X, **arrays), words)


def test_clients_that_are_the_labels(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", x=X, y=Y)
    fails(path, "names the labels themselves", clients_from="y")
    fails(path, "names the labels themselves", group="y")
    fails(path, "names the inputs themselves", clients_from="x")


def test_labels_as_bytes_are_text(tmp_path: Path) -> None:
    assert load_dataset(npz(tmp_path / "a.npz", x=X, y=np.array([b"well", b"sick"] * 10))).labels == ("sick", "well")


def test_clients_of_a_file_that_has_none(tmp_path: Path) -> None:
    fails(npz(tmp_path / "a.npz", x=X, y=Y), "unknown array in .*'ward'", clients_from="ward")
    write_medmnist(tmp_path / "bloodmnist.npz", classes=8)
    fails(tmp_path / "bloodmnist.npz", "unknown array", clients_from="ward")
    fails(tmp_path / "bloodmnist.npz", "MedMNIST file, which says nothing of its rows", clients_from="test_labels")


def test_names_that_are_not_utf8_are_refused_before_training(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"ward\xff.npz")
    npz(path, x=X, y=Y)
    fails(path, "is not UTF-8; rename")
    (tmp_path / "sites").mkdir()
    path.rename(tmp_path / "sites" / path.name)
    fails(tmp_path / "sites", "is not UTF-8; rename")


def test_an_unreadable_file_is_not_called_damaged(tmp_path: Path) -> None:
    """/proc/self/mem is a file that can be opened and not read, even by root."""
    for name in ("a.npz", "a.csv", "a.csv.gz"):
        (tmp_path / name).symlink_to("/proc/self/mem")
        fails(
            tmp_path / name,
            "cannot read .*; check that it is a file that you may read",
            **({} if name == "a.npz" else {"target": "t"}),
        )


def test_neither_file_nor_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    fails(tmp_path / "a.csv", "neither a file nor a folder", target="t")
