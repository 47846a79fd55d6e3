"""Negative transfer: a client's result with a method minus its result alone, and its mean, worst and tail."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypedDict

import numpy as np


class RunSummary(TypedDict):
    """Of one run, over its clients."""

    avg_delta: float
    worst_delta: float
    tail_delta: float
    mean: float
    worst: float


class OverSeeds(TypedDict):
    mean: float
    std: float


def summarise(values: Sequence[float], local: Sequence[float], higher_is_better: bool) -> RunSummary:
    """One run's figures over its clients, from their results and those of ``local``, training alone.

    Worst and tail look to the harmed side: P10 where ``higher_is_better``, as of accuracy, else P90, as of RMSE.
    Clients on whose test rows the metric is not defined, alone or otherwise, are left out.
    """
    value, alone = np.asarray(values, float), np.asarray(local, float)
    known = ~(np.isnan(value) & np.isnan(alone))
    value, delta = (value[known], (value - alone)[known]) if known.any() else (value, value - alone)
    worst, tail = (np.min, 10) if higher_is_better else (np.max, 90)
    return {
        "avg_delta": float(delta.mean()),
        "worst_delta": float(worst(delta)),
        "tail_delta": float(np.percentile(delta, tail)),
        "mean": float(value.mean()),
        "worst": float(worst(value)),
    }


def mean(values: Iterable[float], weights: Sequence[float] | None = None) -> float:
    """Of clients or seeds: those on whose test rows the metric is not defined are left out."""
    array = np.asarray([*values], float)
    known = ~np.isnan(array)
    return float(np.average(array[known], weights=weights and np.asarray(weights)[known])) if known.any() else math.nan


def _defined(values: Sequence[float]) -> np.ndarray:
    """All, where none is."""
    array = np.asarray(values, float)
    known = ~np.isnan(array)
    return array[known] if known.any() else array


def harmed(deltas: Sequence[float], higher_is_better: bool) -> int:
    """How many clients are worse off than alone."""
    delta = np.asarray(deltas, float)
    return int((delta < 0).sum() if higher_is_better else (delta > 0).sum())


def over_seeds(values: Sequence[float]) -> OverSeeds:
    """Mean and population deviation, as the paper reports them; of the seeds on which the metric is defined."""
    array = _defined(values)
    return {"mean": float(array.mean()), "std": float(array.std())}


def paired_interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Student's interval for the mean of paired differences, one per seed; None with fewer than two seeds.

    ``level`` is how often such an interval holds the true mean. Seeds on which the metric is not defined are left out.
    """
    from scipy.special import stdtrit

    d = _defined(differences)
    if len(d) < 2:
        return None
    half = float(stdtrit(len(d) - 1, 0.5 + level / 2)) * float(d.std(ddof=1)) / len(d) ** 0.5
    return float(d.mean()) - half, float(d.mean()) + half
