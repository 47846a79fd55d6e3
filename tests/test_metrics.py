"""Negative transfer by hand: the harmed side, numpy's percentile, the population deviation, paired intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedekd.metrics import aggregate, harmed, over_seeds, paired_interval, sample_interval, summarise
from fedekd.settings import NEWER

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
    for name, other in {
        "participation": 0.5,
        "weight_decay": 0.01,
        "lr_schedule": "cosine",
        "augment": "flip-crop",
    }.items():
        params = [{}, {name: NEWER[name]}, {name: other}]
        rows = aggregate([record(seed=seed, params=given) for seed, given in enumerate(params)])
        assert [row["seeds"] for row in rows] == [[0, 1], [2]]


def test_runs_with_other_public_rows_are_not_averaged():
    public = [None, {"share": 0.1, "rows": 18}, {"share": 0.1, "rows": 18}, {"file": "12ab", "rows": 18}]
    rows = aggregate([record(seed=s, partition={"public": p} if p else {}) for s, p in enumerate(public)])
    assert [row["seeds"] for row in rows] == [[0], [1, 2], [3]]


def test_runs_with_other_fractions_of_the_rows_are_not_averaged():
    fractions = [{}, {"fraction": 0.1}, {"fraction": 0.1}, {"fraction": 0.03}]
    rows = aggregate([record(seed=s, partition=how) for s, how in enumerate(fractions)])
    assert [row["seeds"] for row in rows] == [[0], [1, 2], [3]]


def test_runs_on_one_split_are_not_averaged_with_those_on_a_split_each():
    splits = [
        {"seed": 0},
        {"seed": 1},
        {"seed": 0, "fixed": True},
        {"seed": 0, "fixed": True},
        {"seed": 1, "fixed": True},
    ]
    rows = aggregate([record(seed=s, partition=how) for s, how in enumerate(splits)])
    assert [row["seeds"] for row in rows] == [[0, 1], [2, 3], [4]]


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


def interval_of_accuracy(n, won, lost, z=1.959963984540054):
    """Agresti and Min (2005): half a sample more on each side, two more in all."""
    won, lost, n = won + 0.5, lost + 0.5, n + 2
    centre = (won - lost) / n
    half = z * math.sqrt((won + lost) - (won - lost) ** 2 / n) / n
    return centre - half, centre + half


def test_the_interval_of_accuracy_by_hand():
    """Of nine samples the method mends three, spoils one and leaves five as they were: Δ is 2 / 11 or so."""
    alone = [1, 1, 1, 0, 0, 0, 0, 1, 1]
    joined = [0, 0, 0, 1, 0, 0, 0, 1, 1]
    assert sample_interval(joined, alone, True) == pytest.approx(interval_of_accuracy(9, 3, 1))
    assert sample_interval(alone, joined, True) == pytest.approx(interval_of_accuracy(9, 1, 3))
    narrow = sample_interval(joined, alone, True, level=0.5)
    assert narrow == pytest.approx(interval_of_accuracy(9, 3, 1, z=0.6744897501960817))
    low, high = sample_interval(joined, alone, True)
    assert low + high == pytest.approx(2 * 2 / 11)


def test_the_interval_of_accuracy_does_not_leave_its_range():
    five = [1] * 5, [0] * 5
    low, high = sample_interval(five[1], five[0], True)
    assert high == 1
    assert 0 < low == pytest.approx(interval_of_accuracy(5, 5, 0)[0])
    assert sample_interval(*five, True) == (-1, pytest.approx(-low))


def test_the_interval_of_error_by_hand():
    """RMSEs 5 and 1: each sample's share is its square over twice its RMSE; t of five degrees of freedom."""
    joined, alone = [3.0, -4.0, 5.0, 5.0, -5.0, math.sqrt(50)], [1.0, 1.0, -1.0, 1.0, -1.0, 1.0]
    shares = np.array([0.9, 1.6, 2.5, 2.5, 2.5, 5.0]) - 0.5
    half = 2.5705818366147395 * math.sqrt(((shares - shares.mean()) ** 2).sum() / 5) / math.sqrt(6)
    assert sample_interval(joined, alone, False) == pytest.approx((4 - half, 4 + half))
    assert sample_interval(alone, joined, False) == pytest.approx((-4 - half, -4 + half))
    low, high = sample_interval(joined, alone, False, level=0.5)
    assert high - low == pytest.approx(2 * half * 0.7266868438004226 / 2.5705818366147395)


def test_an_error_of_exactly_nothing_has_an_interval():
    """A model without an error has no share to divide: the other's share alone makes the width."""
    joined = [2.0, 2.0, -2.0, 2.0, 4.0]
    root = math.sqrt(32 / 5)
    shares = np.array(joined) ** 2 / (2 * root)
    half = 2.7764451051977987 * float(np.std(shares, ddof=1)) / math.sqrt(5)
    assert sample_interval(joined, [0.0] * 5, False) == pytest.approx((root - half, root + half))
    assert sample_interval([0.0] * 5, joined, False) == pytest.approx((-root - half, -root + half))


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_five_samples_are_enough_for_an_interval_and_four_are_not(higher_is_better):
    assert sample_interval([0, 1, 1, 0], [1, 0, 1, 0], higher_is_better) is None
    assert sample_interval([0, 1, 1, 0, 1], [1, 0, 1, 0, 0], higher_is_better) is not None
