"""Negative transfer by hand: the harmed side, numpy's percentile, the population deviation, paired intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedekd.metrics import aggregate, harmed, over_seeds, paired_interval, sample_interval, summarise

FLOATS = st.floats(-100, 100)


def test_accuracies_by_hand():
    """Deltas .1, -.1, .2: the tail lies a fifth of the way from -.1 to .1."""
    summary = summarise([0.8, 0.6, 0.9], [0.7, 0.7, 0.7], higher_is_better=True)
    assert summary == pytest.approx(
        {"avg_delta": 0.2 / 3, "worst_delta": -0.1, "tail_delta": -0.06, "mean": 2.3 / 3, "worst": 0.6}
    )


def test_errors_by_hand():
    """The same numbers as RMSE: high is bad, and the tail is P90, four fifths of the way from .1 to .2."""
    summary = summarise([0.8, 0.6, 0.9], [0.7, 0.7, 0.7], higher_is_better=False)
    assert summary == pytest.approx(
        {"avg_delta": 0.2 / 3, "worst_delta": 0.2, "tail_delta": 0.18, "mean": 2.3 / 3, "worst": 0.9}
    )


def test_the_worst_delta_is_not_the_delta_of_the_worst():
    summary = summarise([0.2, 0.8], [0.1, 0.9], higher_is_better=True)
    assert summary["worst"] == pytest.approx(0.2)
    assert summary["worst_delta"] == pytest.approx(-0.1)


@settings(deadline=None)
@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=12))
def test_the_tail_is_numpys_linear_percentile_and_the_two_directions_mirror(pairs):
    values, local = np.array(pairs).T
    up = summarise(values, local, True)
    down = summarise(-values, -local, False)
    assert down == pytest.approx({key: -value for key, value in up.items()})
    delta = np.sort(values - local)
    at = 0.1 * (len(delta) - 1)
    low = math.floor(at)
    by_hand = delta[low] + (at - low) * (delta[min(low + 1, len(delta) - 1)] - delta[low])
    assert up["tail_delta"] == pytest.approx(by_hand, abs=1e-9)
    assert up["worst_delta"] <= up["tail_delta"] + 1e-9
    assert all(type(value) is float for value in up.values())


def test_alone_against_alone_is_exactly_nothing():
    values = [0.1 + 0.2, 1 / 3, 0.7]
    summary = summarise(values, values, True)
    assert [summary[key] for key in ("avg_delta", "worst_delta", "tail_delta")] == [0, 0, 0]
    assert harmed([v - v for v in values], True) == 0


def test_harmed_clients_are_those_below_alone():
    deltas = [-0.1, 0.0, 0.2, -1e-12, -0.0]
    assert harmed(deltas, higher_is_better=True) == 2
    assert harmed(deltas, higher_is_better=False) == 1
    assert harmed([], True) == 0
    assert type(harmed(deltas, True)) is int


def test_the_deviation_is_the_populations():
    assert over_seeds([1.0, 3.0]) == {"mean": 2.0, "std": 1.0}
    assert over_seeds([0.5]) == {"mean": 0.5, "std": 0.0}


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("count", [2, 3, 10, 40])
def test_intervals_are_students(count, level):
    differences = np.random.default_rng(count).normal(0.01, 0.02, count)
    expected = stats.ttest_1samp(differences, 0).confidence_interval(level)
    assert paired_interval(differences.tolist(), level) == pytest.approx((expected.low, expected.high))


def test_the_default_interval_is_95_per_cent():
    low, high = paired_interval([0.0, 1.0])
    half = 12.7062047364 * math.sqrt(0.5) / math.sqrt(2)  # t of one degree of freedom
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half))


def test_intervals_cover_the_mean_as_often_as_they_say():
    draws = np.random.default_rng(0).normal(3.0, 1.0, (800, 5))
    covered = np.mean([low <= 3.0 <= high for low, high in map(paired_interval, draws)])
    assert 0.93 < covered < 0.97


def test_intervals_of_one_or_equal_seeds():
    assert paired_interval([]) is None
    assert paired_interval([0.3]) is None
    assert paired_interval([0.25, 0.25, 0.25]) == (0.25, 0.25)


def record(label="fedekd", seed=0, deltas=(0.1, -0.2), metric="accuracy", **more):
    clients = [{"local": 0.5, "value": 0.5 + d, "delta": d} for d in deltas]
    values, local = [c["value"] for c in clients], [c["local"] for c in clients]
    return {
        "dataset": "digits", "alpha": 0.1, "method": label.split()[0], "label": label, "metric": metric,
        "seed": seed, "clients": clients, **summarise(values, local, metric == "accuracy"),
        "bytes_up": 100 * (seed + 1), "bytes_down": 10, "seconds": 1.0, **more,
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
    assert (row["harmed"], row["clients"]) == (3, 6)
    assert (row["bytes_up"], row["bytes_down"], row["seconds"]) == (200, 10, 1)
    assert (local["label"], local["harmed"], local["clients"]) == ("local", 0, 2)
    assert local["avg_delta"] == {"mean": 0, "std": 0, "interval": None}


def test_harm_is_on_the_other_side_for_errors():
    (row,) = aggregate([record(metric="rmse", deltas=(0.1, -0.2, 0.3))])
    assert row["harmed"] == 2
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
    params = [{}, {"participation": 1.0}, {"participation": 0.5}]
    rows = aggregate([record(seed=seed, params=given) for seed, given in enumerate(params)])
    assert [row["seeds"] for row in rows] == [[0, 1], [2]]


def test_runs_with_other_public_rows_are_not_averaged():
    public = [None, {"share": 0.1, "rows": 18}, {"share": 0.1, "rows": 18}, {"file": "12ab", "rows": 18}]
    rows = aggregate([record(seed=s, partition={"public": p} if p else {}) for s, p in enumerate(public)])
    assert [row["seeds"] for row in rows] == [[0], [1, 2], [3]]


def test_the_interval_of_a_client_covers_its_true_difference_of_accuracy():
    draw, held = np.random.default_rng(0), 0
    for _ in range(2000):  # alone wrong on 30 %, with the method on 20 %, and the two agree more often than not
        both = draw.random((60, 2))
        alone = both[:, 0] < 0.3
        joined = np.where(both[:, 1] < 0.7, both[:, 0] < 0.2, draw.random(60) < 0.2)
        low, high = sample_interval(joined, alone, higher_is_better=True)
        held += low <= 0.1 <= high
    assert 0.93 < held / 2000 < 0.98


def test_the_interval_of_a_client_covers_its_true_difference_of_error():
    draw, held = np.random.default_rng(0), 0
    for _ in range(2000):
        shared = draw.normal(0, 3, 80)
        low, high = sample_interval(shared + draw.normal(0, 4, 80), shared + draw.normal(0, 1, 80), False)
        held += low <= 5 - math.sqrt(10) <= high
    assert 0.93 < held / 2000 < 0.97


def test_few_samples_make_a_wide_interval_even_if_none_changes():
    few, many = (sample_interval([0] * n, [0] * n, True) for n in (10, 1000))
    assert few[0] < -0.1 < 0.1 < few[1]
    assert -0.01 < many[0] < 0 < many[1] < 0.01
    assert sample_interval([1, 1, 1, 1], [0, 0, 0, 0], True) is None
    assert sample_interval([0.0] * 5, [0.0] * 5, False) == (0, 0)
