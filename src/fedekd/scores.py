"""The metrics that Δ can be taken in, from what a client's model answered on its test rows. Numpy alone.

Rows are [B, rows, columns]: of a classification the target and the probabilities of the classes, of a regression the
target and the prediction. A metric that is not defined on them (one class among the test rows) is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedekd.units import METRICS

BINS = 15  # of the calibration error


@dataclass(frozen=True)
class Score:
    name: str
    measure: Callable[[np.ndarray], np.ndarray]

    @property
    def task(self) -> str:
        return METRICS[self.name].task

    def of(self, rows: np.ndarray) -> float:
        """The metric of one model's rows, [rows, columns]."""
        return float(self.measure(rows[None])[0])


SCORES: dict[str, Score] = {}


def of_task(task: str) -> list[Score]:
    """The metrics of a task, the usual one first."""
    return [score for score in SCORES.values() if score.task == task]


def _score(measure: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    SCORES[measure.__name__] = Score(measure.__name__, measure)
    return measure


def _target_and_class(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return rows[..., 0].astype(np.int64), rows[..., 1:].argmax(-1)


@_score
def accuracy(rows: np.ndarray) -> np.ndarray:
    target, given = _target_and_class(rows)
    return (target == given).mean(1)


@_score
def balanced_accuracy(rows: np.ndarray) -> np.ndarray:
    """The mean over the classes among the targets of the share that is found."""
    target, given = _target_and_class(rows)
    found = []
    for k in range(rows.shape[-1] - 1):
        own = target == k
        found.append(_divided((own & (given == k)).sum(1).astype(float), own.sum(1).astype(float)))
    return _nanmean(found)


@_score
def macro_f1(rows: np.ndarray) -> np.ndarray:
    """The mean F1 over the classes among the targets."""
    target, given = _target_and_class(rows)
    found = []
    for k in range(rows.shape[-1] - 1):
        own, called = target == k, given == k
        f1 = 2 * (own & called).sum(1) / np.maximum(own.sum(1) + called.sum(1), 1)
        found.append(np.where(own.any(1), f1, np.nan))
    return _nanmean(found)


@_score
def auroc(rows: np.ndarray) -> np.ndarray:
    """Each class against the rest, and their mean over the classes that occur; of two classes, of the second."""
    target, classes = rows[..., 0].astype(np.int64), rows.shape[-1] - 1
    return _nanmean([_area(rows[..., 1 + k], target == k) for k in ([1] if classes == 2 else range(classes))])


@_score
def nll(rows: np.ndarray) -> np.ndarray:
    of_the_target = np.take_along_axis(rows[..., 1:], rows[..., :1].astype(np.int64), -1)[..., 0]
    return -np.log(np.maximum(of_the_target, 1e-12)).mean(1)


@_score
def ece(rows: np.ndarray) -> np.ndarray:
    """The gap between confidence and accuracy, over BINS equal bins of confidence (Guo et al., 2017)."""
    target, given = _target_and_class(rows)
    sure, right = rows[..., 1:].max(-1), (target == given).astype(float)
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    gaps = [np.abs(((right - sure) * (place == k)).sum(1)) for k in range(BINS)]
    return np.sum(gaps, axis=0) / rows.shape[1]


@_score
def rmse(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(rows[..., 1] - rows[..., 0]).mean(1))


@_score
def mae(rows: np.ndarray) -> np.ndarray:
    return np.abs(rows[..., 1] - rows[..., 0]).mean(1)


@_score
def r2(rows: np.ndarray) -> np.ndarray:
    target = rows[..., 0]
    varies = np.ptp(target, axis=1) > 0  # the variance of equal targets may be rounded to a little more than zero
    return 1 - _divided(np.square(rows[..., 1] - target).mean(1), np.where(varies, target.var(1), 0.0))


def floor(target: np.ndarray, train: np.ndarray, classes: int) -> np.ndarray:
    """What a model would answer that knows no inputs: the class shares, or the mean, of the training targets."""
    if classes > 1:
        shares = np.bincount(train.astype(np.int64), minlength=classes) / max(len(train), 1)
        return np.column_stack([target, np.broadcast_to(shares, (len(target), classes))])
    return np.column_stack([target, np.full(len(target), train.mean() if len(train) else np.nan)])


def _divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.full(a.shape, np.nan), where=b > 0)


def _nanmean(by_class: list[np.ndarray]) -> np.ndarray:
    values = np.stack(by_class)
    known = np.isfinite(values)
    return _divided(np.where(known, values, 0.0).sum(0), known.sum(0).astype(float))


def _area(score: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """The area under the ROC curve by mean ranks; NaN where one side is empty."""
    order = score.argsort(1)
    ranked, own = np.take_along_axis(score, order, 1), np.take_along_axis(positive, order, 1)
    ranks, steps = np.arange(1.0, score.shape[1] + 1), ranked[:, 1:] != ranked[:, :-1]
    if not steps.all():  # ties share their mean rank
        edge = np.ones((len(score), 1), bool)
        first = np.maximum.accumulate(np.where(np.concatenate([edge, steps], 1), ranks, 0), 1)
        last = np.where(np.concatenate([steps, edge], 1), ranks, np.inf)[:, ::-1]
        ranks = (first + np.minimum.accumulate(last, 1)[:, ::-1]) / 2
    ones = own.sum(1).astype(float)
    return _divided((ranks * own).sum(1) - ones * (ones + 1) / 2, ones * (score.shape[1] - ones))
