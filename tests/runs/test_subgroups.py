"""--group and --subgroups: rows that belong together stay together, and Δ is told by the value of a column."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

import fedekd
from fedekd import verdicts
from fedekd.cli import main
from fedekd.data import federate, load_dataset
from fedekd.errors import FedekdError
from fedekd.runs import packing
from fedekd.runs.row_results import compared
from fedekd.runs.store import read_records
from fedekd.runs.subgroups import by_subgroup
from fedekd.runs.transfer import analyse
from fedekd.runs.verdict_text import caveats
from fedekd.units import Unit
from tiny import tiny_private, tiny_proxy

SETTINGS = {"rounds": 2, "epochs": 1, "lr": 0.01, "private": tiny_private, "proxy": tiny_proxy, "methods": ["fedavg"]}
WHOSE = ("groups", "subgroups")
GIVEN = {"target": "outcome", "clients_from": "hospital", "group": "patient", "subgroups": "sex"}
OPTIONS = "--target outcome --clients-from hospital --group patient --subgroups sex --rounds 1 --methods fedavg --quiet"


def write_visits(path: Path, rows: int = 240) -> Path:
    """Three visits of each patient, whose outcome is the patient's."""
    draw = np.random.default_rng(3)
    patient = np.arange(rows) // 3
    sex, site = np.where(patient % 2, "f", "m"), np.array(["north", "south"])[patient % 4 // 2]
    own = draw.normal(size=rows // 3)[patient]
    dose = own + 0.1 * draw.normal(size=rows)
    ill = np.where(own > 0, "ill", "well")
    lines = [f"p{p},{s},{d:.4f},{o},{h}" for p, s, d, o, h in zip(patient, sex, dose, ill, site, strict=True)]
    path.write_text("\n".join(["patient,sex,dose,outcome,hospital", *lines]) + "\n")
    return path


@pytest.fixture
def visits(tmp_path):
    return write_visits(tmp_path / "visits.csv")


def trained(data, out, **given):
    return fedekd.run(str(data), out=str(out), progress=False, **{**SETTINGS, **GIVEN, **given}).records


def test_a_group_is_no_input_and_subgroups_may_be(visits):
    dataset = load_dataset(visits, **GIVEN)
    assert dataset.columns == ("dose", "sex=f", "sex=m")
    assert dataset.groups.column == "patient"
    assert len(dataset.groups.names) == 80
    assert dataset.subgroups.names == ("f", "m")
    assert (dataset.subgroups.codes == dataset.x[:, 2]).all()


@pytest.mark.parametrize("partition", ["sites", "iid", "dirichlet"])
def test_nobody_is_tested_on_a_group_that_it_trained_on(visits, partition):
    dataset = load_dataset(visits, **GIVEN)
    federation = federate(dataset, clients=2, alpha=5.0, partition=partition)
    everything = []
    for split in federation.clients:
        train, val, test = (set(dataset.groups.codes[rows]) for rows in (split.train, split.val, split.test))
        assert len(train | val | test) == len(train) + len(val) + len(test)
        total = len(split.train) + len(split.val) + len(split.test)
        assert len(split.train) / total == pytest.approx(0.6, abs=0.1)
        assert len(split.test) / total == pytest.approx(0.2, abs=0.1)
        everything += [*split.train, *split.val, *split.test]
    assert sorted(everything) == list(range(len(dataset.y)))
    assert federation.partition["group"] == "patient"


def test_too_few_groups_are_said_in_one_line(visits):
    dataset = load_dataset(visits, target="outcome", group="hospital")
    with pytest.raises(FedekdError, match="2 groups by 'hospital' cannot give 2 clients 5 groups each"):
        federate(dataset, clients=2, partition="iid")
    two = load_dataset(visits, target="outcome", clients_from="hospital", group="sex")
    with pytest.raises(FedekdError, match="rows are of 2 groups, too few or too uneven"):
        federate(two, partition="sites")


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_no_client_trains_on_a_group_that_another_is_tested_on(visits, partition):
    dataset = load_dataset(visits, target="outcome", group="patient")
    federation = federate(dataset, clients=3, alpha=1.0, partition=partition, public=0.1)
    train = [set(dataset.groups.codes[rows]) for split in federation.clients for rows in (split.train, split.val)]
    public = set(dataset.groups.codes[federation.public])
    assert len(federation.public) == 24
    for split in federation.clients:
        test = set(dataset.groups.codes[split.test])
        assert not test & set.union(public, *train)


def test_records_hold_the_groups_and_subgroups_of_the_test_rows(visits, tmp_path):
    records = trained(visits, tmp_path / "out")
    dataset = load_dataset(visits, **GIVEN)
    federation = federate(dataset, seed=0)
    for record in records:
        assert record["partition"]["subgroups"] == {"column": "sex", "names": ["f", "m"]}
        for client, split in zip(record["clients"], federation.clients, strict=True):
            for what, names in (("groups", dataset.groups), ("subgroups", dataset.subgroups)):
                assert (packing.unpack_codes(client[what], client["n_test"]) == names.codes[split.test]).all()
    assert read_records(tmp_path / "out" / "results.jsonl") == records


@pytest.mark.parametrize("metric", [None, "balanced_accuracy"])
def test_delta_by_subgroup_is_the_mean_over_clients_by_their_rows(visits, tmp_path, metric):
    records = trained(visits, tmp_path, metric=metric, seeds=(0, 1), split_seed=0)
    (found,) = by_subgroup(records, tmp_path)
    assert (found.label, found.column) == ("fedavg", "sex")
    for place, one in enumerate(found.found):
        deltas = []
        for seed in (0, 1):
            local, joined = (
                next(r for r in records if r["method"] == m and r["seed"] == seed) for m in ("local", "fedavg")
            )
            values = [_value(record, place, tmp_path) for record in (joined, local)]
            deltas.append(values[0] - values[1])
        assert one.delta == pytest.approx(np.mean(deltas), abs=1e-6)
        assert one.state in verdicts.STATES
        patients = {
            code
            for client in records[0]["clients"]
            for code, of in zip(*(packing.unpack_codes(client[w], client["n_test"]) for w in WHOSE), strict=True)
            if of == place
        }
        assert one.low <= one.delta <= one.high or (len(patients) < verdicts.FEW and np.isnan(one.low))
    assert sum(one.rows for one in found.found) == sum(client["n_test"] for client in records[0]["clients"])
    assert found.worst.delta == min(one.delta for one in found.found)
    assert f"the worst: sex={found.worst.name}" in found.text()


def _value(record, place, folder):
    from fedekd.runs import answers
    from fedekd.scores import SCORES

    values, counts = [], []
    for position, client in enumerate(record["clients"]):
        here = packing.unpack_codes(client["subgroups"], client["n_test"]) == place
        counts.append(here.sum())
        if record["metric"] == "accuracy":
            values.append(packing.unpack(client["rows"]["last"], client["n_test"], "accuracy")[here].mean())
        else:
            values.append(SCORES[record["metric"]].of(answers.read(folder, record["key"], position)[here]))
    return np.average(values, weights=counts)


def test_rows_of_one_patient_count_as_one(visits, tmp_path, monkeypatch):
    """What is judged is given the patients; without --group rows count one by one."""
    seen = []
    judge = verdicts.judge
    monkeypatch.setattr(verdicts, "judge", lambda some, *more: seen.extend(some) or judge(some, *more))
    grouped, alone = trained(visits, tmp_path / "grouped"), trained(visits, tmp_path / "alone", group=None)
    for judged in (by_subgroup, analyse):
        judged(grouped)
        assert all(len(np.unique(one.groups)) * 3 == one.joined.shape[1] for one in seen)
        seen.clear()
        judged(alone)
        assert seen
        assert all(one.groups is None for one in seen)
        seen.clear()
    assert [told(analyse(records)) for records in (grouped, alone)] == ["count as one", "are assumed independent"]


def told(methods):
    (said,) = re.findall(r"Test rows (?:of one patient )?([\w ]+)\.", " ".join(caveats(methods, Unit("accuracy", 1))))
    return said


def test_what_ranks_rows_ranks_each_clients_own():
    """Two clients whose models tell nothing, but whose rates of illness differ: pooled they would seem to know it."""
    draw = np.random.default_rng(0)
    target = np.r_[draw.random(200) < 0.1, draw.random(200) < 0.9].astype(float)
    clients = np.repeat([0, 1], 200)
    blind, rates = draw.random(400), np.repeat([0.2, 0.8], 200) + 0.1 * draw.random(400)
    rows = [np.column_stack([target, 1 - score, score]) for score in (rates, blind)]
    pooled, own = (compared(rows[:1], rows[1:], "auroc", clients=some) for some in (None, clients))
    (far,), (near,) = (verdicts.judge([one]) for one in (pooled, own))
    assert far.difference > 0.3
    assert far.state == verdicts.HELPED
    assert abs(near.difference) < 0.1
    assert near.state != verdicts.HELPED
    assert near.low <= near.difference <= near.high


def test_seeds_with_rows_of_their_own_give_an_interval_over_seeds(visits, tmp_path):
    (found,) = by_subgroup(trained(visits, tmp_path, seeds=(0, 1, 2)))
    assert all(one.state is None and one.low <= one.delta <= one.high for one in found.found)


def test_a_metric_that_a_subgroup_leaves_undefined_is_undecided(tmp_path):
    draw = np.random.default_rng(0)
    y = np.r_[np.arange(80) % 2, np.zeros(80, int)]
    order = draw.permutation(160)
    arrays = {"x": draw.normal(size=(160, 3)), "y": y, "kind": np.repeat([0, 1], 80)}
    np.savez(tmp_path / "scans.npz", **{name: array[order] for name, array in arrays.items()})
    records = fedekd.run(str(tmp_path / "scans.npz"), out=str(tmp_path / "out"), progress=False, metric="auroc",
                         subgroups="kind", partition="iid", clients=2, **SETTINGS).records  # fmt: skip
    (found,) = by_subgroup(records, tmp_path / "out")
    both, one_class = found.found
    assert math.isfinite(both.delta)
    assert math.isnan(one_class.delta)
    assert one_class.state == verdicts.UNDECIDED
    assert found.worst is both
    assert "undefined" in found.text()


def test_columns_of_a_dataset_by_name_can_be_subgroups(tmp_path):
    dataset = load_dataset("heart", subgroups="sex")
    assert dataset.subgroups.column == "sex"
    assert 2 <= len(dataset.subgroups.names) <= 3
    with pytest.raises(FedekdError, match="unknown column of"):
        load_dataset("heart", subgroups="sx")
    with pytest.raises(FedekdError, match="--group 'sex' is for your own files"):
        load_dataset("heart", group="sex")


def test_many_numbers_become_four_bands():
    dataset = load_dataset("heart", subgroups="age")
    ages, found = dataset.x[:, dataset.columns.index("age")], dataset.subgroups
    assert found.names == ("28 to 47", "48 to 54", "55 to 60", "61 to 77")
    assert (np.diff(found.codes[np.argsort(ages)]) >= 0).all()
    assert np.bincount(found.codes).min() > 180
    gaps = load_dataset("heart", subgroups="chol")
    assert gaps.subgroups.names[-1] == "missing"
    assert ((gaps.subgroups.codes == 4) == np.isnan(gaps.x[:, gaps.columns.index("chol")])).all()


def test_arrays_and_folders_of_files(tmp_path, digits):
    patient = np.arange(len(digits.y)) // 2
    (tmp_path / "sites").mkdir()
    for k, name in enumerate("ab"):
        own = slice(k * 100, (k + 1) * 100)
        given = {"x": digits.x[own], "y": digits.y[own], "patient": patient[own], "device": patient[own] % 3}
        np.savez(tmp_path / "sites" / f"{name}.npz", **given)
    dataset = load_dataset(tmp_path / "sites", group="patient", subgroups="device")
    assert (dataset.groups.codes == patient[:200]).all()
    assert dataset.subgroups.names == ("0", "1", "2")
    with pytest.raises(FedekdError, match="unknown array in"):
        load_dataset(tmp_path / "sites" / "a.npz", group="patients")


def test_groups_change_the_run_and_its_key(visits, tmp_path):
    keys = [{r["key"] for r in trained(visits, tmp_path, rounds=1, **given)} for given in ({}, {"subgroups": None})]
    assert not keys[0] & keys[1]


def test_the_command_names_the_worst_subgroup(visits, tmp_path, capsys):
    assert main(["run", "--dataset", str(visits), *OPTIONS.split(), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "fedavg against Local by sex: Δ of accuracy in points, mean over clients by their rows" in said
    assert "the worst: sex=" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--target outcome --group patiens", "did you mean 'patient'"),
        ("--target outcome --group outcome", "cannot be both the target and the group"),
        ("--target outcome --subgroups patient", "'patient' has 80 different values"),
    ],
)
def test_a_column_that_cannot_be_is_said_in_one_line(visits, tmp_path, options, words, capsys):
    assert main(["run", "--dataset", str(visits), *options.split(), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 2, "that the data are being loaded, and what is wrong with them"
