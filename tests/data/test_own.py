from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedekd.data import federate, load_dataset
from fedekd.errors import FedekdError

from .files import csv, npz, write_medmnist
from .files import own_fails as fails

RNG = np.random.default_rng(0)
LABELS = np.arange(20) % 3


@pytest.mark.parametrize(
    ("shape", "kind", "became"),
    [
        ((20, 8, 6), np.uint8, (20, 1, 8, 6)),
        ((20, 8, 6, 3), np.uint8, (20, 3, 8, 6)),
        ((20, 8, 6, 2), np.uint8, (20, 2, 8, 6)),
        ((20, 3, 8, 6), np.uint8, (20, 3, 8, 6)),
        ((20, 1, 8, 6), np.float64, (20, 1, 8, 6)),
        ((20, 3, 8, 3), np.uint8, (20, 3, 3, 8)),
        ((20, 8, 6), np.float64, (20, 1, 8, 6)),
        ((20, 5), np.float64, (20, 5)),
        ((20, 5), np.int32, (20, 5)),
    ],
)
def test_layouts(tmp_path: Path, shape: tuple[int, ...], kind: Any, became: tuple[int, ...]) -> None:
    data = load_dataset(npz(tmp_path / "a.npz", x=RNG.integers(0, 99, shape).astype(kind), y=LABELS))
    eight_bit = kind is np.uint8
    assert data.x.shape == became
    assert data.x.dtype == (np.uint8 if eight_bit else np.float32)
    assert data.scale == (255.0 if eight_bit else None)
    assert data.x.flags.c_contiguous


def test_pixels_keep_their_places(tmp_path: Path) -> None:
    x = RNG.integers(0, 256, (20, 4, 5, 3), np.uint8)
    data = load_dataset(npz(tmp_path / "a.npz", x=x, y=LABELS))
    assert data.x[7, 2, 3, 1] == x[7, 3, 1, 2]


@pytest.mark.parametrize(
    ("y", "labels"),
    [
        (np.array([5, 9] * 10), ("5", "9")),
        (np.array(["sick", "well"] * 10), ("sick", "well")),
        (np.array([[False], [True]] * 10), ("False", "True")),
    ],
)
def test_labels_are_recoded(tmp_path: Path, y: np.ndarray, labels: tuple[str, ...]) -> None:
    data = load_dataset(npz(tmp_path / "a.npz", x=np.ones((20, 2)), y=y))
    assert (data.task, data.outputs, data.labels) == ("classification", 2, labels)
    np.testing.assert_array_equal(data.y, [0, 1] * 10)


def test_task_from_the_target_or_as_told(tmp_path: Path) -> None:
    whole = npz(tmp_path / "whole.npz", x=np.ones((20, 2)), y=LABELS)
    real = npz(tmp_path / "real.npz", x=np.ones((20, 2)), y=LABELS / 2)
    assert load_dataset(whole, task="regression").y.dtype == np.float32
    assert (load_dataset(real).task, load_dataset(real).standardise_target) == ("regression", True)
    assert load_dataset(real, task="classification").labels == ("0", "0.5", "1")
    many = npz(tmp_path / "many.npz", x=np.ones((100, 2)), y=np.arange(100))
    fails(many, "100 different values in 100 rows")
    assert load_dataset(many, task="regression").outputs == 1
    text = npz(tmp_path / "text.npz", x=np.ones((2, 2)), y=np.array(["a", "b"]))
    fails(text, "the target is text", task="regression")


def test_clients_in_an_npz(tmp_path: Path) -> None:
    where = np.array(["north"] * 12 + ["south"] * 8)
    path = npz(tmp_path / "a.npz", x=np.ones((20, 2)), y=LABELS, client=where, ward=np.arange(20) // 5)
    made = federate(load_dataset(path))
    assert made.names == ("north", "south")
    assert len(load_dataset(path, clients_from="ward").site_names) == 4
    fails(path, "unknown array in .*'wart'; did you mean 'ward'", clients_from="wart")
    fails(npz(tmp_path / "b.npz", x=np.ones((20, 2)), y=LABELS, client=where[:3]), r"'client' has shape \(3,\)")


def test_a_medmnist_file_of_any_kind(tmp_path: Path) -> None:
    write_medmnist(tmp_path / "bloodmnist.npz", classes=8)
    data = load_dataset(tmp_path / "bloodmnist.npz")
    assert (data.name, data.outputs, data.x.shape) == ("bloodmnist", 8, (12, 1, 28, 28))
    assert load_dataset(tmp_path / "bloodmnist.npz", task="regression").outputs == 1


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.ones((4, 2))}, "no array 'y'"),
        ({"x": np.ones((4, 2)), "y": np.array([{}, 1, 2, 3], object)}, "pickled"),
        ({"x": np.ones((4, 2)), "y": np.arange(3)}, "one value of y for each row"),
        ({"x": np.ones((4, 2)), "y": np.eye(4)}, "one value of y for each row"),
        ({"x": np.float64(1), "y": np.arange(1)}, "one value of y"),
        ({"x": np.ones(4), "y": np.arange(4)}, r"shape \(4,\); give images as"),
        ({"x": np.array([["a"]] * 4), "y": np.arange(4)}, "x is <U1"),
        ({"x": np.ones((0, 2)), "y": np.array([], int)}, "no rows"),
        ({"x": np.ones((4, 2)), "y": np.zeros(4, int)}, "one class"),
        ({"x": np.full((4, 2), np.nan), "y": np.arange(4)}, "4 of 4 rows"),
        ({"x": np.ones((4, 2)), "y": np.array([1, 2, np.nan, 3])}, "1 of 4 targets"),
    ],
)
def test_bad_npz(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    fails(npz(tmp_path / "a.npz", **arrays), words)


def test_missing_labels_are_no_class(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", x=np.ones((3, 2)), y=np.array([0, 1, np.nan]))
    fails(path, "1 labels are missing", task="classification")


def test_a_folder_of_npz_files_is_a_federation(tmp_path: Path) -> None:
    npz(tmp_path / "one.npz", x=np.ones((6, 4, 4), np.uint8), y=np.zeros(6, int))
    npz(tmp_path / "two.npz", x=np.ones((8, 4, 4), np.uint8), y=np.ones(8, int))
    data = load_dataset(f"{tmp_path}/")
    assert (data.site_names, data.outputs) == (("one", "two"), 2)
    np.testing.assert_array_equal(data.sites, data.y)
    npz(tmp_path / "zen.npz", x=np.ones((8, 4, 5), np.uint8), y=np.ones(8, int))
    fails(tmp_path, r"zen\.npz holds uint8 rows of shape \(4, 5\)")
    npz(tmp_path / "zen.npz", x=np.ones((8, 4, 4), np.uint8), y=np.ones(8))
    fails(tmp_path, r"zen\.npz holds .* floating point y but .*one\.npz holds .* integer y")
    csv(tmp_path / "a.csv", "a,b\n")
    fails(tmp_path, r"both \.npz and \.csv")


def test_paths(tmp_path: Path) -> None:
    fails(tmp_path / "none.npz", "no file or folder")
    fails(csv(tmp_path / "a.json", "{}"), r"is a \.json file")
    fails(npz(tmp_path / "a.npz", x=np.ones((2, 2)), y=np.arange(2)), "--target 'y' is for tables", target="y")
    (tmp_path / "b.npz").write_bytes(b"no")
    fails(tmp_path / "b.npz", r"not a whole \.npz file; save it again with numpy\.savez")


def test_a_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    (tmp_path / "ours").mkdir()
    assert load_dataset("digits").outputs == 10
    for path in ("./digits", "ours"):
        with pytest.raises(FedekdError, match="holds no data"):
            load_dataset(path)
