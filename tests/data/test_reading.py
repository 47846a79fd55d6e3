"""Options for tables as hospitals write them: what each changes, and that nothing else changes."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedekd.data import federate, load_dataset
from fedekd.dataset import Dataset, Reading
from fedekd.runs.plan import plan
from fedekd.runs.run_key import fingerprint
from fedekd.settings import make_settings

from .files import csv, npz
from .files import own_fails as fails

ROWS = 40
PLAIN = "age,crp,sex,ill\n" + "".join(f"{20 + i},{i / 8},{'mf'[i % 2]},{i // 2 % 2}\n" for i in range(ROWS))


def load(path: Path, target: str = "ill", **options: Any) -> Dataset:
    return load_dataset(path, target=target, reading=Reading(**options))


def test_a_decimal_comma(tmp_path: Path) -> None:
    comma = "\n".join(line.replace(",", ";").replace(".", ",") for line in PLAIN.splitlines())
    expected = load(csv(tmp_path / "plain.csv", PLAIN))
    found = load(csv(tmp_path / "a.csv", comma), decimal=",")
    np.testing.assert_array_equal(found.x, expected.x)
    assert fingerprint(found) == fingerprint(expected)
    assert len(load(csv(tmp_path / "a.csv", comma)).columns) == 43  # each text a column, which the notes say
    quoted = csv(tmp_path / "b.csv", 'a,ill\n"1,5",0\n"2,25",1\n')
    assert load(quoted, decimal=",").x.ravel().tolist() == [1.5, 2.25]


def test_dropped_columns_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", PLAIN)
    without = csv(tmp_path / "b.csv", "\n".join(",".join(x.split(",")[1:]) for x in PLAIN.splitlines()))
    assert fingerprint(load(path, drop=("age",))) == fingerprint(load(without))
    fails(path, "'agee'; did you mean 'age'", target="ill", reading=Reading(drop=("agee",)))
    fails(path, "both dropped and given as --target", target="ill", reading=Reading(drop=("ill",)))


def gapped(tmp_path: Path) -> Path:
    lines = [line.split(",") for line in PLAIN.splitlines()]
    for row, place in ((3, 0), (9, 1), (9, 2), (17, 2), (21, 0)):
        lines[row][place] = ""
    return csv(tmp_path / "gaps.csv", "\n".join(map(",".join, lines)))


def test_missing_values_are_refused_until_told(tmp_path: Path) -> None:
    fails(gapped(tmp_path), "in 4 rows, in columns 'age', 'crp', 'sex'; .* --missing mean, flag or drop", target="ill")


def test_missing_mean_is_that_of_training_rows(tmp_path: Path) -> None:
    data = load(gapped(tmp_path), missing="mean")
    assert data.gaps
    assert data.columns == ("age", "crp", "sex=f", "sex=m")
    made = federate(data, clients=2, partition="iid")
    train = np.concatenate([split.train for split in made.clients])
    known = data.x[train]
    mean = np.nanmean(known.astype(np.float64), axis=0)
    np.testing.assert_allclose(made.dataset.x[[2, 20], 0], mean[0], rtol=1e-6)
    np.testing.assert_allclose(made.fill, mean, rtol=1e-6)
    assert abs(mean[0] - np.nanmean(data.x[:, 0])) > 1e-3  # that of all rows is another
    assert data.x[8, 2:].tolist() == data.x[16, 2:].tolist() == [0, 0]  # a missing text is none of the texts


def test_missing_flag_says_where(tmp_path: Path) -> None:
    data = load(gapped(tmp_path), missing="flag")
    assert data.columns == ("age", "crp", "sex=f", "sex=m", "age missing", "crp missing", "sex missing")
    assert np.flatnonzero(data.x[:, 4]).tolist() == [2, 20]
    assert np.flatnonzero(data.x[:, 6]).tolist() == [8, 16]


def test_missing_drop_leaves_rows_out_and_says_so(tmp_path: Path) -> None:
    data = load(gapped(tmp_path), missing="drop")
    assert len(data.y) == ROWS - 4
    assert any("4 of 40 rows are left out" in note for note in data.notes)
    path = csv(tmp_path / "t.csv", "a,t,who\n" + "".join(f"{i},{'' if i == 5 else i % 2},{i % 2}\n" for i in range(20)))
    told = load_dataset(path, target="t", clients_from="who", reading=Reading(missing="drop"))
    assert (told.task, told.labels) == ("classification", ("0", "1"))  # a missing label makes no number of the others
    for way in ("mean", "flag"):
        fails(path, "in column 't'", target="t", reading=Reading(missing=way))
    fails(csv(tmp_path / "n.csv", "a,t\n,1\n,2\n"), "in every row", target="t", reading=Reading(missing="drop"))


def test_each_way_has_its_own_key_and_a_whole_file_only_one(tmp_path: Path) -> None:
    def keys(path: Path, **options: Any) -> list[str]:
        given = {"dataset": str(path), "target": "ill", "clients": 2, "partition": "iid", "rounds": 1, **options}
        return [run.key for run in plan(make_settings({**given, "methods": "fedavg"}))]

    gaps, whole = gapped(tmp_path), csv(tmp_path / "whole.csv", PLAIN)
    seen = [keys(gaps, missing=way)[0] for way in ("mean", "flag", "drop")]
    assert len(set(seen)) == 3
    plain = keys(whole)
    for options in ({"missing": "mean"}, {"missing": "drop"}, {"decimal": "."}, {"dates": "age"}, {"na_values": "NA"}):
        assert keys(whole, **options) == plain
    assert keys(whole, drop="age") != plain


def test_the_way_to_fill_is_in_the_key() -> None:
    x = np.array([[1.0], [np.nan], [4.0], [7.0]])
    of = {
        fill: Dataset("own", "regression", x, np.zeros(4), 1, scale=None, gaps=True, fill=fill)
        for fill in ("median", "mean")
    }
    assert fingerprint(of["median"]) != fingerprint(of["mean"])


@pytest.mark.parametrize(
    ("texts", "years"),
    [
        (["2024-12-31", "1965-01-01"], [0.0027, 60.0]),
        (["31.12.2024", "1.1.1965"], [0.0027, 60.0]),
        (["12/31/2024", "1/1/1965"], [0.0027, 60.0]),
        (["31/12/2024", "01/01/1965"], [0.0027, 60.0]),
        (["2024-12-31 00:00:00", "1965-01-01T00:00"], [0.0027, 60.0]),
    ],
)
def test_dates_as_ages(tmp_path: Path, texts: list[str], years: list[float]) -> None:
    path = csv(tmp_path / "a.csv", "a,birth,t\n" + "".join(f"{k},{texts[k % 2]},{k % 2}\n" for k in range(20)))
    found = load(path, "t", dates="age")
    assert found.columns == ("a", "birth")
    np.testing.assert_allclose(found.x[:2, 1], years, atol=2e-3)
    assert load(path, "t", dates="drop").columns == ("a",)
    assert len(load(path, "t").columns) == 3  # text, as always


def test_dates_that_could_be_two_days_are_refused(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "birth,t\n3/4/2024,1\n5/6/2020,0\n")
    fails(path, "day and month cannot be told apart", target="t", reading=Reading(dates="age"))
    path = csv(tmp_path / "a.csv", "birth,t\n2024-02-31,1\n2020-01-01,0\n")
    fails(path, "'2024-02-31', which is no day", target="t", reading=Reading(dates="age"))


def test_na_as_a_text(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "country,n,t\n" + "NA,1,0\nDE,2,1\n" * 10)
    fails(path, "missing", target="t")
    assert load(path, "t", na_values=()).columns == ("n", "country=DE", "country=NA")
    path = csv(tmp_path / "b.csv", "n,t\n<5,0\n7,1\n9,1\n")
    found = load(path, "t", na_values=("<5",), missing="mean")
    assert np.isnan(found.x[0, 0])
    assert found.x[1:, 0].tolist() == [7, 9]


def test_every_kind_of_table_says_the_same(tmp_path: Path) -> None:
    expected = load(csv(tmp_path / "a.csv", PLAIN))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(PLAIN.encode()))
    csv(tmp_path / "a.tsv", PLAIN.replace(",", "\t"))
    (tmp_path / "a.TSV.gz").write_bytes(gzip.compress(PLAIN.replace(",", "\t").encode()))
    for name in ("a.csv.gz", "a.tsv", "a.TSV.gz"):
        found = load(tmp_path / name)
        assert (found.name, found.columns, found.labels) == ("a", expected.columns, expected.labels)
        assert fingerprint(found) == fingerprint(expected)
    comma = csv(tmp_path / "names.tsv", "name, full\tt\nx\t1\ny\t2\n")
    assert load(comma, "t").columns == ("name, full=x", "name, full=y")


def test_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pandas as pd

    frame = pd.read_csv(csv(tmp_path / "a.csv", PLAIN))
    frame.to_parquet(tmp_path / "a.parquet")
    expected, found = load(tmp_path / "a.csv"), load(tmp_path / "a.parquet")
    assert (found.columns, found.labels) == (expected.columns, expected.labels)
    assert fingerprint(found) == fingerprint(expected)
    frame["born"] = pd.to_datetime(["1965-01-01", "2024-12-31"] * (ROWS // 2))
    frame["sex"] = frame["sex"].astype("category")
    frame["age"] = frame["age"].astype("Int64").mask(frame["age"] == 22)
    frame.to_parquet(tmp_path / "b.parquet")
    found = load(tmp_path / "b.parquet", dates="age", missing="mean")
    assert found.columns == ("age", "crp", "born", "sex=f", "sex=m")
    np.testing.assert_allclose(found.x[:2, 2], [60, 0.0027], atol=2e-3)
    assert np.flatnonzero(np.isnan(found.x).any(1)).tolist() == [2]
    frame["list"] = [[1, 2]] * ROWS
    frame.to_parquet(tmp_path / "c.parquet")
    fails(tmp_path / "c.parquet", "'list' holds ndarray values", target="ill")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "d.parquet").write_bytes(content[: len(content) // 2])
    fails(tmp_path / "d.parquet", "not a whole .parquet file", target="ill")


def test_a_packed_file_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedekd.data.tables.UNPACKED", 1000)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,t\n" + b"1,2\n" * 100_000))
    fails(tmp_path / "a.csv.gz", "far too much", target="t")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(PLAIN.encode())[:-9])
    fails(tmp_path / "b.csv.gz", "not a whole gzip file", target="ill")


def test_arrays_with_missing_values(tmp_path: Path) -> None:
    x = np.arange(40.0).reshape(20, 2)
    x[3, 1] = np.nan
    path = npz(tmp_path / "a.npz", x=x, y=np.arange(20) % 2, client=np.arange(20) // 10)
    assert load_dataset(path, reading=Reading(missing="mean")).gaps
    shorter = load_dataset(path, reading=Reading(missing="drop"))
    assert shorter.x.shape == (19, 2)
    assert shorter.sites is not None
    assert shorter.sites.tolist() == [0] * 9 + [1] * 10
    fails(path, "--missing flag is for tables", reading=Reading(missing="flag"))
    fails(path, "--drop 'a' is for tables", reading=Reading(drop=("a",)))


def test_options_for_tables_are_refused_elsewhere(tmp_path: Path) -> None:
    fails(Path("digits"), "--drop 'a' is for your own files", reading=Reading(drop=("a",)))


def test_public_rows_are_read_as_the_dataset(tmp_path: Path) -> None:
    from fedekd.data import find_public

    data = load(gapped(tmp_path), missing="flag")
    csv(tmp_path / "public.csv", "age,crp,sex\n30,1.5,m\n40,2.5,f\n")
    public = find_public(str(tmp_path / "public.csv"), data)
    made = federate(data, clients=2, partition="iid", public=public)
    assert made.dataset.x[-1].tolist() == [40, 2.5, 1, 0, 0, 0, 0]


def test_one_mixed_column_in_a_long_file_is_text_all_the_way(tmp_path: Path) -> None:
    """pandas reads long files in pieces, and took 1 and "1" in two of them for two categories."""
    path = csv(tmp_path / "a.csv", "lab,t\n" + "".join(f"{i % 3},{i % 2}\n" for i in range(300_000)) + "<5,1\n")
    assert load(path, "t").columns == ("lab=0", "lab=1", "lab=2", "lab=<5")


def test_texts_of_a_parquet_file_are_read_as_those_of_a_csv(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pandas as pd

    frame = pd.DataFrame(
        {
            "chol": ["200", "?", " 240,5", "<5", "180", None],
            "kind": ["a", "b", "?", "a", "b", "a"],
            "mixed": ["1,5", "2.5", "3", "4", "5", "6"],
            "empty": ["1,5", "", "3", "4", "5", "6"],
            "age": [40, 50, 60, 41, 51, 61],
            "ill": [0, 1, 0, 1, 0, 1],
        }
    )
    frame.to_csv(tmp_path / "a.csv", index=False, sep=";")
    frame.to_parquet(tmp_path / "a.parquet")
    given = {"na_values": ("?", "<5"), "decimal": ",", "missing": "mean"}
    expected, found = (load(tmp_path / f"a.{kind}", **given) for kind in ("csv", "parquet"))
    assert found.columns == expected.columns
    np.testing.assert_array_equal(found.x, expected.x)
