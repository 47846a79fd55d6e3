"""Public rows: set aside for everybody or read from a file, and never in a client's hands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedekd.data import Dataset, Federation, PublicRows, class_counts, class_names, federate, find_public, load_dataset
from fedekd.data.public import set_aside
from fedekd.errors import FedekdError

from .files import csv, npz
from .test_federation import table
from .test_pictures import picture

SITES = {"sites": np.repeat([0, 1, 2], [100, 80, 20]), "site_names": ("a", "b", "c")}


def all_rows(made: Federation) -> np.ndarray:
    return np.concatenate([*(r for s in made.clients for r in (s.train, s.val, s.test)), made.public])


def read(given: Path, dataset: Dataset, **more: Any) -> PublicRows:
    found = find_public(str(given), dataset, **more)
    assert isinstance(found, PublicRows)
    return found


def fails(given: Path, dataset: Dataset, words: str, **more: Any) -> None:
    with pytest.raises(FedekdError, match=words) as caught:
        find_public(str(given), dataset, **more)
    assert "\n" not in str(caught.value)
    assert str(given) in str(caught.value)


# A share


@pytest.mark.parametrize("partition", ["dirichlet", "iid", "sites"])
@pytest.mark.parametrize("data", [table(**SITES), replace(load_dataset("digits"), sites=np.arange(1797) % 3)])
def test_a_share_is_set_aside_from_all_rows(data: Dataset, partition: str) -> None:
    how: dict[str, Any] = {"partition": partition, "clients": 3, "alpha": 1.0, "seed": 4}
    made, again, without = federate(data, **how, public=0.1), federate(data, **how, public=0.1), federate(data, **how)
    rows = len(data.y)
    assert made.dataset is data
    assert len(made.public) == round(rows / 10)
    assert made.public.dtype == np.int64
    assert made.public_labelled
    np.testing.assert_array_equal(np.sort(all_rows(made)), np.arange(rows))
    np.testing.assert_array_equal(made.held, np.setdiff1d(np.arange(rows), made.public))
    np.testing.assert_array_equal(made.public, again.public)
    assert made.partition == again.partition
    assert made.partition["public"] == {"share": 0.1, "rows": len(made.public)}
    assert made.partition["fingerprint"] != without.partition["fingerprint"]
    if partition == "sites":
        assert data.sites is not None
        assert all((data.sites[split.train] == site).all() for site, split in enumerate(made.clients))


def test_the_public_rows_depend_on_the_seed_and_the_share_alone() -> None:
    small, large = (set_aside(500, share, 3)[0] for share in (0.1, 0.3))
    assert set(small) < set(large)
    assert len(small) == 50
    assert set(small) != set(set_aside(500, 0.1, 4)[0])
    made = [federate(table(), clients=k, partition=p, public=0.2) for k, p in ((3, "iid"), (4, "dirichlet"))]
    np.testing.assert_array_equal(made[0].public, made[1].public)


def test_without_public_rows_nothing_is_said_of_them() -> None:
    made = federate(load_dataset("digits"))
    assert made.public.shape == (0,)
    assert made.public.dtype == np.int64
    assert made.public_labelled
    assert set(made.partition) == {"kind", "alpha", "clients", "seed", "fingerprint"}
    assert made.partition["fingerprint"] == "210fc7b5b4297cb3"  # as it was before there were public rows


def test_statistics_do_not_see_public_rows() -> None:
    data = table()
    made = federate(data, partition="iid", clients=4, public=0.25)
    x, y = data.x.copy(), data.y.copy()
    x[made.public], y[made.public] = 1e6, -1e6
    spoilt = federate(replace(data, x=x, y=y), partition="iid", clients=4, public=0.25)
    np.testing.assert_array_equal(made.gain, spoilt.gain)
    np.testing.assert_array_equal(made.shift, spoilt.shift)
    assert (made.target_mean, made.target_std) == (spoilt.target_mean, spoilt.target_std)
    assert class_names(made) == class_names(spoilt)
    assert class_counts(made).sum() == 150


@pytest.mark.parametrize(
    ("share", "options", "words"),
    [
        (0.0, {}, "public is 0.0; give a share above 0 and below 1"),
        (1.0, {}, "public is 1.0"),
        (float("nan"), {}, "public is nan"),
        ("0.1", {}, "public is '0.1'"),
        (0.001, {}, "makes 0 of 200 rows public"),
        (0.999, {}, "makes 200 of 200 rows public"),
        (0.9, {"clients": 3, "partition": "iid"}, "with 180 of 200 rows public: 20 rows cannot give 3 clients 10 rows"),
        (0.98, {"clients": 5, "partition": "iid"}, "with 196 of 200 rows public: 5 clients but only 4 samples"),
        (0.9, {"partition": "sites"}, r"with 180 of 200 rows public: site 'c' has \d rows, too few"),
    ],
)
def test_shares_that_cannot_be(share: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(FedekdError, match=words) as caught:
        federate(table(**SITES), public=share, **options)
    assert "\n" not in str(caught.value)


# A file


def test_a_files_rows_come_after_the_datasets(tmp_path: Path) -> None:
    data = load_dataset("digits")
    found = read(npz(tmp_path / "open.npz", x=data.x[:7], y=data.y[:7]), data)
    made, without = federate(data, public=found), federate(data)
    assert made.dataset.x.shape == (1804, 1, 8, 8)
    assert made.dataset.x.dtype == np.uint8
    np.testing.assert_array_equal(made.public, np.arange(1797, 1804))
    np.testing.assert_array_equal(made.dataset.x[made.public], data.x[:7])
    np.testing.assert_array_equal(made.dataset.y[made.public], data.y[:7])
    assert made.public_labelled
    assert made.partition["public"] == {"file": found.fingerprint, "labelled": True, "rows": 7}
    assert made.partition["fingerprint"] != without.partition["fingerprint"]
    for with_, alone in zip(made.clients, without.clients, strict=True):  # dealt out as if there were no file
        for part in ("train", "val", "test"):
            np.testing.assert_array_equal(getattr(with_, part), getattr(alone, part))
    assert federate(data, seed=1, public=found).dataset is made.dataset  # so that seeds can train in one stack


def test_a_file_without_labels(tmp_path: Path) -> None:
    data = table(**SITES)
    found = read(npz(tmp_path / "open.npz", x=np.full((5, 3), 1e4)), data)
    made, without = federate(data, public=found), federate(data)
    assert not made.public_labelled
    assert made.names == ("a", "b", "c")
    assert (made.dataset.y[made.public] == 0).all()
    assert made.dataset.y.dtype == np.float32
    np.testing.assert_array_equal(made.gain, without.gain)
    np.testing.assert_array_equal(made.shift, without.shift)
    assert (made.target_mean, made.target_std) == (without.target_mean, without.target_std)
    assert class_names(made) == class_names(without)  # the zeros are no targets
    np.testing.assert_array_equal(class_counts(made), class_counts(without))


def test_other_public_rows_have_another_fingerprint(tmp_path: Path) -> None:
    data, x = table(), np.ones((4, 3))
    files = [{"x": x}, {"x": x, "y": np.zeros(4)}, {"x": x, "y": np.ones(4)}, {"x": 2 * x}]
    parts = [federate(data, public=read(npz(tmp_path / f"{k}.npz", **f), data)).partition for k, f in enumerate(files)]
    assert len({str(part) for part in parts}) == 4


def test_public_rows_belong_to_one_dataset(tmp_path: Path) -> None:
    found = read(npz(tmp_path / "open.npz", x=np.ones((4, 3))), table())
    with pytest.raises(FedekdError, match="read for another dataset"):
        federate(table(100), public=found)


PATIENTS = "age,sex,site,sick\n" + "".join(
    f"{20 + k},{'fmx'[k % 3]},{'ab'[k % 2]},{'yn'[k // 2 % 2]}\n" for k in range(40)
)


@pytest.mark.parametrize(
    ("text", "x", "y"),
    [
        ("sex,age\nm,30\nf,31\n", [[30, 0, 1, 0], [31, 1, 0, 0]], None),
        ("age,sex,sick\n30,x,y\n31,f,n\n", [[30, 0, 0, 1], [31, 1, 0, 0]], [1, 0]),
        ("age,sex,site,sick\n30,x,z,y\n31,f,z,y\n", [[30, 0, 0, 1], [31, 1, 0, 0]], [1, 1]),
    ],
)
def test_a_tables_columns_are_found_by_name(tmp_path: Path, text: str, x: list[Any], y: list[int] | None) -> None:
    how = {"target": "sick", "clients_from": "site"}
    data = load_dataset(csv(tmp_path / "patients.csv", PATIENTS), **how)
    assert data.columns == ("age", "sex=f", "sex=m", "sex=x")
    made = federate(data, public=read(csv(tmp_path / "open.csv", text), data, **how))
    np.testing.assert_array_equal(made.dataset.x[made.public], x)
    np.testing.assert_array_equal(made.dataset.y[made.public], y or [0, 0])
    assert made.public_labelled == (y is not None)
    assert made.names == ("a", "b")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("age,sick\n30,y\n", "has no column 'sex', which dataset 'patients' has"),
        ("age,sex,weight\n30,m,80\n", "has a column 'weight'"),
        ("age,sex\n30,q\n", "column 'sex' holds 'q', which dataset 'patients' does not know"),
        ("age,sex\nold,m\n", "column 'age' holds 'old'"),
        ("age,sex\n,m\n31,m\n", "missing or infinite values in 1 row,"),
        ("age,sex,sick\n30,m,maybe\n", "'maybe' is not a class of dataset 'patients' \\(n, y\\)"),
        ("age,sex\n", "holds no rows"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, text: str, words: str) -> None:
    data = load_dataset(csv(tmp_path / "patients.csv", PATIENTS), target="sick", clients_from="site")
    fails(csv(tmp_path / "open.csv", text), data, words, target="sick", clients_from="site")


def test_a_table_for_arrays_without_names(tmp_path: Path) -> None:
    data = table()
    found = read(csv(tmp_path / "open.csv", "a,b,c\n1,2,3\n"), data)
    np.testing.assert_array_equal(found.dataset.x[-1], [1, 2, 3])
    fails(csv(tmp_path / "open.csv", "a,b\n1,2\n"), data, r"rows of shape \(2,\), dataset 't' rows of shape \(3,\)")


def test_labels_by_name_or_by_number(tmp_path: Path) -> None:
    x, digits = np.zeros((3, 8, 8), np.uint8), load_dataset("digits")
    things = replace(digits, labels=tuple("abcdefghij"))
    unnamed = replace(digits, labels=())
    for data, y in ((digits, [3, 9, 0]), (things, ["d", "j", "a"]), (things, [3, 9, 0]), (unnamed, [[3], [9], [0]])):
        found = read(npz(tmp_path / "open.npz", x=x, y=np.array(y)), data)
        np.testing.assert_array_equal(found.dataset.y[found.rows], [3, 9, 0])
    few = Dataset("few", "classification", digits.x, digits.y % 2, 2, labels=("3", "5"))
    fails(npz(tmp_path / "open.npz", x=x, y=np.array([0, 1, 0])), few, r"'0' is not a class of dataset 'few' \(3, 5\)")
    fails(npz(tmp_path / "open.npz", x=x, y=np.array([0, 1, 10])), things, "label 10 is outside 0..9")
    fails(npz(tmp_path / "open.npz", x=x, y=np.array(["a", "b", "k"])), things, "'k' is not a class")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"x": np.zeros((4, 8, 9), np.uint8)},
            r"rows of shape \(1, 8, 9\), dataset 'digits' rows of shape \(1, 8, 8\)",
        ),
        ({"x": np.zeros((4, 64))}, r"rows of shape \(64,\)"),
        ({"x": np.zeros((0, 8, 8), np.uint8)}, "holds no rows"),
        ({"x": np.full((4, 8, 8), 0.5)}, "float32 pixels, dataset 'digits' 8-bit ones"),
        ({"x": np.full((4, 8, 8), np.nan)}, "float32 pixels"),
        ({"x": np.full((4, 8, 8), 255, np.uint8)}, "pixels up to 255, dataset 'digits' only up to 16"),
        ({"x": np.zeros((4, 8, 8), np.uint8), "y": np.zeros(3, int)}, "one value of y for each row"),
        ({"rows": np.zeros((4, 8, 8))}, "has no array 'x'"),
        ({"x": np.array(["a"])}, "x is <U1"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    fails(npz(tmp_path / "open.npz", **arrays), load_dataset("digits"), words)


def test_arrays_of_other_types_where_nothing_is_lost(tmp_path: Path) -> None:
    digits = load_dataset("digits")
    for x in (digits.x[:4, 0].astype(float), digits.x[:4].astype(int)):
        found = read(npz(tmp_path / "open.npz", x=x), digits)
        np.testing.assert_array_equal(found.dataset.x[found.rows], digits.x[:4])
    floats = replace(digits, x=digits.x / 16, scale=None)
    fails(npz(tmp_path / "open.npz", x=digits.x[:4]), floats, "8-bit pixels, dataset 'digits' floating point")
    fails(npz(tmp_path / "open.npz", x=np.full((3, 3), np.inf)), table(), "missing or infinite values in 3 of 3")
    fails(npz(tmp_path / "open.npz", x=np.ones((2, 3)), y=np.array(["a", "b"])), table(), "the target is text")
    fails(npz(tmp_path / "open.npz", x=np.ones((2, 3)), y=np.array([1, np.nan])), table(), "1 of 2 targets are missing")


def test_pictures_with_and_without_classes(tmp_path: Path) -> None:
    for index in range(20):
        picture(tmp_path / "own" / "cat" / f"{index}.png")
        picture(tmp_path / "own" / "dog" / f"{index}.png", "RGB")
    data = load_dataset(tmp_path / "own")
    picture(tmp_path / "loose" / "1.png")
    picture(tmp_path / "loose" / "2.png", "RGB")
    (tmp_path / "loose" / "empty").mkdir()
    found = read(tmp_path / "loose", data)
    assert (found.labelled, found.dataset.x.shape) == (False, (42, 3, 4, 6))
    picture(tmp_path / "named" / "dog" / "1.png")
    named = read(tmp_path / "named", data)
    assert (named.labelled, named.dataset.y[-1], named.dataset.x.shape) == (True, 1, (41, 3, 4, 6))
    picture(tmp_path / "named" / "cow" / "1.png")
    fails(tmp_path / "named", data, r"'cow' is not a class of dataset 'own' \(cat, dog\)")
    picture(tmp_path / "named" / "1.png")
    fails(tmp_path / "named", data, "pictures both beside and in subfolders")
    fails(tmp_path / "loose" / "empty", data, "holds no pictures")
    picture(tmp_path / "large" / "1.png", size=(9, 9))
    fails(tmp_path / "large", data, r"rows of shape \(3, 9, 9\)")


def test_files_that_are_none(tmp_path: Path) -> None:
    data = load_dataset("digits")
    fails(tmp_path / "open.npz", data, "there is no file or folder")
    fails(csv(tmp_path / "open.npz", "no archive"), data, "not a whole .npz file")
    fails(csv(tmp_path / "open.txt", "text"), data, "is a .txt file; give an .npz or .csv of public rows")
    assert find_public(None, data) is None
    assert find_public("0.25", data) == 0.25
