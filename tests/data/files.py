"""Tiny files in the publishers' true formats, and a user's own."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fedekd.data import load_dataset
from fedekd.errors import FedekdError


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_fashion(home: Path, rows: int = 12, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, (rows, 28, 28), np.uint8), np.arange(rows, dtype=np.uint8) % classes
    home.mkdir(parents=True, exist_ok=True)
    (home / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images)))
    (home / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels)))
    return images, labels


def write_cifar(home: Path, rows: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Five batches of ``rows`` images each."""
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (5 * rows, 3, 32, 32), np.uint8)
    labels = np.arange(5 * rows, dtype=np.uint8) % 10
    home.mkdir(parents=True, exist_ok=True)
    for batch in range(5):
        part = slice(batch * rows, (batch + 1) * rows)
        records = np.concatenate([labels[part, None], images[part].reshape(rows, -1)], axis=1)
        records.tofile(home / f"data_batch_{batch + 1}.bin")
    return images, labels


def write_medmnist(path: Path, rows: int = 12, classes: int = 11, channels: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    shape = (rows, 28, 28) if channels == 1 else (rows, 28, 28, channels)
    images, labels = rng.integers(0, 256, shape, np.uint8), (np.arange(rows, dtype=np.uint8) % classes)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return images, labels[:, 0]


def write_medimeta(home: Path, train: tuple[int, ...] = (0, 1, 2, 4, 5), size: int = 224) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(4)
    images, labels = rng.integers(0, 256, (7, size, size, 3), np.uint8), np.array([0, 1, 2, 9, 3, 4, 0])
    for folder in ("splits", "original_splits", "task_labels"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    with h5py.File(home / "images.hdf5", "w") as file:
        file.create_dataset("images", data=images)
    np.save(home / "task_labels" / "DR level.npy", labels)
    for folder in ("splits", "original_splits"):
        (home / folder / "train.txt").write_text("\n".join(f"images/{row:06d}.tiff" for row in train))
    (home / "info.yaml").write_text("id: dr_regular\n")
    return images[list(train)], labels[list(train)]


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def csv(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def own_fails(path: Path, words: str, **options: Any) -> None:
    with pytest.raises(FedekdError, match=words) as caught:
        load_dataset(str(path), **options)
    assert "\n" not in str(caught.value)
