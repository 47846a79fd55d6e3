"""The metrics against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as theirs

from fedekd.scores import SCORES, floor, of_task

RNG = np.random.default_rng(0)
TARGET = RNG.integers(0, 4, 300)
CHANCES = RNG.dirichlet(np.ones(4), 300).round(2)  # rounded, so that there are ties
GIVEN = CHANCES.argmax(1)
CLASSES = np.column_stack([TARGET, CHANCES])
VALUES = np.column_stack([RNG.normal(size=100), RNG.normal(size=100)])


def ours(name: str, rows: np.ndarray) -> float:
    return SCORES[name].of(rows)


def test_classification():
    assert ours("accuracy", CLASSES) == theirs.accuracy_score(TARGET, GIVEN)
    assert ours("balanced_accuracy", CLASSES) == pytest.approx(theirs.balanced_accuracy_score(TARGET, GIVEN))
    assert ours("macro_f1", CLASSES) == pytest.approx(theirs.f1_score(TARGET, GIVEN, average="macro"))
    by_class = [theirs.roc_auc_score(k == TARGET, CHANCES[:, k]) for k in range(4)]
    assert ours("auroc", CLASSES) == pytest.approx(np.mean(by_class))
    own = np.clip(CHANCES[np.arange(300), TARGET], 1e-12, None)
    assert ours("nll", CLASSES) == pytest.approx(-np.log(own).mean())


def test_two_classes():
    target = TARGET > 1
    rows = np.column_stack([target, 1 - CHANCES[:, 0], CHANCES[:, 0]])
    assert ours("auroc", rows) == pytest.approx(theirs.roc_auc_score(target, CHANCES[:, 0]))


def test_regression():
    target, given = VALUES.T
    assert ours("rmse", VALUES) == pytest.approx(theirs.root_mean_squared_error(target, given))
    assert ours("mae", VALUES) == pytest.approx(theirs.mean_absolute_error(target, given))
    assert ours("r2", VALUES) == pytest.approx(theirs.r2_score(target, given))


def test_calibration():
    sure_and_right = np.column_stack([np.zeros(50), np.ones(50), np.zeros(50)])
    assert ours("ece", sure_and_right) == 0
    sure_and_wrong = np.column_stack([np.ones(50), np.ones(50), np.zeros(50)])
    assert ours("ece", sure_and_wrong) == 1
    half = np.column_stack([np.arange(50) % 2, np.full(50, 0.7), np.full(50, 0.3)])
    assert ours("ece", half) == pytest.approx(0.2)


def test_what_is_not_defined_is_nan():
    one_class = np.column_stack([np.zeros(20), np.full((20, 2), 0.5)])
    assert np.isnan(ours("auroc", one_class))
    assert ours("balanced_accuracy", one_class) == 1
    assert np.isnan(ours("r2", np.column_stack([np.ones(9), np.zeros(9)])))
    rounded = np.column_stack([np.full(7, 42.1), np.zeros(7)]).astype(np.float32)
    assert rounded[None, :, 0].var(1) > 0
    assert np.isnan(ours("r2", rounded))


def test_a_class_without_rows_does_not_count():
    rows = np.column_stack([np.zeros(10), np.tile([0.2, 0.7, 0.1], (10, 1))])
    rows[5:, 1:] = [0.8, 0.1, 0.1]
    assert ours("balanced_accuracy", rows) == 0.5


def test_several_at_once_are_each_by_itself():
    for name, score in SCORES.items():
        rows = CLASSES if score.task == "classification" else VALUES
        both = np.stack([rows, np.roll(rows, 7, axis=0)[::-1]])
        assert score.measure(both) == pytest.approx([ours(name, both[0]), ours(name, both[1])]), name


def test_the_floor():
    rows = floor(np.array([0, 1, 1]), np.array([1, 1, 0, 1]), 2)
    assert rows.tolist() == [[0, 0.25, 0.75], [1, 0.25, 0.75], [1, 0.25, 0.75]]
    assert floor(np.array([1.0, 5.0]), np.array([2.0, 4.0]), 1).tolist() == [[1, 3], [5, 3]]


def test_a_batch_is_its_rows_one_by_one():
    """With ties in some of them and in none of the others, as a bootstrap draws them."""
    fine = RNG.dirichlet(np.ones(4), 300)
    rows = [np.column_stack([TARGET, chances]) for chances in (fine, CHANCES)]
    for score in of_task("classification"):
        both = score.measure(np.stack(rows))
        assert both == pytest.approx([score.of(own) for own in rows])
    areas = [theirs.roc_auc_score(k == TARGET, fine[:, k]) for k in range(4)]
    assert SCORES["auroc"].of(rows[0]) == pytest.approx(np.mean(areas))
