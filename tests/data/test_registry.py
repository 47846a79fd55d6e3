from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedekd.data import Dataset, catalogue, data_folder, load_dataset, register_dataset, registry
from fedekd.errors import FedekdError
from fedekd.settings import DEFAULT_PRESET, make_settings

LIGHT = """
import sys, fedekd.data
fedekd.data.catalogue()
heavy = ("torch", "sklearn", "pandas", "h5py", "PIL", "pooch", "requests", "rich")
print([name for name in heavy if name in sys.modules])
"""


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_RECIPES", dict(registry._RECIPES))
    monkeypatch.setattr(registry, "_NAMES", dict(registry._NAMES))


def mine(folder: Path) -> Dataset:
    return Dataset("mine", "classification", np.eye(4), np.arange(4) % 2, 2, scale=None, source=str(folder))


def test_importing_is_light() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["digits", "Digits", "DIGITS"])
def test_names_may_be_spelt_freely(name: str) -> None:
    assert load_dataset(name).name == "digits"


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("CIFAR-10", "cifar10"),
        ("Fashion-MNIST", "fashionmnist"),
        ("fashion_mnist", "fashionmnist"),
        ("OrganAMNIST", "organamnist"),
        ("Diabetic Retinopathy", "dr_regular"),
        ("dr_regular", "dr_regular"),
    ],
)
def test_aliases(spelling: str, name: str) -> None:
    assert registry.recipe(spelling).name == name


def test_embedded() -> None:
    digits, diabetes = load_dataset("digits"), load_dataset("diabetes")
    assert (digits.x.shape, digits.x.dtype, int(digits.x.max()), digits.scale) == ((1797, 1, 8, 8), np.uint8, 16, 16)
    assert (diabetes.x.shape, diabetes.scale, diabetes.standardise_target) == ((442, 10), None, True)
    assert diabetes.x[:, 0].max() > 70  # ages in years: the raw table


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(FedekdError, match="unknown dataset 'cifar11'; did you mean 'cifar10'"):
        load_dataset("cifar11")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "age"}, "--target 'age' is for your own files"),
        ({"clients_from": "age"}, "--clients-from 'age' is for your own files"),
        ({"task": "regression"}, "is a classification, not a regression"),
        ({"task": "regress"}, "did you mean 'regression'"),
    ],
)
def test_options_of_own_files(options: dict[str, str], words: str) -> None:
    with pytest.raises(FedekdError, match=words):
        load_dataset("digits", **options)
    assert load_dataset("digits", task="classification").outputs == 10


@pytest.mark.usefixtures("scratch")
def test_a_dataset_of_the_users(tmp_path: Path) -> None:
    register_dataset("mine", mine, title="My own", samples=4, shape="4", aliases=("ours",))
    assert load_dataset("Ours", data_dir=tmp_path).source == str(tmp_path)
    assert catalogue()[-1].present, "built in"
    with pytest.raises(FedekdError, match="already names 'mine'"):
        register_dataset("mine", mine)
    register_dataset("mine", mine, replace=True)
    with pytest.raises(FedekdError, match="'CIFAR-10' already names 'cifar10'"):
        register_dataset("other", mine, aliases=("CIFAR-10",), replace=True)
    with pytest.raises(FedekdError, match="no letter or digit"):
        register_dataset("-", mine)


@pytest.mark.usefixtures("scratch")
def test_a_dataset_brings_its_preset() -> None:
    register_dataset("mine", mine, title="My own", preset={"rounds": 3, "lr": 0.5})
    settings = make_settings({"dataset": "My Own", "lr": 0.1})
    assert (settings.rounds, settings.lr) == (3, 0.1)
    assert settings.epochs == DEFAULT_PRESET["epochs"]
    with pytest.raises(FedekdError, match="preset of dataset 'other' 'round'; did you mean 'rounds'"):
        register_dataset("other", mine, preset={"round": 3})


def test_a_loader_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hospital_rows.py").write_text(
        "import numpy as np\nfrom fedekd.data import Dataset\nnothing = 3\n"
        "def load(folder):\n    return Dataset('h', 'regression', np.eye(3), np.arange(3), 1, scale=None)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_dataset("hospital_rows:load").name == "h"
    for wrong in ("hospital_rows:loader", "no_such_module:load", "hospital_rows:nothing"):
        with pytest.raises(FedekdError, match=wrong):
            load_dataset(wrong)


def test_where_the_data_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "fedekd"
    monkeypatch.setenv("FEDEKD_DATA", str(tmp_path / "env"))
    assert data_folder() == tmp_path / "env"
    assert data_folder(tmp_path) == tmp_path
    monkeypatch.delenv("FEDEKD_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folder() == Path("~/.cache/fedekd").expanduser()


def test_catalogue(tmp_path: Path) -> None:
    entries = {entry.name: entry for entry in catalogue(tmp_path)}
    assert list(entries)[:3] == ["digits", "diabetes", "heart"]
    six = {"fashionmnist", "cifar10", "octmnist", "organamnist", "retinamnist", "dr_regular"}
    assert set(entries) == six | {"digits", "diabetes", "heart"}
    assert entries["digits"].present
    assert not any(entries[name].present for name in six)
    (tmp_path / "octmnist.npz").write_bytes(b"")
    assert not catalogue(tmp_path)[5].present
    (tmp_path / "octmnist.npz").write_bytes(b"something")
    octmnist = catalogue(tmp_path)[5]
    assert (octmnist.name, octmnist.present) == ("octmnist", True)
