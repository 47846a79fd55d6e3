"""Readers for the publishers' file formats. A file that is not what it should be raises ``BadFile``."""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from fedekd.errors import FedekdError
from fedekd.files import failed_read, unreadable

MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
READ_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)  # by zipfile and numpy, of content that is not what it should be
CIFAR_RECORD = 1 + 3 * 32 * 32
Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Raw:
    """Rows as they stand in a file: any labels, any image layout, sites by name."""

    x: np.ndarray
    y: np.ndarray
    site: np.ndarray | None = None
    task: str = ""
    """What the file suggests, when its kind says more than the type of ``y``."""
    columns: tuple[str, ...] = ()
    group: np.ndarray | None = None
    subgroup: np.ndarray | None = None
    notes: tuple[str, ...] = ()


class BadFile(FedekdError):
    """A file that cannot be used; whoever asked for it adds the remedy."""

    def __init__(self, path: Path, why: object) -> None:
        line = str(why).strip().splitlines()
        super().__init__(f"{path}: {line[0] if line else type(why).__name__}")


def channels_first(images: np.ndarray) -> np.ndarray:
    """[N, H, W] or [N, H, W, C] to a contiguous [N, C, H, W]."""
    return np.ascontiguousarray(images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2))


def read_idx(path: Path) -> np.ndarray:
    """A gzipped idx file of unsigned bytes (the MNIST family): its array, 1 to 4 dimensions."""
    try:
        with gzip.open(path, "rb") as file:
            raw = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise failed_read(path, error, BadFile(path, f"not a whole gzip file ({error})")) from None
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or not 1 <= raw[3] <= 4:
        raise BadFile(path, "not an idx file of unsigned bytes")
    start = 4 + 4 * raw[3]
    shape = [int(size) for size in np.frombuffer(raw[4:start], dtype=">u4", count=len(raw[4:start]) // 4)]
    expected = int(np.prod(shape, dtype=object))
    if len(shape) < raw[3] or len(raw) - start != expected:
        raise BadFile(path, f"holds {max(0, len(raw) - start)} bytes where its header says {expected}")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape)


def read_idx_pair(images: Path, labels: Path) -> Arrays:
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3:
        raise BadFile(images, f"holds an array of shape {x.shape}, not images")
    if y.shape != (len(x),):
        raise BadFile(labels, f"holds labels of shape {y.shape} for {len(x)} images")
    return channels_first(x), y


def read_cifar(paths: Iterable[Path]) -> Arrays:
    """CIFAR-10's binary version: each record one label byte, then 3 x 32 x 32 pixels."""
    batches = []
    for path in paths:
        try:
            raw = np.fromfile(path, dtype=np.uint8)
        except OSError as error:
            raise unreadable(path, error) from None
        if not len(raw) or len(raw) % CIFAR_RECORD:
            raise BadFile(path, f"has {len(raw)} bytes, not a multiple of {CIFAR_RECORD}: it is cut short")
        batches.append(raw.reshape(-1, CIFAR_RECORD))
    records = np.concatenate(batches)
    return np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, 32, 32), records[:, 0].copy()


def read_npz(path: Path, wanted: Iterable[str], optional: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """The named arrays of an .npz file. Nothing in it is taken on trust: an array is read only where it is as long as
    its header says, and pickled objects never are, since unpickling can run code."""
    with _open_npz(path) as archive:
        members = _members(path, archive)
        missing = [key for key in wanted if key not in members]
        if missing:
            raise BadFile(path, f"has no array {missing[0]!r} (it has: {', '.join(members) or 'none'})")
        keys = [*wanted, *(key for key in optional if key in members)]
        return {key: _npz_array(path, archive, key, members[key]) for key in keys}


def npz_keys(path: Path) -> list[str]:
    with _open_npz(path) as archive:
        return list(_members(path, archive))


def npz_shapes(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """The shape and type of each array, without reading it."""
    with _open_npz(path) as archive:
        found = {}
        for key, member in _members(path, archive).items():
            with _opened(path, archive, key, member) as stream:
                shape, _, kind = _header(path, key, member, stream)
                found[key] = shape, kind
        return found


def _open_npz(path: Path) -> zipfile.ZipFile:
    try:
        with path.open("rb") as file:
            if file.read(6) == b"\x93NUMPY":
                raise BadFile(path, "a single array, not an .npz file")
        return zipfile.ZipFile(path)
    except READ_ERRORS as error:
        raise failed_read(path, error, BadFile(path, "not a whole .npz file")) from None


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """By the arrays' names, as numpy gives them."""
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        key = member.filename.removesuffix(".npy")
        if key in found:
            raise BadFile(path, f"holds two arrays called {key!r}")
        found[key] = member
    return found


@contextlib.contextmanager
def _opened(path: Path, archive: zipfile.ZipFile, key: str, member: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    if member.flag_bits & 1:
        raise BadFile(path, f"array {key!r} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadFile(path, f"array {key!r} is compressed in a way that numpy does not know")
    try:
        with archive.open(member) as stream:
            yield stream
    except READ_ERRORS as error:
        raise failed_read(path, error, BadFile(path, f"array {key!r} is damaged ({error})")) from None


def _header(path: Path, key: str, member: zipfile.ZipInfo, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether columns come first, and type, if what follows is as long as they say."""
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, columns_first, kind = read(stream)
    except READ_ERRORS:
        raise
    except Exception:  # numpy has Python's own parser read the header, which can raise almost anything
        raise BadFile(path, f"array {key!r} has no header that numpy could have written") from None
    if kind.hasobject:
        raise BadFile(path, f"array {key!r} holds pickled Python objects, which are not read")
    if kind.kind not in "buifcSUMm":
        raise BadFile(path, f"array {key!r} holds records with named fields; save each field as an array")
    size, left = math.prod(shape) * kind.itemsize, member.file_size - stream.tell()
    if min(shape, default=0) < 0 or size != left:
        raise BadFile(path, f"array {key!r} is damaged: its header says {size} bytes and it has {left}")
    if size > MEMORY:
        raise BadFile(path, f"array {key!r} would take {size / 1e9:,.0f} GB, and this machine has {MEMORY / 1e9:,.0f}")
    return shape, columns_first, kind


def _npz_array(path: Path, archive: zipfile.ZipFile, key: str, member: zipfile.ZipInfo) -> np.ndarray:
    with _opened(path, archive, key, member) as stream:
        shape, columns_first, kind = _header(path, key, member, stream)
        content = np.empty(math.prod(shape) * kind.itemsize, np.uint8)
        have, view = 0, memoryview(content.data)
        while have < len(content) and (got := stream.readinto(view[have:])):  # type: ignore[attr-defined]
            have += got
        if have < len(content) or stream.read(1):  # the read at the end makes zipfile compare the checksums
            raise BadFile(path, f"array {key!r} is damaged: it is cut short")
        if not kind.itemsize:
            return np.zeros(shape, kind)
        values = content.view(kind)
        return values.reshape(shape[::-1]).T if columns_first else values.reshape(shape)


def read_medmnist(path: Path) -> Arrays:
    """The train split of a MedMNIST file (2D, one label an image)."""
    arrays = read_npz(path, ("train_images", "train_labels"))
    x, y = arrays["train_images"], arrays["train_labels"]
    if x.dtype != np.uint8 or not (x.ndim == 3 or (x.ndim == 4 and x.shape[3] == 3)):
        raise BadFile(path, f"train_images is {x.dtype} of shape {x.shape}, not 8-bit images")
    if y.dtype.kind not in "iu" or y.size != len(x):
        raise BadFile(path, f"train_labels is {y.dtype} of shape {y.shape} for {len(x)} images")
    return channels_first(x), y.reshape(-1)


def read_medimeta(folder: Path, label: str) -> Arrays:
    """The train split of a MedIMeta folder: images.hdf5, task_labels/LABEL.npy and splits/train.txt."""
    import h5py

    rows = _split_rows(folder / "splits" / "train.txt")
    labels_path, images_path = folder / "task_labels" / f"{label}.npy", folder / "images.hdf5"
    try:
        labels = np.load(labels_path, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise failed_read(labels_path, error, BadFile(labels_path, f"not a whole .npy file ({error})")) from None
    try:
        with h5py.File(images_path, "r") as file:
            images = file["images"]
            shape, kind = tuple(images.shape), images.dtype
            if kind != np.uint8 or len(shape) != 4 or len(rows) == 0 or rows.max() >= shape[0]:
                raise BadFile(images_path, f"images is {kind} of shape {shape}, not the images of splits/train.txt")
            first = int(rows.min())
            # One slice and then a choice in memory: h5py's own choice of rows is many times slower.
            x = images[first : int(rows.max()) + 1][rows - first]
    except (OSError, KeyError, AttributeError) as error:
        raise BadFile(images_path, f"not a whole HDF5 file with an array 'images' ({error})") from None
    if labels.dtype.kind not in "iuf" or labels.size != shape[0]:
        raise BadFile(labels_path, f"holds {labels.dtype} of shape {labels.shape} for {shape[0]} images")
    return channels_first(x), labels.reshape(-1)[rows]


def _split_rows(path: Path) -> np.ndarray:
    """Row numbers from lines such as images/000017.tiff."""
    try:
        return np.array([int(Path(line).stem) for line in path.read_text().split()], dtype=np.int64)
    except (OSError, ValueError) as error:
        raise failed_read(path, error, BadFile(path, f"not a list of image files ({error})")) from None
