"""A site's model leaves a results folder whole: the same answers, its card, and nothing that was not asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedekd.errors import FedekdError
from fedekd.export.card import make_card, verdict
from fedekd.export.export import export
from fedekd.export.predict import predict
from fedekd.runs.metadata import ModelMetadata
from fedekd.runs.results import load
from fedekd.runs.saved_models import find_models, read_metadata
from fedekd.runs.transfer import analyse
from fedekd.runs.verdict_text import STATES, advice_by_client
from fedekd.units import Unit
from tiny import tiny_proxy
from trained import Trained, by_number, patients, train, write_patients


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tmp_path_factory.mktemp("wards")
    return train(home / "out", patients(write_patients(home / "ward.csv")), methods=["fedekd", "fedavg"], rounds=4)


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory, digits: Any) -> Trained:
    return train(tmp_path_factory.mktemp("scans") / "out", digits)


@pytest.fixture(scope="module")
def progress(tmp_path_factory: pytest.TempPathFactory, diabetes: Any) -> Trained:
    return train(tmp_path_factory.mktemp("progress") / "out", diabetes, rounds=3)


def saved(trained: Trained, position: int, path: Path) -> Path:
    """The rows on which the run has measured a client."""
    np.savez(path, x=trained.dataset.x[trained.test_rows(position)])
    return path


@pytest.mark.parametrize("kind", ["safetensors", "onnx"])
@pytest.mark.parametrize("position", [0, 2])
def test_the_model_scores_what_its_run_measured(scans: Trained, tmp_path: Path, kind: str, position: int) -> None:
    if kind == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    export(scans.folder, str(position), tmp_path / f"m.{kind}")
    found = predict(tmp_path / f"m.{kind}", saved(scans, position, tmp_path / "rows.npz"))
    right = found.values.argmax(1) == scans.dataset.y[scans.test_rows(position)]
    assert right.mean() == pytest.approx(scans.client(position)["value"], abs=1e-12)
    np.testing.assert_allclose(found.values.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("kind", ["safetensors", "onnx"])
def test_a_regression_answers_in_the_targets_units(progress: Trained, tmp_path: Path, kind: str) -> None:
    if kind == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    export(progress.folder, "1", tmp_path / f"m.{kind}")
    found = predict(tmp_path / f"m.{kind}", saved(progress, 1, tmp_path / "rows.npz"))
    error = found.values - progress.dataset.y[progress.test_rows(1)]
    assert np.sqrt((error**2).mean()) == pytest.approx(progress.client(1)["value"], rel=1e-5)
    assert 25 < found.values.mean() < 350  # not standardised ones


def test_weights_and_facts_are_those_that_were_kept(wards: Trained, tmp_path: Path) -> None:
    metadata = export(wards.folder, "south", tmp_path / "m.safetensors")
    assert (metadata.client, metadata.method, metadata.seed) == ("south", "fedekd", 0)
    kept, given = load_file(metadata.path), load_file(tmp_path / "m.safetensors")
    assert kept.keys() == given.keys()
    assert all(torch.equal(kept[name], given[name]) for name in kept)
    about = read_metadata(tmp_path / "m.safetensors")
    assert about.columns == ("age", "dose", "smokes", "sex=f", "sex=m", "sex=n/k")
    assert about.labels == ("ill", "well")
    assert about.about["card"] == (tmp_path / "m.card.md").read_text()


def test_equal_models_are_equal_files(wards: Trained, tmp_path: Path) -> None:
    again = train(tmp_path / "again", wards.dataset, methods=["fedekd", "fedavg"], rounds=4)
    kept, anew = ([m.path.read_bytes() for m in find_models(trained.folder)] for trained in (wards, again))
    assert kept == anew
    assert len(set(kept)) == 6, "local, fedekd and fedavg at two sites"
    for there in ("one", "other"):
        export(wards.folder, "south", tmp_path / there / "m.safetensors")
    one, other = (tmp_path / there / "m.safetensors" for there in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()


def test_the_card_states_what_a_site_must_know(wards: Trained, tmp_path: Path) -> None:
    export(wards.folder, "south", tmp_path / "m.safetensors")
    card, own = (tmp_path / "m.card.md").read_text(), wards.client(1)
    assert own["id"] == "south"
    assert f"| fedekd | {100 * own['value']:.1f} % |" in card
    assert f"| trained alone (Local) | {100 * own['local']:.1f} % |" in card
    assert f"{own['n_train']} to train, {own['n_val']} to validate, {own['n_test']} to test" in card
    for words in ("ill, well", "| age | ", "| sex=n/k | ", "standardised", "rounds 4", "fedekd.models:private", "Δ"):
        assert words in card


def test_the_card_says_what_becomes_of_missing_values(wards: Trained) -> None:
    one = find_models(wards.folder)[0]
    filled = ModelMetadata(one.path, {**one.about, "fill": [0.5] * len(one.columns)})
    told = "a missing number is filled with its mean over training rows"
    assert [told in make_card(metadata, [], "m.onnx") for metadata in (one, filled)] == [False, True]


def test_the_card_of_pictures_names_their_range(scans: Trained, tmp_path: Path) -> None:
    export(scans.folder, "0", tmp_path / "m.safetensors")
    assert "pixels of 0..16 become -1..1" in (tmp_path / "m.card.md").read_text()


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"delta": 0.02}, "better off by sign alone"),
        ({"delta": -0.02}, "--method local"),
        ({"delta": 0.0}, "no difference"),
        ({"delta": 3.0, "metric": "rmse"}, "worse off by sign alone"),
        ({"delta": -3.0, "metric": "rmse"}, "better off by sign alone"),
        ({"delta": None}, "not known"),
        ({"delta": 0.0, "method": "local"}, "trained alone"),
    ],
)
def test_without_the_runs_record_the_sign_is_all_there_is(wards: Trained, about: dict[str, Any], words: str) -> None:
    one = find_models(wards.folder)[0]
    metadata = ModelMetadata(one.path, {**one.about, "method": "fedekd", "metric": "accuracy", **about})
    assert words in verdict(metadata, [])
    assert words in make_card(metadata, [], "m.onnx")


def test_the_card_has_the_verdict_of_its_folder(wards: Trained, tmp_path: Path) -> None:
    export(wards.folder, "south", tmp_path / "m.safetensors", method="fedavg")
    card = (tmp_path / "m.card.md").read_text()
    records = load(wards.folder).records
    methods = {method.label: method for method in analyse(records)}
    (own,) = [client for client in methods["fedavg"].clients if client.client == "south"]
    unit = Unit.of(records)
    (advice,) = [one for (name, _), one in advice_by_client(methods.values(), unit).items() if name == "south"]
    assert f"fedavg: {STATES[own.verdict.state]}: " in card
    assert f"Should this client join? {advice.decision.capitalize()}" in card
    assert f"gain over the best alone (local) | {unit.delta(own.verdict.difference)} points" in card
    assert "One seed tells you about these trained models" in card


def test_onnx_takes_any_number_of_raw_rows(scans: Trained, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    export(scans.folder, "0", tmp_path / "m.onnx")
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    for count in (1, 7):
        rows = scans.dataset.x[:count].astype(np.float32)
        (out,) = session.run(["probabilities"], {"rows": rows})
        np.testing.assert_allclose(out.sum(1), 1, rtol=1e-5)
        assert out.shape == (count, 10)
    about = session.get_modelmeta().custom_metadata_map
    assert "pixels of 0..16" in json.loads(about["card"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.card.md", "m.onnx"]


def test_onnx_without_its_extra(scans: Trained, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['onnx'] = sys.modules['onnxscript'] = None\n"
        "from fedekd.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ["export", str(scans.folder), "--client", "0", "--to", "m.onnx"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr == "fedekd: an .onnx file needs onnxscript; pip install 'fedekd[onnx]'\n"
    assert not list(tmp_path.iterdir())


def test_which_method_and_seed(wards: Trained, tmp_path: Path) -> None:
    assert export(wards.folder, "north", tmp_path / "m.safetensors", method="local").method == "local"
    assert export(wards.folder, "north", tmp_path / "m.safetensors", method="fedavg", seed=0).method == "fedavg"


def test_of_runs_that_fit_alike_the_last_is_taken(tmp_path: Path) -> None:
    data = patients(write_patients(tmp_path / "ward.csv"))
    for rounds in (2, 1):
        trained = train(tmp_path / "out", data, rounds=rounds, methods=["fedavg"], proxy=tiny_proxy)
    metadata = export(tmp_path / "out", "north", tmp_path / "m.safetensors")
    assert metadata.about["key"] == trained.result.records[-1]["key"]
    assert metadata.method == "fedavg"  # the only one besides Local


def test_of_several_methods_without_fedekd_one_must_be_named(tmp_path: Path) -> None:
    data = patients(write_patients(tmp_path / "ward.csv"))
    train(tmp_path / "out", data, rounds=1, methods=["fedavg", "fedprox"], proxy=tiny_proxy)
    with pytest.raises(FedekdError, match=r"several methods were run; say whose model with --method: fed\w+, fed\w+$"):
        export(tmp_path / "out", "north", tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"client": "nort"}, "no client 'nort' here; the clients are: north, south"),
        ({"method": "fedkd"}, "unknown method 'fedkd'; did you mean 'fedekd'"),
        ({"seed": 3}, "no model of fedekd with seed 3 is kept; kept: 0"),
        ({"to": "m.pt"}, "ends in .safetensors or .onnx"),
        ({"folder": "nowhere"}, "there is no folder 'nowhere'"),
        ({"private": "tiny:tiny_private", "to": "m.onnx"}, "do not fit the model tiny:tiny_private"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    wards: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"folder": wards.folder, "client": "north", "to": "m.safetensors", **given}
    with pytest.raises(FedekdError, match=words) as caught:
        export(given.pop("folder"), given.pop("client"), given.pop("to"), **given)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_no_models_kept(tmp_path: Path) -> None:
    data = patients(write_patients(tmp_path / "ward.csv"))
    train(tmp_path / "out", data, rounds=1, methods=["fedavg"], models="none")
    with pytest.raises(FedekdError, match=r"no models are kept in .*--models first"):
        export(tmp_path / "out", "north", tmp_path / "m.safetensors")


# Models of one's own


def test_the_column_that_names_rows_is_no_input(progress: Trained, tmp_path: Path) -> None:
    """Also where the model was trained on columns without names, and takes a table's as they stand."""
    nameless = train(tmp_path / "out", replace(progress.dataset, columns=()), rounds=1)
    export(nameless.folder, "1", tmp_path / "m.safetensors")
    rows = saved(nameless, 1, tmp_path / "rows.npz")
    assert not read_metadata(tmp_path / "m.safetensors").columns
    frame = pd.DataFrame(np.load(rows)["x"])
    frame.insert(0, "patient", [f"p{k}" for k in range(len(frame))])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    found = predict(tmp_path / "m.safetensors", tmp_path / "rows.csv", named_by="patient")
    np.testing.assert_allclose(found.values, predict(tmp_path / "m.safetensors", rows).values, rtol=1e-5)
    assert next(iter(found.rows()))["row"] == "p0"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, digits: Any) -> Trained:
    return train(tmp_path_factory.mktemp("own") / "out", digits, private=by_number, proxy=tiny_proxy, rounds=1)


@pytest.mark.parametrize("position", [0, 2])
def test_a_model_of_ones_own_is_built_for_its_client(own: Trained, tmp_path: Path, position: int) -> None:
    export(own.folder, str(position), tmp_path / "m.safetensors")
    rows = saved(own, position, tmp_path / "rows.npz")
    with pytest.raises(FedekdError, match=r"holds a model of your own; .*--private trained:by_number"):
        predict(tmp_path / "m.safetensors", rows)
    found = predict(tmp_path / "m.safetensors", rows, private="trained:by_number")
    right = found.values.argmax(1) == own.dataset.y[own.test_rows(position)]
    assert right.mean() == pytest.approx(own.client(position)["value"], abs=1e-12)


def test_where_code_of_ones_own_is_looked_for(own: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    export(own.folder, "1", "m.safetensors")
    rows = saved(own, 1, tmp_path / "rows.npz")
    with pytest.raises(FedekdError, match=r"No module named 'nets'; looked for .*site\.toml") as caught:
        predict("m.safetensors", rows, private="nets:private")
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(FedekdError, match=r"has no attribute 'wide'$"):
        predict("m.safetensors", rows, private="trained:wide")


def test_an_onnx_file_needs_no_code_of_ones_own(own: Trained, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    with pytest.raises(FedekdError, match="--private trained:by_number"):
        export(own.folder, "1", tmp_path / "m.onnx")
    export(own.folder, "1", tmp_path / "m.onnx", private="trained:by_number")
    found = predict(tmp_path / "m.onnx", saved(own, 1, tmp_path / "rows.npz"))
    right = found.values.argmax(1) == own.dataset.y[own.test_rows(1)]
    assert right.mean() == pytest.approx(own.client(1)["value"], abs=1e-12)


def test_a_name_in_a_file_is_never_imported_by_itself(scans: Trained, tmp_path: Path) -> None:
    source = find_models(scans.folder)[0].path
    with safe_open(source, "pt") as file:
        about = {**file.metadata(), "model": json.dumps("trained:not_run")}
    save_file(load_file(source), tmp_path / "m.safetensors", about)
    with pytest.raises(FedekdError, match="say where its code is: --private trained:not_run"):
        predict(tmp_path / "m.safetensors", saved(scans, 0, tmp_path / "rows.npz"))


def test_a_module_that_onnx_cannot_draw(tmp_path: Path, digits: Any) -> None:
    pytest.importorskip("onnxscript")
    trained = train(tmp_path / "out", digits, private=wilful, proxy=tiny_proxy, rounds=1)
    with pytest.raises(FedekdError, match="cannot export test_export:wilful to ONNX") as caught:
        export(trained.folder, "0", tmp_path / "m.onnx", private="test_export:wilful")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m.onnx").exists()


class Wilful(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x.flatten(1))
        return out if float(out.detach().sum()) > 0 else -out


def wilful(shape: Any, outputs: int) -> torch.nn.Module:
    return Wilful(int(np.prod(shape)), outputs)
