"""Settings: presets, what overrides them, and one line for every mistake."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedekd.data.federation import KINDS
from fedekd.data.paper import PAPER
from fedekd.data.public import as_share
from fedekd.data.registry import preset
from fedekd.dataset import TASKS, Reading
from fedekd.errors import FedekdError
from fedekd.settings import (
    CHOICES,
    DEFAULT_PRESET,
    READING,
    Settings,
    make_settings,
    parse_names,
    parse_seeds,
    read_toml,
)


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def trained(settings: Settings) -> dict:
    return {key: getattr(settings, key) for key in DEFAULT_PRESET}


# Presets


@pytest.mark.parametrize("dataset", ["digits", "diabetes", "heart", *(one.name for one in PAPER)])
def test_presets(dataset):
    assert trained(make_settings({"dataset": dataset})) == preset(dataset)


def test_the_papers_preset():
    assert trained(make_settings({"dataset": "fashionmnist"})) == {
        "rounds": 5,
        "epochs": 2,
        "batch_size": 64,
        "lr": 1e-4,
    }


@pytest.mark.parametrize(
    "dataset",
    [
        "FashionMNIST",
        "Fashion-MNIST",
        "fashion mnist",
        "CIFAR-10",
        "CIFAR_10",
        "cifar10",
        "DR-Regular",
        "dr_regular",
    ],
)
def test_every_spelling_of_a_dataset_has_its_preset(dataset):
    assert trained(make_settings({"dataset": dataset})) == preset(dataset) == PAPER[0].preset


def test_own_data_has_a_preset_too():
    settings = make_settings({"dataset": "./patients.csv", "lr": 0.5})
    assert trained(settings) == {"rounds": 10, "epochs": 2, "batch_size": 32, "lr": 0.5}


def test_what_is_given_overrides_the_preset_and_none_does_not():
    settings = make_settings({"dataset": "digits", "rounds": 3, "lr": None, "epochs": 7, "out": None})
    assert trained(settings) == {**preset("digits"), "rounds": 3, "epochs": 7}
    assert settings.out == "fedekd-results"


def test_what_was_given_is_left_as_it_was():
    given = {"beta": 2.0, "seeds": "0-2", "parameters": {"*": {"energy": "kl"}}}
    make_settings(given)
    assert given == {"beta": 2.0, "seeds": "0-2", "parameters": {"*": {"energy": "kl"}}}


def test_settings_cannot_change():
    with pytest.raises(AttributeError):
        make_settings({}).rounds = 3  # type: ignore[misc]


# Seeds and names


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        ("0-9", tuple(range(10))),
        ("0,3,5", (0, 3, 5)),
        ("7", (7,)),
        (7, (7,)),
        (0, (0,)),
        (" 1 , 4-6 ,2 ", (1, 4, 5, 6, 2)),
        ("3-3", (3,)),
        ("1,1,0-2", (1, 0, 2)),
        ([4, 2, 4], (4, 2)),
        (range(3), (0, 1, 2)),
        (np.arange(3), (0, 1, 2)),
        (["0-2", 5], (0, 1, 2, 5)),
    ],
)
def test_seeds(given, seeds):
    assert parse_seeds(given) == seeds
    assert all(type(seed) is int for seed in parse_seeds(given))


@hypothesis_settings(deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=1, unique=True))
def test_seeds_in_any_form_are_the_same(seeds):
    assert parse_seeds(",".join(map(str, seeds))) == parse_seeds(seeds) == tuple(seeds)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "a",
        "1.5",
        "-1",
        "1-",
        "-",
        "1--2",
        "1-2-3",
        "9-0",
        ",",
        "0,,1",
        "0;1",
        "nan",
        "0..9",
        [],
        [1.5],
        [-1],
        True,
        [None],
        {},
        "٣-",
        1.5,
        "0-999999999999",
        "0-9,5-99999",
    ],
)
def test_garbage_in_place_of_seeds(given):
    with pytest.raises(FedekdError, match="seeds") as error:
        make_settings({"seeds": given})
    assert repr(given) in one_line(error)


def test_names():
    assert parse_names("fedekd, fedavg,,fedekd") == ("fedekd", "fedavg")
    assert parse_names(["fml", " local "]) == ("fml", "local")
    one = object()
    assert parse_names([one, "local"]) == (one, "local")
    with pytest.raises(FedekdError, match="no methods given") as error:
        make_settings({"methods": ""})
    one_line(error)


# Hyper-parameters


@pytest.mark.parametrize("value", [0, 0.0, -1, -1e-9, math.nan, math.inf, -math.inf, "0.1", True, [0.1], {}])
@pytest.mark.parametrize("name", ["alpha", "lr"])
def test_rates_are_numbers_above_zero(name, value):
    with pytest.raises(FedekdError, match=f"^{name} must be a number > 0") as error:
        make_settings({name: value})
    assert repr(value) in one_line(error)


@pytest.mark.parametrize("value", [0, -1, 1.0, 2.5, math.nan, math.inf, "3", True, [3]])
@pytest.mark.parametrize(("name", "low"), [("clients", 2), ("rounds", 1), ("epochs", 1), ("batch_size", 1)])
def test_counts_are_whole_numbers(name, low, value):
    with pytest.raises(FedekdError, match=f"^{name} must be a whole number >= {low}") as error:
        make_settings({name: value})
    assert repr(value) in one_line(error)


@pytest.mark.parametrize("value", [0, 0.0, -0.1, 1.01, 2, math.nan, math.inf, "0.5", True, [0.5]])
def test_participation_is_a_share_of_the_clients(value):
    with pytest.raises(FedekdError, match=r"^participation must be a number > 0 and <= 1") as error:
        make_settings({"participation": value})
    assert repr(value) in one_line(error)


@pytest.mark.parametrize("value", [1e-9, 0.2, 1, 1.0])
def test_a_share_of_the_clients_may_take_part(value):
    assert make_settings({}).participation == 1
    assert make_settings({"participation": value}).participation == value


@pytest.mark.parametrize("value", [0.1, "0.1", "1e-3", 0.999])
def test_public_rows_are_a_share(value):
    assert make_settings({}).public is None
    assert as_share(make_settings({"public": value}).public) == float(value)


@pytest.mark.parametrize("value", [0, 0.0, 1, 1.5, -0.1, "1", "-1", "nan", "inf", math.nan, math.inf])
def test_a_public_share_is_between_0_and_1(value):
    with pytest.raises(FedekdError, match=r"^public must be a share > 0 and < 1, or a file, got '") as error:
        make_settings({"public": value})
    assert str(value) in one_line(error)


def test_public_rows_are_in_a_file_that_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in ("rows.npz", "", "10 %", "O.1"):
        with pytest.raises(FedekdError, match=r"^public must be a share such as 0\.1 or a file that is there") as error:
            make_settings({"public": value})
        assert repr(value) in one_line(error)
    Path("rows.npz").touch()
    assert make_settings({"public": "rows.npz"}).public == "rows.npz"
    assert as_share("rows.npz") is None


def test_the_smallest_values_are_taken():
    low = {"clients": 2, "rounds": 1, "epochs": 1, "batch_size": 1, "alpha": 1e-9, "lr": 1e-30}
    settings = make_settings(low)
    assert {name: getattr(settings, name) for name in low} == low
    with pytest.raises(FedekdError, match="clients"):
        make_settings({"clients": 1})


def test_what_lower_rooms_know_is_named_alike():
    assert CHOICES["partition"] == KINDS
    assert CHOICES["task"] == TASKS
    assert tuple(field.name for field in fields(Reading)) == READING


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"partition": "dirichlett"}, "unknown partition 'dirichlett'; did you mean 'dirichlet'?"),
        ({"precision": "fp16"}, "did you mean 'bf16'?"),
        ({"precision": "double"}, "known: bf16, fp32, tf32"),
        ({"weighting": "sample"}, "did you mean 'samples'?"),
        ({"optimizer": "adamw"}, "did you mean 'adam'?"),
        ({"optimizer": "nesterov"}, "known: adam, momentum, sgd"),
        ({"task": "classify"}, "unknown task 'classify'"),
        ({"bach_size": 3}, "unknown setting 'bach_size'; did you mean 'batch_size'?"),
        ({"batch-size": 3}, "did you mean 'batch_size'?"),
        ({"bta": 3}, "did you mean 'beta'?"),
        ({"lambda": 3}, "did you mean 'lambda_kd'?"),
        ({"zzzzzz": 3}, "unknown setting 'zzzzzz'; known: alone, alpha, augment"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(given, hint):
    with pytest.raises(FedekdError) as error:
        make_settings(given)
    assert hint in one_line(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("methods", 5),
        ("dataset", 5),
        ("dataset", Path("patients.csv")),
        ("out", 5),
        ("out", ""),
        ("device", 5),
        ("private", 5),
        ("proxy", [1]),
        ("target", ["a"]),
        ("data", 3.0),
        ("public", True),
        ("public", [0.1]),
        ("parameters", 5),
    ],
)
def test_values_of_the_wrong_type_cost_one_line(name, value):
    with pytest.raises(FedekdError, match=f"^{name} must") as error:
        make_settings({name: value})
    one_line(error)


def test_parameters_are_tables():
    with pytest.raises(FedekdError, match=r"\[parameters.fedekd\] must be a table of values, got 3") as error:
        make_settings({"parameters": {"fedekd": 3}})
    one_line(error)


# Shortcuts


def test_shortcuts_are_for_every_method():
    settings = make_settings({"beta": 2.0, "lambda_kd": 0.5, "energy": "entropy", "parameters": {"fedprox": {"mu": 1}}})
    assert settings.parameters == {
        "*": {"beta": 2.0, "lambda_kd": 0.5, "energy": "entropy"},
        "fedprox": {"mu": 1},
    }


def test_a_table_for_all_methods_overrules_a_shortcut_and_keeps_the_rest():
    settings = make_settings({"beta": 2.0, "lambda_kd": 0.5, "parameters": {"*": {"beta": 3.0, "mu": 1}}})
    assert settings.parameters == {"*": {"beta": 3.0, "lambda_kd": 0.5, "mu": 1}}


def test_a_shortcut_that_is_none_is_not_given():
    assert make_settings({"beta": None}).parameters == {}


# TOML


def written(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_toml_file_speaks_the_command_lines_names(tmp_path):
    path = written(
        tmp_path,
        """
        dataset = "diabetes"
        methods = ["fedekd", "fedprox"]
        seeds = "0-2"
        batch-size = 8
        clients-from = "hospital"
        lambda-kd = 0.25
        beta = 4
        [parameters.fedprox]
        mu = 0.5
        [parameters."fedtype-prox"]
        lam_proxy = 0.1
        """,
    )
    settings = make_settings(read_toml(path))
    assert settings.methods == ("fedekd", "fedprox")
    assert settings.seeds == (0, 1, 2)
    assert (settings.batch_size, settings.epochs) == (8, preset("diabetes")["epochs"])
    assert settings.clients_from == "hospital"
    assert settings.parameters == {
        "*": {"lambda_kd": 0.25, "beta": 4},
        "fedprox": {"mu": 0.5},
        "fedtype-prox": {"lam_proxy": 0.1},
    }


def test_an_empty_toml_file_says_nothing(tmp_path):
    assert read_toml(written(tmp_path, "")) == {}
    assert make_settings(read_toml(str(written(tmp_path, "# nothing")))) == make_settings({})


@pytest.mark.parametrize("text", ["rounds = ", "rounds 3", "[parameters", "a = 1\na = 2", "\0"])
def test_a_file_that_is_not_toml(tmp_path, text):
    with pytest.raises(FedekdError, match="is not valid TOML") as error:
        read_toml(written(tmp_path, text))
    assert "study.toml" in one_line(error)


def test_a_file_of_bytes_or_none_at_all(tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FedekdError, match="is not valid TOML") as error:
        read_toml(tmp_path / "bytes.toml")
    one_line(error)
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(FedekdError, match="cannot read") as error:
            read_toml(path)
        assert str(path) in one_line(error)


@pytest.mark.parametrize(
    "text", ["lr = nan", "lr = inf", "alpha = -inf", "rounds = 2.0", 'clients = "six"', "lr = true"]
)
def test_toml_values_are_checked_as_all_others(tmp_path, text):
    name = text.split()[0]
    with pytest.raises(FedekdError, match=f"^{name} must be"):
        make_settings(read_toml(written(tmp_path, text)))


def test_settings_import_no_torch():
    import subprocess
    import sys

    code = "import sys, fedekd.settings, fedekd.runs.store, fedekd.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("name", ["rounds", "epochs"])
def test_a_billion_rounds_are_a_mistake(name: str) -> None:
    with pytest.raises(FedekdError, match=f"{name} must be at most 100,000, got 1,000,000,000"):
        make_settings({name: 10**9})
