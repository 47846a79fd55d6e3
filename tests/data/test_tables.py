from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedekd.data import federate, load_dataset

from .files import csv
from .files import own_fails as fails

TABLE = "age,sex,site,dose,ill\n" + "".join(f"{20 + i},{'mf'[i % 2]},s{i % 3},{i / 7:.3f},{i % 2}\n" for i in range(30))


def test_csv(tmp_path: Path) -> None:
    path = csv(tmp_path / "ward.csv", TABLE)
    data = load_dataset(path, target="ill", clients_from="site")
    assert (data.name, data.task, data.outputs, data.scale) == ("ward", "classification", 2, None)
    assert data.x.shape == (30, 4)  # age, dose, and one column for each sex
    assert data.site_names == ("s0", "s1", "s2")
    np.testing.assert_array_equal(data.sites, np.arange(30) % 3)
    np.testing.assert_array_equal(data.x[:, 2:].sum(1), 1)
    assert data.columns == ("age", "dose", "sex=f", "sex=m")
    np.testing.assert_array_equal(data.x[:, 3], np.arange(30) % 2 == 0)
    dose = load_dataset(path, target="dose")
    assert (dose.task, dose.standardise_target, dose.x.shape) == ("regression", True, (30, 7))
    assert load_dataset(path, target="age").task == "regression"
    assert load_dataset(path, target="sex").labels == ("f", "m")
    assert load_dataset(path, target="ill", task="regression").outputs == 1


def test_other_separators_and_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\ufeffage; ill\n1;yes\n2;no\n3;yes\n", encoding="utf-8")
    data = load_dataset(path, target="ill")
    assert data.labels == ("no", "yes")
    assert data.x.ravel().tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (TABLE, {}, "Give --target, one of: age, sex, site, dose, ill"),
        (TABLE, {"target": "ilk"}, "unknown column of .*'ilk'; did you mean 'ill'"),
        (TABLE, {"target": "ill", "clients_from": "sight"}, "'sight'"),
        (TABLE, {"target": "ill", "clients_from": "ill"}, "cannot be both"),
        ("a,b\n1,2\n,3\n4,inf\n", {"target": "a"}, "in 2 rows, in columns 'a', 'b'"),
        ("a,b\nx,2\n,3\n", {"target": "b"}, "in 1 row, in column 'a'"),
        ("a,b\n", {"target": "a"}, "no rows"),
        ("", {"target": "a"}, "cannot be read as a table"),
        ("a,b\n1,2,3,4\n1\n2,3,4,5,6\n", {"target": "a"}, "cannot be read as a table"),
        ("a,b\n1,2,3\n4,5,6\n", {"target": "a"}, "cannot be read as a table"),
        ("a\n1\n2\n", {"target": "a"}, "no column besides"),
        ("a,b\n1,1\n1,2\n", {"target": "a"}, "one class"),
        ("a,b\nx,1\ny,2\n", {"target": "a", "task": "regression"}, "target is text"),
        ("a, a ,t\n1,2,3\n", {"target": "t"}, "two columns called 'a'"),
        ("t, t\n1,2\n3,4\n", {"target": "t"}, "two columns called 't'"),
        ("sex,sex=m,t\nm,1,0\nf,2,1\n", {"target": "t"}, "two inputs would be called 'sex=m'"),
        ("n,b\n" + "".join(f"name{i},{i % 2}\n" for i in range(101)), {"target": "b"}, "'n' has 101 different"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, options: dict[str, str], words: str) -> None:
    fails(csv(tmp_path / "a.csv", text), words, **options)


def test_row_numbers_are_no_feature(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", ",age,ill\n0,5,1\n1,6,0\n2,7,1\n")
    assert load_dataset(path, target="ill").x.ravel().tolist() == [5, 6, 7]


def test_numbered_clients_keep_their_order(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "a,t,site\n1,0,10\n2,1,2\n3,1,10\n")
    data = load_dataset(path, target="t", clients_from="site")
    assert data.site_names == ("2", "10")
    np.testing.assert_array_equal(data.sites, [1, 0, 1])


def test_a_binary_file_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(bytes(range(256)) * 20)
    fails(tmp_path / "a.csv", "cannot be read as a table", target="a")


def test_a_folder_of_csv_files_is_a_federation(tmp_path: Path) -> None:
    csv(tmp_path / "rome.csv", "a,b,t\n" + "1,x,0\n2,y,1\n" * 5)
    csv(tmp_path / "oslo.csv", "t,a,b\n" + "1,3,z\n" * 5)
    (tmp_path / ".hidden.csv").write_text("no")
    (tmp_path / "readme.txt").write_text("no")
    data = load_dataset(tmp_path, target="t")
    assert data.site_names == ("oslo", "rome")
    assert data.x.shape == (15, 4)
    assert federate(data).names == ("oslo", "rome")
    fails(tmp_path, "one client already", target="t", clients_from="a")
    csv(tmp_path / "york.csv", "a,b,u\n1,x,0\n")
    fails(tmp_path, r"york\.csv has no column 't', unlike .*oslo\.csv", target="t")
    csv(tmp_path / "york.csv", "a,b,t,u\n1,x,0,1\n")
    fails(tmp_path, r"york\.csv has a column 'u'", target="t")
    csv(tmp_path / "york.csv", "a,b,t\none,x,0\n")
    fails(tmp_path, r"column 'a' is text in .*york\.csv but numbers in", target="t")
