"""Negative transfer by hand: the harmed side, numpy's percentile, the population deviation, paired intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedekd.metrics import harmed, mean, over_seeds, paired_interval, summarise

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


def test_seeds_without_a_value_are_left_out():
    assert paired_interval([0.1, math.nan, 0.3]) == paired_interval([0.1, 0.3])
    assert paired_interval([0.1, math.nan]) is None
    assert over_seeds([0.1, math.nan, 0.3]) == over_seeds([0.1, 0.3])
    assert mean([1.0, math.nan, 4.0], [1, 5, 2]) == 3
    assert math.isnan(mean([math.nan]))
