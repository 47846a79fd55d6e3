"""Records of several seeds as one row per method."""

from __future__ import annotations

import numpy as np
import pytest

from fedekd.metrics import paired_interval, summarise
from fedekd.runs.aggregate import aggregate
from fedekd.settings import NEWER


def record(label="fedekd", seed=0, deltas=(0.1, -0.2), metric="accuracy", **more):
    clients = [{"local": 0.5, "value": 0.5 + d, "delta": d} for d in deltas]
    values, local = [c["value"] for c in clients], [c["local"] for c in clients]
    return {
        "dataset": "digits", "alpha": 0.1, "method": label.split()[0], "label": label, "metric": metric,
        "seed": seed, "clients": clients, **summarise(values, local, metric == "accuracy"),
        "bytes_up": 100 * (seed + 1), "bytes_down": 10, "seconds": 1.0, "params": {},
        "partition": {"kind": "iid", "clients": 2}, **more,
    }  # fmt: skip


def test_records_of_several_seeds_become_one_row():
    records = [record(seed=s, deltas=(0.1 * s, -0.2)) for s in range(3)] + [record("local", 0, (0.0, 0.0))]
    row, local = aggregate(records)
    averages = [(0.1 * s - 0.2) / 2 for s in range(3)]
    assert row["seeds"] == [0, 1, 2]
    assert row["avg_delta"]["mean"] == pytest.approx(np.mean(averages))
    assert row["avg_delta"]["std"] == pytest.approx(np.std(averages))
    assert row["avg_delta"]["interval"] == pytest.approx(paired_interval(averages))
    assert row["worst_delta"] == {"mean": pytest.approx(-0.2), "std": pytest.approx(0)}
    assert row["clients"] == 6
    assert (row["bytes_up"], row["bytes_down"], row["seconds"]) == (200, 10, 1)
    assert (local["label"], local["clients"]) == ("local", 2)
    assert local["avg_delta"] == {"mean": 0, "std": 0, "interval": None, "over_rows": None}


def test_the_worst_is_on_the_other_side_for_errors():
    (row,) = aggregate([record(metric="rmse", deltas=(0.1, -0.2, 0.3))])
    assert row["worst_delta"]["mean"] == pytest.approx(0.3)


def test_rows_are_apart_by_dataset_alpha_and_label_and_keep_their_order():
    records = [
        record(), record(alpha=0.5), record("fedekd (beta=2)"), record(dataset="cifar10"), record(seed=1),
        record(alpha=None),
    ]  # fmt: skip
    rows = aggregate(records)
    assert [(r["dataset"], r["alpha"], r["label"], len(r["seeds"])) for r in rows] == [
        ("digits", 0.1, "fedekd", 2), ("digits", 0.5, "fedekd", 1), ("digits", 0.1, "fedekd (beta=2)", 1),
        ("cifar10", 0.1, "fedekd", 1), ("digits", None, "fedekd", 1),
    ]  # fmt: skip
    assert aggregate([]) == []


def test_a_seed_counts_once_in_a_row():
    rows = aggregate([record(seed=0, params={"rounds": 5}), record(seed=0, params={"rounds": 10})])
    assert all(len(set(row["seeds"])) == len(row["seeds"]) for row in rows)


def test_runs_from_before_a_setting_stand_with_those_at_its_default():
    for name, other in {
        "participation": 0.5,
        "weight_decay": 0.01,
        "lr_schedule": "cosine",
        "choose_rounds": True,
        "metric": "auroc",
    }.items():
        params = [{}, {name: NEWER[name]}, {name: other}]
        rows = aggregate([record(seed=seed, params=given) for seed, given in enumerate(params)])
        assert [row["seeds"] for row in rows] == [[0, 1], [2]]


def test_runs_with_other_fractions_of_the_rows_are_not_averaged():
    fractions = [{}, {"fraction": 0.1}, {"fraction": 0.1}, {"fraction": 0.03}]
    partitions = [{"kind": "iid", "clients": 2, **how} for how in fractions]
    rows = aggregate([record(seed=s, partition=how) for s, how in enumerate(partitions)])
    assert [row["seeds"] for row in rows] == [[0], [1, 2], [3]]


def test_runs_on_one_split_are_not_averaged_with_those_on_a_split_each():
    splits = [(0, False), (1, False), (0, True), (0, True), (1, True)]
    partitions = [{"kind": "iid", "clients": 2, "seed": s, **({"fixed": True} if f else {})} for s, f in splits]
    rows = aggregate([record(seed=s, partition=how) for s, how in enumerate(partitions)])
    assert [row["seeds"] for row in rows] == [[0, 1], [2, 3], [4]]


def test_runs_with_other_public_rows_are_not_averaged():
    public = [None, {"share": 0.1, "rows": 18}, {"share": 0.1, "rows": 18}, {"file": "12ab", "rows": 18}]
    iid = {"kind": "iid", "clients": 2}
    rows = aggregate([record(seed=s, partition=iid | ({"public": p} if p else {})) for s, p in enumerate(public)])
    assert [row["seeds"] for row in rows] == [[0], [1, 2], [3]]
