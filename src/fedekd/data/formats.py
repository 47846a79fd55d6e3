"""Readers for the publishers' file formats. A file that is not what it should be raises ``BadFile``."""

from __future__ import annotations

import gzip
import pickle
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedekd.errors import FedekdError

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
        raise BadFile(path, f"not a whole gzip file ({error})") from None
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
            raise BadFile(path, error.strerror) from None
        if not len(raw) or len(raw) % CIFAR_RECORD:
            raise BadFile(path, f"has {len(raw)} bytes, not a multiple of {CIFAR_RECORD}: it is cut short")
        batches.append(raw.reshape(-1, CIFAR_RECORD))
    records = np.concatenate(batches)
    return np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, 32, 32), records[:, 0].copy()


def read_npz(path: Path, wanted: Iterable[str], optional: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """The named arrays of an .npz file; pickled objects are refused, since unpickling can run code."""
    with _open_npz(path) as archive:
        missing = [key for key in wanted if key not in archive.files]
        if missing:
            raise BadFile(path, f"has no array {missing[0]!r} (it has: {', '.join(archive.files) or 'none'})")
        keys = [*wanted, *(key for key in optional if key in archive.files)]
        return {key: _npz_array(path, archive, key) for key in keys}


def npz_keys(path: Path) -> list[str]:
    with _open_npz(path) as archive:
        return list(archive.files)


def _open_npz(path: Path) -> np.lib.npyio.NpzFile:
    try:
        archive = np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not a whole .npz file"
        raise BadFile(path, why) from None
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise BadFile(path, "a single array, not an .npz file")
    return archive


def _npz_array(path: Path, archive: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    try:
        return archive[key]
    except ValueError as error:
        why = "holds pickled Python objects, which are not read" if "allow_pickle" in str(error) else str(error)
        raise BadFile(path, f"array {key!r} {why}") from None
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise BadFile(path, f"array {key!r} is damaged ({error})") from None


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
        raise BadFile(labels_path, f"not a whole .npy file ({error})") from None
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
        raise BadFile(path, f"not a list of image files ({error})") from None
