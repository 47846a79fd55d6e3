from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fedekd.data import catalogue, load_dataset
from fedekd.data.registry import recipe
from fedekd.errors import FedekdError

from . import files


def test_fashion_mnist(tmp_path: Path, tiny: Any) -> None:
    images, labels = files.write_fashion(tmp_path / "fashion_mnist")
    data = tiny("fashionmnist", 12).load(tmp_path)
    assert (data.task, data.outputs, data.scale, data.labels[9]) == ("classification", 10, 255.0, "Ankle boot")
    assert data.x.dtype == np.uint8
    np.testing.assert_array_equal(data.x, images[:, None])
    np.testing.assert_array_equal(data.y, labels)


def test_cifar(tmp_path: Path, tiny: Any) -> None:
    images, labels = files.write_cifar(tmp_path / "cifar10")
    data = tiny("cifar10", 20).load(tmp_path)
    np.testing.assert_array_equal(data.x, images)
    np.testing.assert_array_equal(data.y, labels)
    assert data.x.flags.c_contiguous


def test_medmnist(tmp_path: Path, tiny: Any) -> None:
    images, labels = files.write_medmnist(tmp_path / "organamnist.npz")
    data = tiny("organamnist", 12).load(tmp_path)
    np.testing.assert_array_equal(data.x, images[:, None])
    np.testing.assert_array_equal(data.y, labels)


def test_retina_is_a_regression_of_raw_grades(tmp_path: Path, tiny: Any) -> None:
    images, labels = files.write_medmnist(tmp_path / "retinamnist.npz", classes=5, channels=3)
    data = tiny("retinamnist", 12).load(tmp_path)
    assert (data.task, data.outputs, data.standardise_target, data.y.dtype) == ("regression", 1, False, np.float32)
    np.testing.assert_array_equal(data.x, images.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.y, labels)


def test_medimeta_reads_the_train_rows_only(tmp_path: Path, tiny: Any) -> None:
    images, labels = files.write_medimeta(tmp_path / "dr_regular")
    data = tiny("dr_regular", 5).load(tmp_path)
    np.testing.assert_array_equal(data.x, images.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.y, labels)


@pytest.mark.parametrize(
    ("name", "rows", "home", "write"),
    [
        ("fashionmnist", 12, "FashionMNIST/raw", files.write_fashion),
        ("cifar10", 20, "cifar-10-batches-bin", files.write_cifar),
        ("organamnist", 12, "medmnist/organamnist.npz", files.write_medmnist),
        ("dr_regular", 5, "medimeta/dr_regular", files.write_medimeta),
    ],
)
def test_other_tools_folders_are_found(tmp_path: Path, tiny: Any, name: str, rows: int, home: str, write: Any) -> None:
    write(tmp_path / home)
    assert len(tiny(name, rows).load(tmp_path).y) == rows
    assert next(one for one in catalogue(tmp_path) if one.name == name).present
    assert recipe(name).find(tmp_path) == tmp_path / home


def test_another_edition_is_noted(tmp_path: Path, tiny: Any) -> None:
    files.write_medmnist(tmp_path / "organamnist.npz")
    spec = tiny("organamnist", 12)
    object.__setattr__(spec, "train", (34561, 12))
    assert "another edition: 12 images, not 34,561" in spec.load(tmp_path).source


def test_missing_names_the_folder_and_both_remedies(tmp_path: Path) -> None:
    with pytest.raises(FedekdError, match="fedekd data fetch cifar10") as caught:
        load_dataset("CIFAR-10", data_dir=tmp_path)
    for word in (str(tmp_path), "--data DIR", "FEDEKD_DATA", "cifar10/data_batch_1.bin"):
        assert word in str(caught.value)


def test_a_part_of_the_files_is_not_the_dataset(tmp_path: Path) -> None:
    files.write_cifar(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "data_batch_3.bin").unlink()
    with pytest.raises(FedekdError, match=r"looked for cifar10/data_batch_3\.bin"):
        load_dataset("cifar10", data_dir=tmp_path)


def test_a_subset_does_not_pass_for_the_dataset(tmp_path: Path) -> None:
    files.write_medmnist(tmp_path / "octmnist.npz", classes=4)
    with pytest.raises(FedekdError, match="12 training images where OCTMNIST has 97,477"):
        load_dataset("octmnist", data_dir=tmp_path)


def break_fashion(home: Path, how: str) -> None:
    images, labels = home / "train-images-idx3-ubyte.gz", home / "train-labels-idx1-ubyte.gz"
    whole = gzip.decompress(images.read_bytes())
    if how == "gzip":
        images.write_bytes(b"<html>not found</html>")
    elif how == "cut gzip":
        images.write_bytes(images.read_bytes()[:-200])
    elif how == "cut idx":
        images.write_bytes(gzip.compress(whole[:-5]))
    elif how == "cut header":
        images.write_bytes(gzip.compress(whole[:9]))
    elif how == "not idx":
        images.write_bytes(gzip.compress(b"hello world"))
    elif how == "label":
        labels.write_bytes(gzip.compress(files.idx_bytes(np.arange(12))))
    elif how == "lengths":
        labels.write_bytes(gzip.compress(files.idx_bytes(np.zeros(11))))
    elif how == "shape":
        images.write_bytes(gzip.compress(files.idx_bytes(np.zeros((12, 8, 8)))))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("gzip", "not a whole gzip file"),
        ("cut gzip", "not a whole gzip file"),
        ("cut idx", "9403 bytes where its header says 9408"),
        ("cut header", "header"),
        ("not idx", "not an idx file"),
        ("label", "label 10 is not one of 0..9"),
        ("lengths", r"shape \(11,\) for 12 images"),
        ("shape", "images are 1x8x8, FashionMNIST's are 1x28x28"),
    ],
)
def test_bad_idx_files(tmp_path: Path, tiny: Any, how: str, words: str) -> None:
    files.write_fashion(tmp_path / "fashion_mnist")
    break_fashion(tmp_path / "fashion_mnist", how)
    check(tiny("fashionmnist", 12), tmp_path, words)


def test_cut_cifar(tmp_path: Path, tiny: Any) -> None:
    files.write_cifar(tmp_path / "cifar10")
    batch = tmp_path / "cifar10" / "data_batch_5.bin"
    batch.write_bytes(batch.read_bytes()[:-1])
    check(tiny("cifar10", 20), tmp_path, r"data_batch_5\.bin: has 12291 bytes")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": np.zeros(3)}, r"no array 'train_images' \(it has: images\)"),
        ({"train_images": np.array([{}, {}], object), "train_labels": np.zeros(2)}, "pickled Python objects"),
        ({"train_images": np.zeros((2, 28, 28)), "train_labels": np.zeros((2, 1), np.uint8)}, "float64"),
        ({"train_images": np.zeros((2, 28, 28), np.uint8), "train_labels": np.zeros((2, 14), np.uint8)}, "for 2 im"),
        ({"train_images": np.zeros((2, 28, 28), np.uint8), "train_labels": np.zeros((2, 1))}, "float64"),
    ],
)
def test_bad_arrays(tmp_path: Path, tiny: Any, arrays: dict[str, np.ndarray], words: str) -> None:
    np.savez(tmp_path / "organamnist.npz", **arrays)
    check(tiny("organamnist", 2), tmp_path, words)


def test_bad_npz_files(tmp_path: Path, tiny: Any) -> None:
    spec, path = tiny("organamnist", 12), tmp_path / "organamnist.npz"
    path.write_bytes(b"<html>busy</html>")
    check(spec, tmp_path, r"not a whole \.npz file")
    files.write_medmnist(path)
    whole = bytearray(path.read_bytes())
    path.write_bytes(whole[: len(whole) // 2])
    check(spec, tmp_path, r"not a whole \.npz file")
    whole[200:260] = bytes(60)
    path.write_bytes(whole)
    check(spec, tmp_path, "'train_images' is damaged")
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    check(spec, tmp_path, r"a single array, not an \.npz file")


def break_medimeta(home: Path, how: str) -> None:
    if how == "cut":
        (home / "images.hdf5").write_bytes((home / "images.hdf5").read_bytes()[:5000])
    elif how == "no array":
        with h5py.File(home / "images.hdf5", "w") as file:
            file["pictures"] = np.zeros(3)
    elif how == "group":
        with h5py.File(home / "images.hdf5", "w") as file:
            file.create_group("images")
    elif how == "shape":
        with h5py.File(home / "images.hdf5", "w") as file:
            file["images"] = np.zeros((3, 224, 224, 3), np.uint8)
    elif how == "labels":
        np.save(home / "task_labels" / "DR level.npy", np.zeros(3))
    elif how == "label file":
        (home / "task_labels" / "DR level.npy").write_bytes(b"no")
    elif how == "grade":
        (home / "splits" / "train.txt").write_text("images/000003.tiff\n" * 5)
    elif how == "splits":
        (home / "splits" / "train.txt").write_text("images/one.tiff")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", "not a whole HDF5 file"),
        ("no array", "not a whole HDF5 file with an array 'images'"),
        ("group", "not a whole HDF5 file with an array 'images'"),
        ("shape", r"shape \(3, 224, 224, 3\)"),
        ("labels", "for 7 images"),
        ("label file", r"not a whole \.npy file"),
        ("grade", "label 9 is not one of 0..4"),
        ("splits", "not a list of image files"),
    ],
)
def test_bad_medimeta_folders(tmp_path: Path, tiny: Any, how: str, words: str) -> None:
    files.write_medimeta(tmp_path / "dr_regular")
    break_medimeta(tmp_path / "dr_regular", how)
    check(tiny("dr_regular", 5), tmp_path, words)


def check(spec: Any, folder: Path, words: str) -> None:
    with pytest.raises(FedekdError, match=words) as caught:
        spec.load(folder)
    assert str(folder) in str(caught.value)
    assert str(caught.value).endswith(f"fetch it again with `fedekd data fetch {spec.name}`")
    assert "\n" not in str(caught.value)
