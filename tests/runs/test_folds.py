"""Every row tested: folds of each client's rows, and a verdict over all of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import fedekd
from fedekd import verdicts
from fedekd.data.partition import Fold, cut
from fedekd.errors import FedekdError
from fedekd.export.export import export
from fedekd.report.page import write_handout
from fedekd.runs.folds import end_to_end
from fedekd.runs.row_results import rows_of
from fedekd.runs.subgroups import by_subgroup
from fedekd.runs.transfer import analyse
from fedekd.runs.verdict_text import caveats
from fedekd.settings import make_settings
from fedekd.units import Unit

PATIENTS = {"Cleveland": 303, "Hungary": 294, "Switzerland": 123, "VA Long Beach": 200}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fedekd.run(
        "heart",
        methods=["fedavg"],
        folds=3,
        rounds=1,
        epochs=1,
        subgroups="sex",
        progress=False,
        out=str(tmp_path_factory.mktemp("folds")),
    )


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("of", [2, 3, 5, 7])
def test_folds_share_no_row_and_test_all(of, groups):
    rows = np.arange(100, 183)
    named = np.repeat(np.arange(40), 3)[: len(rows)] if groups else None
    cuts = [cut(rows, np.random.default_rng(5), named, Fold(number, of)) for number in range(of)]
    tested = np.concatenate([test for _, _, test in cuts])
    np.testing.assert_array_equal(np.sort(tested), rows)
    for train, val, test in cuts:
        np.testing.assert_array_equal(np.sort(np.concatenate([train, val, test])), rows)
        assert len(test) == pytest.approx(len(rows) / of, abs=4 if groups else 1)
        assert len(val) == pytest.approx((len(train) + len(val)) / 4, abs=4 if groups else 1)
        if groups:
            assert not set(named[train - 100]) & set(named[test - 100])


def test_one_of_five_is_nearly_the_usual_split():
    rows = np.arange(100)
    usual = cut(rows, np.random.default_rng(1))
    last = cut(rows, np.random.default_rng(1), None, Fold(4, 5))
    for one, other in zip(usual, last, strict=True):
        np.testing.assert_array_equal(one, other)


def test_more_folds_than_rows_are_refused():
    with pytest.raises(FedekdError, match="a client has 6 rows, too few for 7 folds; take fewer folds"):
        cut(np.arange(6), np.random.default_rng(0), None, Fold(0, 7))
    assert [len(part) for part in cut(np.arange(6), np.random.default_rng(0), None, Fold(0, 6))] == [3, 2, 1]


def test_settings_fill_in_seeds_and_split():
    settings = make_settings({"dataset": "heart", "folds": 4})
    assert settings.seeds == (0, 1, 2, 3)
    assert settings.split_seed == 0
    assert make_settings({"folds": 4, "seeds": "4-7", "split_seed": 3}).split_seed == 3


@pytest.mark.parametrize("seeds", ["0", "0-2", "0-4", "0,4,8,12"])
def test_seeds_must_test_all_folds_equally_often(seeds):
    with pytest.raises(FedekdError, match="do not test all equally often; take 0-3, or 0-7"):
        make_settings({"folds": 4, "seeds": seeds})


@pytest.mark.parametrize("folds", [0, 1, 101, True, "5", 2.5])
def test_folds_is_a_number_from_two_on(folds):
    with pytest.raises(FedekdError, match="folds must be a whole number from 2 to 100"):
        make_settings({"folds": folds})


def test_the_verdict_is_over_every_patient(run):
    (fedavg,) = run.transfer
    assert {client.client: client.n_test for client in fedavg.clients} == PATIENTS
    assert {client.client: client.verdict.rows for client in fedavg.clients} == PATIENTS
    assert all(client.verdict.seeds == 1 and client.seeds == (0, 1, 2) for client in fedavg.clients)
    assert fedavg.one_split
    assert fedavg.folds == 3


def test_its_difference_is_that_of_all_rows_together(run):
    (fedavg,) = run.transfer
    by = {(record["label"], record["seed"]): record for record in run.records}
    for position, client in enumerate(fedavg.clients):
        right = {
            label: np.concatenate([rows_of(by[label, seed], position) for seed in range(3)])
            for label in ("fedavg", "local")
        }
        assert len(right["local"]) == PATIENTS[client.client]
        assert client.verdict.difference == pytest.approx(right["fedavg"].mean() - right["local"].mean())
        assert client.values == pytest.approx((right["local"].mean(), right["fedavg"].mean()), abs=1e-7)
        assert client.parts["gain"] == pytest.approx(client.verdict.difference, abs=1e-7)


def test_a_subgroup_is_judged_over_every_patient(run):
    (found,) = by_subgroup(run.records, run.folder)
    assert sum(one.rows for one in found.found) == sum(PATIENTS.values())
    assert all(one.state is not None for one in found.found)


def test_it_is_said(run):
    said = caveats(run.transfer, Unit.of(run.records))
    assert said[-1].startswith("Every row of a client was tested once, by a model trained without it (3 folds);")
    assert "--seeds 0-5" in said[-1]
    unfinished = analyse([record for record in run.records if record["seed"] < 2], run.folder)
    assert caveats(unfinished, Unit.of(run.records))[-1].startswith("Only 2 of 3 folds are finished")


def test_a_ranking_is_taken_in_each_fold(tmp_path):
    ranked = fedekd.run(
        "heart", methods=["fedavg"], folds=2, rounds=1, epochs=1, metric="auroc", progress=False, out=str(tmp_path)
    )
    (fedavg,) = analyse(ranked.records, ranked.folder)
    for client in fedavg.clients:
        assert client.verdict.rows == PATIENTS[client.client]
        assert client.verdict.difference == pytest.approx(client.parts["gain"], abs=0.01)


def test_a_fold_on_which_the_metric_is_not_defined_is_left_out(tmp_path):
    draw = np.random.default_rng(0)
    y = np.r_[np.arange(60) < 3, np.arange(60) % 2 == 0].astype(int)
    np.savez(
        tmp_path / "sites.npz", x=draw.normal(size=(120, 3)) + y[:, None], y=y, client=np.repeat(["rare", "b"], 60)
    )
    options = {"methods": ["fedavg"], "folds": 5, "rounds": 1, "epochs": 1, "metric": "auroc", "progress": False}
    found = fedekd.run(str(tmp_path / "sites.npz"), out=str(tmp_path / "out"), **options)
    undefined = [math.isnan(c["value"]) for r in found.records for c in r["clients"] if c["id"] == "rare"]
    assert any(undefined)
    assert not all(undefined)
    (fedavg,) = found.transfer
    for client in fedavg.clients:
        assert client.parts["gain"] == pytest.approx(client.verdict.difference, abs=1e-6)
        assert client.values[1] - client.values[0] == pytest.approx(client.parts["gain"])
    assert all(math.isfinite(value) for value in fedavg.by_seed("gain").values())


def test_seeds_of_one_fold_are_averaged_and_folds_follow_each_other():
    by_seed = [np.array([1, 2]), np.array([3]), np.array([4, 5]), np.array([6])]
    both = end_to_end(by_seed, [0, 1, 0, 1])
    assert [rows.tolist() for rows in both] == [[1, 2, 3], [4, 5, 6]]
    assert [rows.tolist() for rows in end_to_end(by_seed[:3], [0, 1, 0])] == [[1, 2, 3]]
    assert end_to_end([None, np.array([1])], [0, 1]) == [None]
    assert [rows.tolist() for rows in end_to_end(by_seed[::2], [0, 0])] == [[1, 2], [4, 5]]


def by_fold(gains, rows=60):
    """Of so many rows in each fold the method wins so many and loses as many as it gains less than 10."""
    folds = np.repeat(np.arange(len(gains)), rows)
    joined, alone = np.ones(len(folds)), np.ones(len(folds))
    for fold, gain in enumerate(gains):
        won, lost = 5 + gain // 2, 5 - gain + gain // 2
        alone[fold * rows : fold * rows + won] = 0
        joined[fold * rows + won : fold * rows + won + lost] = 0
    return verdicts.Comparison(joined[None], alone[None], strata=folds, folds=folds)


def test_what_one_training_wins_by_luck_is_not_a_gain():
    """As many rows are won in both; in the first all folds win alike, in the second two win what the others lose."""
    steady, lucky = by_fold([4, 4, 4, 4, 4]), by_fold([10, 10, 0, 0, 0])
    assert steady.joined.sum() - steady.alone.sum() == lucky.joined.sum() - lucky.alone.sum() == 20
    assert verdicts.judge([replace(lucky, folds=None)])[0].state == verdicts.HELPED
    (clear,), (chance,) = verdicts.judge([steady]), verdicts.judge([lucky])
    assert clear.state == verdicts.HELPED
    assert chance.state == verdicts.UNDECIDED
    assert chance.high - chance.low > 1.5 * (clear.high - clear.low)


def test_folds_that_differ_no_more_than_rows_do_cost_nothing():
    steady = by_fold([4, 4, 4, 4, 4])
    folded, plain = verdicts.judge([steady])[0], verdicts.judge([replace(steady, folds=None)])[0]
    assert folded.high - folded.low == pytest.approx(plain.high - plain.low, rel=0.1)


def test_luck_in_training_raises_few_alarms():
    """Four clients of 200 rows; each fold's two models are better or worse than usual by three points, by chance."""
    rng, folds = np.random.default_rng(0), np.repeat(np.arange(5), 40)

    def rows():
        skill = 0.8 + rng.normal(0, 0.03, 5)[folds] + rng.normal(0, 0.05, 200)
        return (hard < skill).astype(float)[None]

    alarms = {"by folds": 0, "by rows alone": 0}
    for _ in range(60):
        family = []
        for _ in range(4):
            hard = rng.random(200)
            family.append(verdicts.Comparison(rows(), rows(), strata=folds, folds=folds))
        for how, some in zip(alarms, (family, [replace(one, folds=None) for one in family]), strict=True):
            alarms[how] += any(v.state in (verdicts.HELPED, verdicts.HARMED) for v in verdicts.judge(some))
    assert alarms["by folds"] <= 6  # 5 % of 300 such families; of 60 rarely more than 6
    assert alarms["by rows alone"] > 9


def test_what_a_site_gets_does_not_take_one_fold_for_all_rows(run, tmp_path):
    words = write_handout(run.folder, "Hungary", tmp_path / "site.html").read_text(encoding="utf-8")
    row = next(client for client in run.records[0]["clients"] if client["id"] == "Hungary")
    assert f"{row['n_test']} test rows in each of 3 folds, and {PATIENTS['Hungary']} of its rows were tested" in words
    export(run.folder, "Hungary", tmp_path / "m.safetensors", method="fedavg")
    card = (tmp_path / "m.card.md").read_text()
    assert f"| accuracy on this model's {row['n_test']} test rows | |" in card
    assert f", on {PATIENTS['Hungary']} test rows over 3 seeds | " in card
    assert f"{row['n_test']} to test, in fold 1 of 3" in card
