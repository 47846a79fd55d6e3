"""Four real hospitals, and what becomes of the values that they lack."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from fedekd import cli
from fedekd.data import Dataset, Federation, federate, load_dataset
from fedekd.data.federation import input_clusters
from fedekd.engines.serial import Serial
from fedekd.errors import FedekdError
from fedekd.flower.protocol.rows import of_site
from fedekd.flower.protocol.scaling import Scaling
from fedekd.flower.protocol.schema import Schema
from fedekd.runs.plan import plan
from fedekd.settings import make_settings
from tiny import tiny_private, tiny_proxy

HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")


@pytest.fixture(scope="module")
def heart() -> Dataset:
    return load_dataset("heart")


def column(dataset: Dataset, name: str) -> np.ndarray:
    return dataset.x[:, dataset.columns.index(name)]


def train_rows(federation: Federation) -> np.ndarray:
    return np.concatenate([split.train for split in federation.clients])


# The table


def test_the_files_come_with_the_package() -> None:
    folder = files("fedekd.data") / "heart_disease"
    names = {f"processed.{name}.data" for name in ("cleveland", "hungarian", "switzerland", "va")}
    assert {file.name for file in folder.iterdir()} == names | {"ATTRIBUTION.md"}
    words = (folder / "ATTRIBUTION.md").read_text()
    for name in ("Janosi", "Steinbrunn", "Pfisterer", "Detrano", "10.24432/C52P4X", "licenses/by/4.0"):
        assert name in words


def test_patients_of_each_hospital(heart: Dataset) -> None:
    assert (heart.site_names, heart.labels) == (HOSPITALS, ("no disease", "disease"))
    assert np.bincount(heart.sites).tolist() == [303, 294, 123, 200]
    assert np.bincount(heart.sites, heart.y).tolist() == [139, 106, 115, 149]


def test_first_and_last_patient_are_as_published(heart: Dataset) -> None:
    first = dict(zip(heart.columns, heart.x[0].tolist(), strict=True))
    # 63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0
    numbers = {"age": 63, "sex": 1, "trestbps": 145, "chol": 233, "fbs": 1, "thalach": 150, "exang": 0, "ca": 0}
    ones = ("cp=1", "restecg=2", "slope=3", "thal=6")
    expected = dict.fromkeys(heart.columns, 0.0) | numbers | dict.fromkeys(ones, 1.0) | {"oldpeak": np.float32(2.3)}
    assert first == expected
    # 54,0,4,127,333,1,1,154,0,0,?,?,?,1 is somewhere in the last file
    (row,) = np.flatnonzero((column(heart, "chol") == 333) & (heart.sites == 3))
    found = {name for name, value in zip(heart.columns, heart.x[row], strict=True) if value == 1}
    assert found == {"cp=4", "fbs", "restecg=1", "slope missing", "ca missing", "thal missing"}
    assert np.isnan(column(heart, "ca")[row])


def test_flags_tell_what_is_missing(heart: Dataset) -> None:
    flags = {name.removesuffix(" missing"): column(heart, name) for name in heart.columns if "missing" in name}
    counts = {name: np.bincount(heart.sites, flag).tolist() for name, flag in flags.items()}
    assert counts == {
        "trestbps": [0, 1, 2, 57],
        "chol": [0, 23, 123, 56],
        "fbs": [0, 8, 75, 7],
        "restecg": [0, 1, 1, 0],
        "thalach": [0, 1, 1, 53],
        "exang": [0, 1, 1, 53],
        "oldpeak": [0, 0, 6, 56],
        "slope": [0, 190, 17, 102],
        "ca": [4, 291, 118, 198],
        "thal": [2, 266, 52, 166],
    }
    for name in heart.columns:
        flag = flags.get(name, np.zeros(920))
        np.testing.assert_array_equal(np.isnan(column(heart, name)), flag == 1, err_msg=name)
    for name, categories in {"cp": 4, "restecg": 3, "slope": 3, "thal": 3}.items():
        of = [column(heart, one) for one in heart.columns if one.startswith(f"{name}=")]
        assert len(of) == categories
        np.testing.assert_array_equal(np.sum(of, 0) + flags.get(name, 0), np.ones(920), err_msg=name)


# Filling


def test_missing_values_become_the_training_rows_median(heart: Dataset) -> None:
    made = federate(heart, seed=1)
    train, x = train_rows(made), made.dataset.x
    for place, name in enumerate(heart.columns):
        values = heart.x[:, place]
        gap = np.isnan(values)
        np.testing.assert_array_equal(x[~gap, place], values[~gap], err_msg=name)
        if gap.any():
            assert set(x[gap, place].tolist()) == {float(np.nanmedian(values[train]))}
    np.testing.assert_allclose((x * made.gain + made.shift)[train].mean(0), 0, atol=1e-4)
    assert np.isnan(heart.x).any()  # the dataset itself is as it was


@pytest.mark.parametrize("public", [None, 0.1])
def test_only_training_rows_tell_what_is_filled_in(heart: Dataset, public: float | None) -> None:
    made = federate(heart, public=public)
    others = np.setdiff1d(np.arange(920), train_rows(made))
    x = heart.x.copy()
    x[others] = np.where(np.isnan(x[others]), np.nan, 1e6)
    spoilt = federate(replace(heart, x=x), public=public)
    gap = np.isnan(heart.x)
    np.testing.assert_array_equal(spoilt.dataset.x[gap], made.dataset.x[gap])
    np.testing.assert_array_equal(spoilt.gain, made.gain)
    np.testing.assert_array_equal(spoilt.shift, made.shift)
    # The same change to the training rows is seen.
    x = heart.x.copy()
    x[train_rows(made)] += 1000
    assert (federate(replace(heart, x=x), public=public).dataset.x[gap] > 900).all()


def test_the_rows_of_a_public_file_are_filled_likewise(heart: Dataset, tmp_path: Path) -> None:
    from fedekd.data import find_public

    np.savez(tmp_path / "open.npz", x=heart.x[-5:])
    made = federate(heart, public=find_public(str(tmp_path / "open.npz"), heart))
    assert np.isnan(heart.x[-5:]).any()
    np.testing.assert_array_equal(made.dataset.x[made.public], federate(heart).dataset.x[-5:])


def test_a_column_that_no_training_row_has_becomes_0(heart: Dataset) -> None:
    made = federate(heart)
    x, place = heart.x.copy(), heart.columns.index("ca")
    x[train_rows(made), place] = np.nan
    again = federate(replace(heart, x=x))
    assert (again.dataset.x[np.isnan(x[:, place]), place] == 0).all()
    assert np.isfinite(again.gain).all()


def test_missing_values_are_asked_for() -> None:
    x = np.array([[1, np.nan], [2, 3], [4, 5], [6, np.inf]])
    y = np.array([0, 1, 0, 1])
    with pytest.raises(FedekdError, match="missing or infinite values in 2 of 4"):
        Dataset("d", "classification", x, y, 2, scale=None)
    with pytest.raises(FedekdError, match="x has infinite values in 1 of 4"):
        Dataset("d", "classification", x, y, 2, scale=None, gaps=True)
    with pytest.raises(FedekdError, match="only a table"):
        Dataset("d", "classification", np.ones((4, 1, 2, 2)), y, 2, gaps=True)


def test_no_missing_value_passes_unseen(heart: Dataset) -> None:
    with pytest.raises(FedekdError, match="'heart' may have missing values"):
        replace(federate(heart), dataset=heart)
    with pytest.raises(FedekdError, match="missing values; fill them to give a scaling to all"):
        Scaling.of(heart)
    schema = Schema.of(federate(heart).dataset)
    site = of_site(schema.fit(heart), schema, "north", 0, 0)
    assert schema.fit(heart).gaps
    assert not site.dataset.gaps
    assert np.isfinite(site.dataset.x).all()


def test_clusters_of_a_table_with_gaps(heart: Dataset) -> None:
    rows = replace(heart, task="regression", y=column(heart, "age"), outputs=1, labels=())
    assert set(input_clusters(rows, 0).tolist()) == set(range(5))
    assert len(federate(rows, partition="dirichlet", clients=3, alpha=1.0).clients) == 3


def test_other_datasets_are_not_copied() -> None:
    digits = load_dataset("digits")
    assert federate(digits).dataset is digits


# Training


def test_the_same_runs_every_time(heart: Dataset) -> None:
    settings = make_settings({"dataset": "heart", "seeds": "0-1"})
    runs, again = plan(settings), plan(settings)
    assert [run.key for run in runs] == [run.key for run in again]
    assert len({run.key for run in runs}) == len(runs)
    for one, other in zip(runs, again, strict=True):
        np.testing.assert_array_equal(one.job.federation.dataset.x, other.job.federation.dataset.x)
    assert federate(heart).names == HOSPITALS


def test_models_see_numbers_only() -> None:
    settings = make_settings({"dataset": "heart", "rounds": 1, "private": tiny_private, "proxy": tiny_proxy})
    for run in plan(settings):
        engine = Serial(run.job)
        engine.round()
        assert np.isfinite(engine.data.x.numpy()).all()
        assert all(t.isfinite().all() for client in engine.clients for t in client.weights("private").values())


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_a_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str) -> None:
    words = ["run", "--dataset", "heart", "--rounds", "2", "--seeds", "0-1", "--methods", "fedavg"]
    assert cli.main([*words, "--engine", engine, "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(records) == 4  # two seeds of Local and FedAvg
    for record in records:
        assert tuple(client["id"] for client in record["clients"]) == HOSPITALS
        assert [client["n_train"] for client in record["clients"]] == [181, 176, 73, 120]
        assert all(0 <= client["value"] <= 1 for client in record["clients"])


def test_a_study_of_two_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tmp_path / "study.toml"
    grid.write_text('dataset = "heart"\nmethods = ["fedavg"]\nseeds = "0-1"\nrounds = 1\nengine = "stacked"\n')
    assert cli.main(["study", str(grid), "--out", str(tmp_path / "out")]) == 0
    assert len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 4


def test_the_lists_name_whose_data_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "list"]) == 0
    words = capsys.readouterr().out.split()
    assert {"heart", "Janosi,", "Steinbrunn,", "Pfisterer", "Detrano,", "BY"} <= set(words)
    assert cli.main(["data", "show", "heart"]) == 0
    shown = capsys.readouterr().out
    assert "heart, 920 rows, 4 clients, the data's own sites, seed 0" in shown
    assert "VA Long Beach  200" in shown
