"""Model files that are not what they say, and models of tables that were read with options."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedekd import cli
from fedekd.data import load_dataset
from fedekd.dataset import Reading
from fedekd.errors import FedekdError
from fedekd.export.export import export
from fedekd.export.predict import predict
from fedekd.runs.inference import load_model
from fedekd.runs.saved_models import find_models, read_metadata
from trained import Trained, patients, train, write_patients


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tmp_path_factory.mktemp("clinic")
    return train(home / "out", patients(write_patients(home / "patients.csv")), rounds=1)


@pytest.fixture
def model(clinic: Trained, tmp_path: Path) -> Path:
    export(clinic.folder, "north", tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def rows_of(clinic: Trained) -> Path:
    return clinic.folder.parent / "patients.csv"


def forged(model: Path, tensors: dict[str, torch.Tensor] | None = None, **about: Any) -> None:
    with safe_open(model, "pt") as file:
        known = file.metadata() | {name: json.dumps(value) for name, value in about.items()}
    save_file({**load_file(model), **(tensors or {})}, model, known)


@pytest.mark.parametrize(
    "about",
    [
        {"shape": [10**12]},
        {"shape": [3, 10**5, 10**5], "columns": []},
        {"shape": [1e400]},
        {"outputs": 10**12, "labels": []},
        {"outputs": 10**400},
        {"seed": -1},
        {"seed": 10**40},
        {"number": 10**20},
        {"target_mean": 1e400},
        {"reading": ["decimal"]},
        {"reading": {"decimal": "x"}},
        {"reading": {"na_values": [1]}},
        {"fill": [1, 2]},
    ],
)
def test_forged_sizes_and_numbers_are_found_at_once(clinic: Trained, model: Path, about: dict[str, Any]) -> None:
    forged(model, **about)
    start = time.monotonic()
    with pytest.raises(FedekdError, match="is damaged: its metadata cannot be right"):
        predict(model, rows_of(clinic))
    assert time.monotonic() - start < 5


def test_metadata_that_is_nested_too_deep(clinic: Trained, model: Path) -> None:
    with safe_open(model, "pt") as file:
        known = file.metadata() | {"labels": "[" * 100_000}
    save_file(load_file(model), model, known)
    with pytest.raises(FedekdError, match=r"not a whole .safetensors file"):
        predict(model, rows_of(clinic))


def test_weights_that_are_no_numbers(clinic: Trained, model: Path) -> None:
    name, tensor = next(iter(load_file(model).items()))
    forged(model, {name: torch.full_like(tensor, float("nan"))})
    with pytest.raises(FedekdError, match="weights that are no numbers"):
        predict(model, rows_of(clinic))


def test_answers_that_are_no_numbers(clinic: Trained, model: Path) -> None:
    forged(model, {name: torch.full_like(t, 3e38) for name, t in load_file(model).items()})
    with pytest.raises(FedekdError, match="gives no number for row 1"):
        predict(model, rows_of(clinic))


def test_a_damaged_model_does_not_stand_in_the_way_of_others(clinic: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    kept = [one.path.relative_to(clinic.folder) for one in find_models(clinic.folder)]
    for path in (*kept, Path("results.jsonl")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes((clinic.folder / path).read_bytes())
    one = next(m for m in find_models(folder) if m.method == "fedekd" and m.client == "south")
    one.path.write_bytes(one.path.read_bytes()[:100])
    export(folder, "north", tmp_path / "m.safetensors")
    with pytest.raises(FedekdError, match=r"no client 'south' here; .* 1 more cannot be used: .* not a whole"):
        export(folder, "south", tmp_path / "n.safetensors")
    for path in kept:
        (folder / path).write_bytes(b"")
    with pytest.raises(FedekdError, match="not a whole"):
        export(folder, "north", tmp_path / "n.safetensors")


def test_an_unreadable_model_is_not_called_damaged(clinic: Trained, tmp_path: Path) -> None:
    for name in ("m.safetensors", "m.onnx"):
        (tmp_path / name).symlink_to("/proc/self/mem")  # which can be opened and not read, even by root
        pytest.importorskip("onnxruntime")
        with pytest.raises(FedekdError, match=r"cannot read .* check that it is a file that you may read"):
            predict(tmp_path / name, rows_of(clinic))


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("os:getcwd", "must take"),
        ("math:pi", "not a function"),
        ("builtins:print", "returned NoneType, not an nn.Module"),
        ("torch:zeros", "factory"),
        ("torch.nn:Module", "must take"),
        ("operator:truediv", "must take"),
        ("json:loads", "must take"),
        ("lying_module:make", "SyntaxError"),
        ("raising_module:make", "ValueError: no weights today"),
    ],
)
def test_factories_that_give_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: str, words: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lying_module.py").write_text("def make(:\n")
    (tmp_path / "raising_module.py").write_text("def make(shape, outputs):\n    raise ValueError('no weights today')\n")
    given = ["--rounds", "1", "--methods", "fedavg", "--out", str(tmp_path / "out"), "--quiet"]
    assert cli.main(["run", "--private", named, *given]) == 2
    assert words in capsys.readouterr().err


# --- tables that were read with options --------------------------------------------------------------------


def hospital_table(path: Path) -> Path:
    """As write_patients, with a decimal comma, days of birth, a name, and values that are missing or below a limit."""
    draw = np.random.default_rng(3)
    lines = ["name;born;crp;sex;outcome"]
    for k in range(90):
        crp = "<5" if k % 11 == 0 else f"{draw.normal(20, 5):.2f}".replace(".", ",")
        born = f"{draw.integers(1, 29)}.{draw.integers(1, 13)}.{draw.integers(1930, 2000)}" if k % 13 else ""
        lines.append(f"P{k};{born};{crp};{'' if k % 17 == 0 else 'mf'[k % 2]};{'ill' if k % 3 else 'well'}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("missing", ["mean", "flag"])
def test_new_rows_are_read_as_the_training_rows_were(tmp_path: Path, missing: str) -> None:
    path = hospital_table(tmp_path / "a.csv")
    reading = Reading(("name",), ",", missing, "age", ("<5",))
    data = load_dataset(path, target="outcome", reading=reading)
    trained = train(tmp_path / "out", data, rounds=1, clients=2, alpha=100.0)
    export(trained.folder, "0", tmp_path / "m.safetensors")
    found = predict(tmp_path / "m.safetensors", path)
    x = torch.from_numpy(trained.federation.dataset.x)
    direct = load_model(read_metadata(tmp_path / "m.safetensors"))(x).detach().numpy()
    np.testing.assert_allclose(found.values, direct, atol=1e-6)
    assert found.ignored == ("name", "outcome")


def test_a_model_without_a_way_to_fill_wants_whole_rows(clinic: Trained, model: Path, tmp_path: Path) -> None:
    text = rows_of(clinic).read_text().splitlines()
    (tmp_path / "a.tsv").write_text("\n".join([text[0], "," + text[1].split(",", 1)[1]]).replace(",", "\t") + "\n")
    with pytest.raises(FedekdError, match="'age' holds nothing in row 1"):
        predict(model, tmp_path / "a.tsv")
