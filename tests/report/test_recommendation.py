"""Which method the page tells a federation to use, and how sure it says that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedekd.report.html.recommendation import which_method
from fedekd.runs.results import load
from fedekd.runs.transfer import analyse
from fedekd.units import Unit

POINTS = Unit("accuracy", 1)
RECORDED = Path(__file__).parents[1] / "recorded" / "v0.1" / "whole"


@pytest.fixture
def said(record):
    def say(seeds=4, metric="accuracy", local=0.8, **methods):
        records = []
        for seed in range(seeds):
            records.append(record("local", seed=seed, metric=metric, local=local, rows=300))
            for name, mean in methods.items():
                deltas = [mean + 0.002 * (-1) ** seed * abs(local)] * 6
                records.append(record(name, deltas, seed=seed, metric=metric, local=local, rows=300))
        return which_method(analyse(records), Unit.of(records))

    return say


def test_the_best_mean_gain_is_named_and_compared_with_the_others(said):
    first, second = said(fedekd=0.03, fedavg=0.06)
    assert first.startswith("Use fedavg: its mean gain over training alone is +6.0 points (95 % interval +5.")
    assert "paired over 4 seeds" in first
    assert second.startswith("fedavg is clearly better than fedekd: +3.0 points on average")


def test_an_error_that_falls_is_a_gain(said):
    first, second = said(metric="rmse", local=60.0, fedekd=-1.0, fedavg=-9.0)
    assert first.startswith("Use fedavg: its mean gain over training alone is −9.0")
    assert "RMSE" in first
    assert second.startswith("fedavg is clearly better than fedekd: −8.0")


def test_what_is_not_clear_is_not_recommended(said):
    (only,) = said(seeds=3, fedekd=0.0)
    assert only.startswith("No method is clearly better than training alone: the best mean gain is that of fedekd")
    (harmful,) = said(fedekd=-0.2)
    assert harmful.startswith("No method is clearly better than training alone")
    assert "24 clearly harmed" in harmful
    assert said(seeds=1, fedekd=0.1)[0].startswith("One seed cannot say which method to use.")


def test_the_best_of_many_that_give_nothing_is_rarely_recommended(record):
    """Ten methods that are plain Local but for chance: an interval for each by itself would name one in every fifth."""
    draw, named = np.random.default_rng(0), 0
    for _ in range(40):
        records = []
        for seed in range(5):
            records.append(record("local", seed=seed, rows=300))
            records += [record(f"m{k}", [draw.normal(0, 0.02)] * 6, seed=seed, rows=300) for k in range(10)]
        first, *_ = which_method(analyse(records), Unit.of(records))
        named += first.startswith("Use ")
        assert first.startswith("Use ") or "clearly better than training alone" in first
        assert ("over all 10 methods here that may be chance" in first) <= (not first.startswith("Use "))
    assert named <= 4


def test_the_best_of_many_is_rarely_clearly_better_than_one_of_them(record):
    """Any pair of methods could have been the one that is furthest apart."""
    draw, said, draws = np.random.default_rng(1), 0, 150
    for _ in range(draws):
        records = []
        for seed in range(5):
            records.append(record("local", seed=seed))
            records += [record(f"m{k}", [draw.normal(0, 0.02)] * 2, seed=seed) for k in range(15)]
        said += any(" is clearly better than m" in line for line in which_method(analyse(records), POINTS))
    assert said <= 0.05 * draws


def test_seeds_without_the_metric_do_not_count(record):
    whole = analyse(
        [
            record(name, [delta + 0.002 * seed] * 6, seed=seed, rows=300)
            for seed in range(10)
            for name, delta in (("local", 0.0), ("fedekd", 0.02))
        ]
    )
    first, *_ = which_method(whole, POINTS)
    assert "paired over 10 seeds" in first
    for client in whole[0].clients:
        for seed, parts in zip(client.seeds, client.by_seed, strict=True):
            if seed >= 3:
                parts["gain"] = float("nan")
    first, *_ = which_method(whole, POINTS)
    assert "paired over 3 seeds" in first


def test_of_a_real_run_the_better_method_is_named():
    records = load(RECORDED).records
    (method, *_) = which_method(analyse(records), Unit.of(records))
    assert "mean gain" in method
