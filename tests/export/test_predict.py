"""New rows meet an exported model: the same answers as the model itself, and one line for what does not fit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedekd import cli
from fedekd.cli import main
from fedekd.data import Dataset
from fedekd.errors import FedekdError
from fedekd.export.export import export
from fedekd.export.predict import predict
from fedekd.runs.inference import load_model
from fedekd.runs.saved_models import read_metadata
from tiny import tiny_private, tiny_proxy
from trained import Trained, patients, train, write_patients

TINY = "tiny:tiny_private"


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with patients.csv, model.safetensors and model.onnx of one hospital."""
    home = tmp_path_factory.mktemp("ward")
    trained = train(home / "out", patients(write_patients(home / "patients.csv")), rounds=3)
    export(trained.folder, "north", home / "model.safetensors")
    return home


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path]:
    """Two kinds of small coloured pictures, and the model of client 0."""
    draw = np.random.default_rng(2)
    y = np.arange(60) % 2
    x = (draw.integers(0, 120, (60, 3, 6, 5)) + 120 * y[:, None, None, None] * np.eye(3)[0][:, None, None]).astype(
        np.uint8
    )
    data = Dataset("colours", "classification", x, y, 2, labels=("blue", "red"), scale=255.0)
    home = tmp_path_factory.mktemp("colours")
    trained = train(home / "out", data, clients=2, private=tiny_private, proxy=tiny_proxy, lr=0.01)
    export(trained.folder, "0", home / "model.safetensors")
    return trained, home / "model.safetensors"


def table(ward: Path) -> pd.DataFrame:
    return pd.read_csv(ward / "patients.csv")


def written(frame: pd.DataFrame, path: Path, **options: Any) -> Path:
    frame.to_csv(path, index=False, **options)
    return path


# Tables


def test_rows_are_named_by_a_column(ward: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is written, so that a patient's number keeps its zeros; one that has none is still in its place."""
    frame = table(ward)
    frame["mrn"] = [f"00{number}" for number in range(len(frame))]
    frame.loc[1, "mrn"] = None
    file, model = written(frame, tmp_path / "new.csv"), ward / "model.safetensors"
    assert main(["predict", str(model), str(file), "--id", "mrn"]) == 0
    out, err = capsys.readouterr()
    assert [line.split(",")[0] for line in out.splitlines()[:4]] == ["row", "000", "", "002"]
    assert "outcome" in err
    assert "mrn" not in err
    with pytest.raises(FedekdError, match=r"unknown column of .* 'mnr'; did you mean 'mrn'"):
        predict(model, file, named_by="mnr")
    np.savez(tmp_path / "rows.npz", x=np.zeros((2, 3)))
    with pytest.raises(FedekdError, match="is no table, so that no column names its rows: leave out --id"):
        predict(model, tmp_path / "rows.npz", named_by="mrn")


def test_a_table_is_encoded_as_it_was_in_training(ward: Path, tmp_path: Path) -> None:
    found = predict(ward / "model.safetensors", ward / "patients.csv")
    x = patients(ward / "patients.csv").x
    direct = load_model(read_metadata(ward / "model.safetensors"))(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_array_equal(found.values, direct)
    assert found.ignored == ("outcome", "hospital")
    rows = list(found.rows())
    assert (rows[0]["row"], rows[-1]["row"]) == ("1", "120")
    assert {row["class"] for row in rows} == {"ill", "well"}
    assert all(0.5 <= float(row["probability"]) <= 1 for row in rows)


def test_columns_are_found_by_name(ward: Path, tmp_path: Path) -> None:
    expected = predict(ward / "model.safetensors", ward / "patients.csv").values
    turned = table(ward)[["sex", "smokes", "dose", "age"]]
    for path in (written(turned, tmp_path / "a.csv"), written(turned, tmp_path / "b.csv", sep=";")):
        found = predict(ward / "model.safetensors", path)
        np.testing.assert_array_equal(found.values, expected)
        assert found.ignored == ()


def test_few_rows_with_few_of_the_texts(ward: Path, tmp_path: Path) -> None:
    expected = predict(ward / "model.safetensors", ward / "patients.csv").values
    frame = table(ward)
    men = frame["sex"] == "m"
    found = predict(ward / "model.safetensors", written(frame[men], tmp_path / "men.csv"))
    np.testing.assert_allclose(found.values, expected[men], rtol=1e-5)
    one = predict(ward / "model.safetensors", written(frame[:1], tmp_path / "one.csv"))
    np.testing.assert_allclose(one.values, expected[:1], rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop(columns="dose"), "has no column 'dose', which the model was trained on"),
        (lambda t: t.drop(columns="sex"), "has no column 'sex'"),
        (lambda t: t.assign(sex=["x", *t["sex"][1:]]), "column 'sex' holds 'x' in row 1; training knew f, m, n/k"),
        (lambda t: t.assign(sex=[*t["sex"][:-1], None]), "column 'sex' holds nothing in row 120"),
        (lambda t: t.assign(age=["old", *t["age"][1:]]), "column 'age' holds 'old' in row 1; training had numbers"),
        (lambda t: t.assign(age=[np.nan, *t["age"][1:]]), "column 'age' holds nothing in row 1"),
        (lambda t: t.assign(age=np.inf), "infinite values in 120 of 120 rows"),
        (lambda t: t[:0], "holds no rows"),
    ],
)
def test_what_a_table_lacks_is_named(
    ward: Path, tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame], words: str
) -> None:
    path = written(change(table(ward)), tmp_path / "new.csv")
    with pytest.raises(FedekdError, match=words) as caught:
        predict(ward / "model.safetensors", path)
    assert "\n" not in str(caught.value)


def test_a_model_trained_without_names_takes_columns_as_they_stand(tmp_path: Path, diabetes: Dataset) -> None:
    nameless = Dataset("rows", "regression", diabetes.x, diabetes.y, 1, scale=None, standardise_target=True)
    export(train(tmp_path / "out", nameless, rounds=1).folder, "0", tmp_path / "m.safetensors")
    np.savez(tmp_path / "rows.npz", x=nameless.x)
    by_array = predict(tmp_path / "m.safetensors", tmp_path / "rows.npz")
    by_table = predict(tmp_path / "m.safetensors", written(pd.DataFrame(nameless.x), tmp_path / "rows.csv"))
    np.testing.assert_allclose(by_array.values, by_table.values, rtol=1e-5)
    assert next(by_array.rows()).keys() == {"row", "prediction"}
    with pytest.raises(FedekdError, match=r"rows of shape \(9,\); the model was trained on \(10,\)"):
        predict(tmp_path / "m.safetensors", written(pd.DataFrame(nameless.x[:, 1:]), tmp_path / "less.csv"))


# Pictures and arrays


def test_pictures_alone_in_a_folder_and_as_arrays(colours: tuple[Trained, Path], tmp_path: Path) -> None:
    trained, model = colours
    x = trained.dataset.x[:4].transpose(0, 2, 3, 1)
    (tmp_path / "folder" / "ward").mkdir(parents=True)
    for number, picture in enumerate(x):
        Image.fromarray(picture).save(tmp_path / "folder" / "ward" / f"{number}.png")
    np.savez(tmp_path / "x.npz", x=x)
    np.savez(tmp_path / "first.npz", x=x.transpose(0, 3, 1, 2))
    one = tmp_path / "folder" / "ward" / "2.png"
    folder, arrays, turned, single = (
        predict(model, path, private=TINY)
        for path in (tmp_path / "folder", tmp_path / "x.npz", tmp_path / "first.npz", one)
    )
    np.testing.assert_array_equal(folder.values, arrays.values)
    np.testing.assert_array_equal(folder.values, turned.values)
    np.testing.assert_allclose(single.values, folder.values[2:3], rtol=1e-5)
    assert folder.names == ["ward/0.png", "ward/1.png", "ward/2.png", "ward/3.png"]
    assert single.names == ["2.png"]


def test_pixels_must_have_the_range_of_training(colours: tuple[Trained, Path], tmp_path: Path) -> None:
    trained, model = colours
    for x, seen in (
        (trained.dataset.x / 255.0, r"0\.\.\d"),
        (trained.dataset.x * 257.0, r"\d{5}"),
        (-1.0 * trained.dataset.x, "-"),
    ):
        np.savez(tmp_path / "x.npz", x=x)
        with pytest.raises(FedekdError, match=rf"pixels of .*{seen}.*; the model was trained on 0\.\.255"):
            predict(model, tmp_path / "x.npz", private=TINY)


def test_pictures_that_do_not_fit(colours: tuple[Trained, Path], ward: Path, tmp_path: Path) -> None:
    _, model = colours
    Image.fromarray(np.zeros((6, 7, 3), np.uint8)).save(tmp_path / "wide.png")
    with pytest.raises(FedekdError, match=r"wide\.png is 7x6 in colour; the model was trained on 5x6 in colour"):
        predict(model, tmp_path / "wide.png", private=TINY)
    Image.fromarray(np.zeros((6, 5), np.uint8)).save(tmp_path / "grey.png")
    assert len(predict(model, tmp_path / "grey.png", private=TINY).values) == 1
    with pytest.raises(FedekdError, match="holds pictures, but the model was trained on rows"):
        predict(ward / "model.safetensors", tmp_path / "grey.png")
    with pytest.raises(FedekdError, match="is a table, but the model was trained on pictures"):
        predict(model, ward / "patients.csv", private=TINY)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FedekdError, match="holds no pictures"):
        predict(model, tmp_path / "empty", private=TINY)


def test_arrays_that_do_not_fit(ward: Path, tmp_path: Path) -> None:
    for arrays, words in (
        ({"x": np.ones((3, 5))}, r"rows of shape \(5,\); the model was trained on \(6,\)"),
        ({"y": np.ones((3, 6))}, "no array 'x'"),
        ({"x": np.array([["a"] * 6])}, "x is <U1"),
        ({"x": np.array([[{}] * 6], object)}, "pickled"),
        ({"x": np.full((3, 6), np.nan)}, "3 of 3 rows"),
    ):
        np.savez(tmp_path / "x.npz", **arrays)
        with pytest.raises(FedekdError, match=words):
            predict(ward / "model.safetensors", tmp_path / "x.npz")


# Model files


def test_files_that_are_no_models(ward: Path, tmp_path: Path) -> None:
    whole = (ward / "model.safetensors").read_bytes()
    for content in (whole[:-100], whole[:40], b"", b"no"):
        (tmp_path / "m.safetensors").write_bytes(content)
        with pytest.raises(FedekdError, match=r"m\.safetensors") as caught:
            predict(tmp_path / "m.safetensors", ward / "patients.csv")
        assert "\n" not in str(caught.value)
    save_file({"w": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(FedekdError, match="no model of `fedekd export`: it does not say its client"):
        predict(tmp_path / "other.safetensors", ward / "patients.csv")
    with pytest.raises(FedekdError, match=r"there is no model file 'none.safetensors'"):
        predict("none.safetensors", ward / "patients.csv")


def test_an_onnx_file_that_is_none(ward: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "m.onnx").write_bytes(b"no")
    with pytest.raises(FedekdError, match=r"m\.onnx is not a whole \.onnx file") as caught:
        predict(tmp_path / "m.onnx", ward / "patients.csv")
    assert "\n" not in str(caught.value)


def test_an_onnx_file_without_a_runtime(ward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FedekdError, match="needs onnxruntime; pip install onnxruntime"):
        predict(tmp_path / "m.onnx", ward / "patients.csv")


@pytest.mark.parametrize(
    "change",
    [
        {"shape": "six"},
        {"shape": [0]},
        {"shape": [2, 3]},
        {"gain": [1, 2]},
        {"gain": 0},
        {"labels": ["a"]},
        {"columns": ["a"]},
        {"target_std": "much"},
        {"task": "both"},
        {"seed": "x"},
        {"number": []},
        {"delta": {}},
    ],
)
def test_metadata_that_cannot_be_right(ward: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    with safe_open(ward / "model.safetensors", "pt") as file:
        about = file.metadata() | {name: json.dumps(value) for name, value in change.items()}
    save_file(load_file(ward / "model.safetensors"), tmp_path / "m.safetensors", about)
    with pytest.raises(FedekdError, match="is damaged: its metadata cannot be right"):
        predict(tmp_path / "m.safetensors", ward / "patients.csv")


# On the command line


def test_the_command_line(
    ward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", str(ward / "out"), "--client", "south", "--to", "m.safetensors"]) == 0
    assert "client south, fedekd, seed 0: m.safetensors, its model card m.card.md" in capsys.readouterr().out
    assert cli.main(["predict", "m.safetensors", str(ward / "patients.csv")]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "row,class,probability"
    assert len(out.splitlines()) == 121
    assert err == "not used, since the model was not trained on them: outcome, hospital\n"
    assert cli.main(["predict", "m.safetensors", str(ward / "patients.csv"), "--out", "new/p.csv"]) == 0
    assert capsys.readouterr().out == "120 predictions in new/p.csv\n"
    assert Path("new/p.csv").read_text() == out
    assert cli.main(["export", str(ward / "out"), "--client", "east", "--to", "m.safetensors"]) == 2
    assert capsys.readouterr().err == "fedekd: no client 'east' here; the clients are: north, south\n"
    assert cli.main(["predict", "m.safetensors", "nowhere.csv"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
