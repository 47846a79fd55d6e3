"""fedekd tune: ranked by validation rows alone, on seeds that are not reported, and resumable."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from fedekd.cli import main, make_parser
from fedekd.errors import FedekdError
from fedekd.runs.store import read_records
from fedekd.studies.tuning import tune

GIVEN = {
    "clients": 3,
    "alpha": 1.0,
    "rounds": 2,
    "epochs": 1,
    "private": "tiny:tiny_private",
    "proxy": "tiny:tiny_proxy",
}
OPTIONS = "--clients 3 --alpha 1.0 --rounds 2 --epochs 1 --private tiny:tiny_private --proxy tiny:tiny_proxy"


@pytest.fixture
def small(tmp_path, monkeypatch, diabetes):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "small.npz", x=diabetes.x, y=diabetes.y)
    return {**GIVEN, "dataset": str(tmp_path / "small.npz"), "out": str(tmp_path / "tuning")}


def means(records, seeds, **params):
    """What the ranking must be made of, by seed."""
    found = []
    for seed in seeds:
        (one,) = [r for r in records if r["seed"] == seed and all(r["params"][k] == v for k, v in params.items())]
        found.append(np.mean([client["val_loss"] for client in one["clients"]]))
    return found


def test_candidates_are_ranked_by_their_validation_loss(small, tmp_path):
    grid = {"beta": ["0.5", "2"], "lr": ["0.001", "0.02"]}
    found = tune("fedekd", grid, small, seeds="100-101", workers=1)
    records = [r for r in read_records(tmp_path / "tuning" / "results.jsonl") if r["method"] == "fedekd"]
    assert len(records) == 2 * 4
    assert {r["seed"] for r in records} == {100, 101}
    for candidate in found.ranking:
        (_, beta), (_, lr) = candidate.changes
        assert candidate.loss == pytest.approx(means(records, found.seeds, beta=float(beta), lr=lr))
    losses = [candidate.mean("loss") for candidate in found.ranking]
    assert losses == sorted(losses)
    assert len(losses) == 4
    assert found.behind(found.best) == (0, 0)
    apart = np.subtract(found.ranking[-1].loss, found.best.loss)
    assert found.behind(found.ranking[-1]) == pytest.approx((apart.mean(), apart.std(ddof=1) / 2**0.5))


def test_test_results_take_no_part(small, tmp_path):
    """The same records with test values turned around give the same ranking."""
    grid = {"weight_decay": [0.0, 0.5], "lr": [0.001, 0.02]}
    first = tune("local", grid, small, seeds=[7], report_seeds=None, workers=1)
    path = tmp_path / "tuning" / "results.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        for client in record["clients"]:
            client.update(value=-client["value"], delta=-client["delta"])
            client["chosen"]["value"] *= -1
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert tune("local", grid, small, seeds=[7], report_seeds=None, workers=1) == first


def test_accuracy_ranks_upwards_and_rmse_downwards(small, tmp_path, digits):
    np.savez(tmp_path / "digits.npz", x=digits.x, y=digits.y)
    grid = {"lr": [0.0001, 0.01]}
    right = tune("local", grid, {**small, "dataset": str(tmp_path / "digits.npz")}, [100], by="value", workers=1)
    assert right.best.value >= right.ranking[1].value
    assert right.metric == "accuracy"
    wrong = tune("local", grid, small, [100], by="value", workers=1)
    assert wrong.best.value <= wrong.ranking[1].value


def test_reported_seeds_are_refused(small, tmp_path):
    grid = {"lr": [0.001]}
    with pytest.raises(FedekdError, match="seed 3 is to be reported and must not be tuned on"):
        tune("local", grid, small, seeds="3-4")
    with pytest.raises(FedekdError, match="seed 101 is to be reported"):
        tune("local", grid, small, report_seeds="101-105")
    assert not (tmp_path / "tuning").exists()
    assert tune("local", grid, small, seeds="3", report_seeds="10-19", workers=1).seeds == (3,)


def test_it_is_said_where_validation_rows_are_tested_later(small):
    grid = {"lr": [0.001]}
    said = [tune("local", grid, {**small, **more}, seeds=[100], workers=1).text() for more in ({}, {"split_seed": 0})]
    assert ["test rows of the seeds to report" in text for text in said] == [True, False]
    folds = tune("local", grid, {**small, "folds": 2}, seeds=[100, 101], workers=1)
    assert "every row is tested once" in folds.text()
    assert tune("local", grid, small, seeds=[100], report_seeds=None, workers=1).tested == ""


@pytest.mark.parametrize("by", ["loss", "value"])
def test_clients_whose_validation_rows_leave_the_metric_undefined_do_not_end_the_search(small, tmp_path, by):
    draw = np.random.default_rng(0)
    y = np.r_[np.zeros(60, int), np.arange(60) % 2]
    np.savez(tmp_path / "s.npz", x=draw.normal(size=(120, 3)), y=y, client=np.repeat(["one", "both"], 60))
    given = {**small, "dataset": str(tmp_path / "s.npz"), "metric": "auroc", "private": "linear"}
    found = tune("local", {"lr": [0.001, 0.02]}, given, seeds=[100, 101], by=by, workers=1)
    assert len(found.ranking) == 2
    assert all(0 <= candidate.mean("value") <= 1 for candidate in found.ranking)


def test_a_finished_search_trains_nothing_again(small, tmp_path, capsys):
    grid = {"lr": [0.001, 0.01]}
    first = tune("fedavg", grid, small, [100], workers=1)
    capsys.readouterr()
    assert tune("fedavg", grid, small, [100], workers=1) == first
    assert "nothing to train" in capsys.readouterr().err
    tune("fedavg", {"lr": [0.001, 0.01, 0.02]}, small, [100], workers=1)
    assert len((tmp_path / "tuning" / "results.jsonl").read_text().splitlines()) == 2 * 3


def test_a_candidate_that_diverges_is_named_and_not_ranked(small):
    found = tune("local", {"lr": [0.001, 1e30]}, {**small, "optimizer": "sgd"}, [100], workers=1)
    assert [candidate.text() for candidate in found.ranking] == ["lr=0.001"]
    assert list(found.failed) == ["lr=1e+30"]
    assert "diverged" in found.failed["lr=1e+30"]
    assert "lr=1e+30 has no result" in found.text()


def test_a_setting_and_a_parameter_of_one_name_are_told_apart(small):
    found = tune("pfedme", {"lr": ["0.001"], "pfedme.lr": ["0.005", "0.05"]}, small, [100], workers=1)
    assert {candidate.changes for candidate in found.ranking} == {
        (("lr", 0.001), ("pfedme.lr", value)) for value in ("0.005", "0.05")
    }
    assert found.ranking[0].loss != found.ranking[1].loss


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({}, "nothing to search"),
        ({"bta": ["1"]}, "did you mean 'beta'"),
        ({"fedavg.mu": ["1"]}, "is not of the method that is tuned"),
        ({"epochs": ["two"]}, "'two' is not a value for epochs"),
        ({"lr": [str(k) for k in range(1, 2000)]}, "1,999 combinations"),
        ({"lr": ["-1"]}, "lr must be a number > 0"),
        ({"choose_rounds": ["true"]}, "choose_rounds"),
    ],
)
def test_what_cannot_be_searched_is_said_in_one_line(small, grid, words):
    with pytest.raises(FedekdError, match=words):
        tune("fedekd", grid, small, [100])


def test_the_command_shows_validation_alone_and_ends_with_a_command_to_run(small, tmp_path, capsys):
    line = f"tune --dataset {small['dataset']} {OPTIONS} --method fedekd --grid beta=0.5,2 --grid lr=0.001,0.01"
    assert main([*line.split(), "--seeds", "100", "--workers", "1", "--choose-rounds"]) == 0
    said = capsys.readouterr()
    assert "Δ" not in said.out + said.err
    assert "mean 0" not in said.err
    lines = said.out.splitlines()
    assert lines[1].endswith("best")
    words = shlex.split(lines[-1].removeprefix("the best: "))
    best = tune("fedekd", {"beta": ["0.5", "2"], "lr": ["0.001", "0.01"]},
                {**small, "out": "fedekd-tuning", "choose_rounds": True}, [100], workers=1).best  # fmt: skip
    given = make_parser().parse_args(words[1:])
    assert (given.methods, given.seeds, given.choose_rounds) == ("fedekd", "0-9", True)
    assert given.set == [f"fedekd.beta={dict(best.changes)['fedekd.beta']}"]
    assert given.lr == dict(best.changes)["lr"]
    assert given.private == "tiny:tiny_private"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tune", "nothing to search"),
        ("tune --grid lr", "--grid takes NAME=VALUE,VALUE"),
        ("tune --grid lr=0.1 --seeds 2", "seed 2 is to be reported"),
        ("tune --grid lr=0.1 --method fedkd", "did you mean"),
        ("tune --grid lr=0.1 --by test", "unknown --by 'test'"),
    ],
)
def test_a_command_that_is_wrong(line, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
