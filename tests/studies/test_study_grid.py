"""What a study file asks for, and that mistakes in it cost one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedekd.errors import FedekdError
from fedekd.runs.plan import choose_methods, make_cells
from fedekd.runs.results import load
from fedekd.studies import load_study, presets

SPLITS = 'dataset = "diabetes"\nseeds = "0-1"\n[[block]]\nsplit_seed = 2\n[[block]]\nseeds = 2'
REGRESSION = ("retinamnist", "dr_regular")


def study(tmp_path, text, overrides=None, only=""):
    (tmp_path / "mine.toml").write_text(text)
    return load_study(tmp_path / "mine.toml", overrides, only)


def asked(settings):
    """What a setting's runs are called on each of its seeds."""
    task = "regression" if settings.dataset in REGRESSION else "classification"
    return {
        (settings.dataset, settings.alpha, s, c.label) for s in settings.seeds for c in choose_methods(settings, task)
    }


def test_lists_multiply(tmp_path):
    text = """
    seeds = "0-2"
    lr = 0.01
    [[block]]
    dataset = ["digits", "cifar10"]
    alpha = [0.1, 0.5, 1]
    methods = ["fedekd"]
    [[block]]
    rounds = 3
    methods = ["fedekd", "fedprox"]
    [block.vary]
    fedekd = {beta = [0.5, 2], lambda_kd = [0, 1]}
    fedprox = {mu = [0.1]}
    """
    grid = study(tmp_path, text).grid
    assert [(s.dataset, s.alpha) for s in grid[:6]] == [(d, a) for d in ("digits", "cifar10") for a in (0.1, 0.5, 1)]
    assert len(grid) == 6 + 4
    assert {s.lr for s in grid} == {0.01}
    assert {s.seeds for s in grid} == {(0, 1, 2)}
    labels = {label for s in grid[6:] for *_, label in asked(s)}
    assert labels == {
        "local", "fedprox (mu=0.1)", "fedekd (beta=0.5)", "fedekd (beta=2.0)",
        "fedekd (beta=0.5, lambda_kd=0.0)", "fedekd (beta=2.0, lambda_kd=0.0)",
    }  # fmt: skip


def test_a_file_of_plain_settings_is_a_study(tmp_path):
    (settings,) = study(tmp_path, 'dataset = "diabetes"\nbatch-size = 7').grid
    assert (settings.dataset, settings.batch_size) == ("diabetes", 7)


def test_fractions_are_cells_of_their_own_with_the_same_test_rows(tmp_path):
    text = "[[block]]\nfraction = 0.1\n[[block]]\nfraction = 0.5\n[[block]]"
    cells = make_cells(study(tmp_path, text).grid)
    few, half, whole = (cell.federation().clients[0] for cell in cells)
    assert len(few.train) < len(half.train) < len(whole.train)
    assert few.test.tolist() == half.test.tolist() == whole.test.tolist()


def test_a_split_seed_holds_in_a_study_for_all_of_its_seeds(tmp_path):
    first, second, other = (cell.federation().partition for cell in make_cells(study(tmp_path, SPLITS).grid))
    assert first == second
    assert first["fixed"]
    assert first["fingerprint"] == other["fingerprint"]
    assert "fixed" not in other


def test_public_rows_and_participation_are_settings_of_a_block(tmp_path):
    text = "[[block]]\npublic = 0.1\nparticipation = 0.5\n[[block]]\npublic = '0.2'\n[[block]]\nalpha = 1"
    grid = study(tmp_path, text).grid
    assert [(s.public, s.participation) for s in grid] == [("0.1", 0.5), ("0.2", 1.0), (None, 1.0)]


def test_what_is_given_now_wins(tmp_path):
    text = "seeds = 3\n[[block]]\nrounds = 9\nprecision = 'bf16'"
    (settings,) = study(tmp_path, text, {"rounds": 1, "seeds": "0-1", "precision": None, "out": "here"}).grid
    assert (settings.rounds, settings.seeds, settings.precision, settings.out) == (1, (0, 1), "bf16", "here")


def test_the_papers_study_holds_its_tables_and_sweeps():
    assert "paper" in presets()
    grid = load_study("paper").grid
    runs = {run for settings in grid for run in asked(settings)}
    assert len(runs) == 10 * (4 * 3 * 22 + 2 * 3 * 15 + 2 * 10)
    assert {s.rounds for s in grid} == {5}
    for beta in (0.25, 0.5, 2.0, 4.0, 8.0):
        assert ("cifar10", 0.5, 9, f"fedekd (beta={beta})") in runs
    for weight in (0.0, 0.25, 0.5, 2.0, 4.0):
        assert ("organamnist", 0.5, 0, f"fedekd (lambda_kd={weight})") in runs
    assert ("dr_regular", 0.1, 5, "constant") in runs
    assert ("dr_regular", 0.3, 1, "fedekd@alone") in runs


def test_the_papers_records_are_what_its_study_asks_for():
    asked_for = {run for settings in load_study("paper").grid for run in asked(settings)}
    found = load(Path(__file__).parents[2] / "results" / "paper").records
    assert {(r["dataset"], r["alpha"], r["seed"], r["label"]) for r in found} <= asked_for


def test_only_keeps_a_part():
    part = load_study("paper", only="dataset=CIFAR-10,dataset=organamnist,alpha=0.5,seed=0-1,seed=4,method=fedekd")
    assert {(s.dataset, s.alpha) for s in part.grid} == {("cifar10", 0.5), ("organamnist", 0.5)}
    assert {s.seeds for s in part.grid} == {(0, 1, 4)}
    assert part.methods == ("fedekd",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[block]]\nmetods = ['fedekd']", "unknown setting 'metods'; did you mean 'methods'"),
        ("[[block]]\nname = 'b'\n[[block]]\nname = 'c'\nlr = -1", "block c of mine.toml: lr must be"),
        ("[[block]]\nvary = {beta = [1]}", "vary must name a method and its parameters"),
        ("[[block]]\nalpha = []", "alpha is an empty list"),
        ("lr = [0.1, 0.2]", r"lr takes one value, got \[0.1, 0.2\]; only dataset, alpha, fraction multiply"),
        ("[block]\nalpha = 1", r"under a line \[\[block\]\]"),
        ("alpha = [0.1, 'x']", "alpha must be a number"),
        ("public = 2", "public must be a share > 0 and < 1"),
        ("participation = 0", "participation must be"),
        ("fraction = 2", "fraction must be"),
    ],
)
def test_mistakes_in_a_file(tmp_path, text, complaint):
    with pytest.raises(FedekdError, match=complaint) as caught:
        study(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("only", "complaint"),
    [
        ("dataset", "takes KEY=VALUE"),
        ("data=cifar10", "unknown key in --only 'data'; did you mean 'dataset'"),
        ("dataset=cifra10", "unknown dataset in --only 'cifra10'; did you mean 'cifar10'"),
        ("alpha=0.2", "unknown alpha in --only '0.2'"),
        ("alpha=low", "must be a number"),
        ("seed=11", "unknown seed in --only '11'"),
    ],
)
def test_mistakes_in_only(only, complaint):
    with pytest.raises(FedekdError, match=complaint):
        load_study("paper", only=only)


def test_an_unknown_study_is_named():
    with pytest.raises(FedekdError, match="unknown study 'papr'; did you mean 'paper'"):
        load_study("papr")
    with pytest.raises(FedekdError, match=r"cannot read nowhere\.toml"):
        load_study("nowhere.toml")
