"""Losses and metrics of the two tasks against numpy, and who gets a gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedekd.errors import FedekdError
from fedekd.tasks import Classification, Regression, make_task

DRAW = np.random.default_rng(0)
LOGITS, TEACHER = DRAW.normal(0, 2, (9, 4)).astype("f4"), DRAW.normal(0, 2, (9, 4)).astype("f4")
LABELS = DRAW.integers(0, 4, 9)
GUESS, TARGET, OTHER = (DRAW.normal(0, 3, 9).astype("f4") for _ in range(3))


def log_softmax(z):
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def tensors(*arrays):
    return (torch.from_numpy(np.asarray(a)) for a in arrays)


def test_cross_entropy_is_per_sample():
    loss = Classification().loss(*tensors(LOGITS, LABELS))
    expected = -log_softmax(LOGITS.astype("f8"))[np.arange(9), LABELS]
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-5)


def test_distillation_is_the_divergence_from_the_teacher():
    """KL(teacher ‖ student): the teacher's probabilities weigh the difference."""
    student, teacher = tensors(LOGITS, TEACHER)
    t, s = log_softmax(TEACHER.astype("f8")), log_softmax(LOGITS.astype("f8"))
    forward, backward = (np.exp(t) * (t - s)).sum(-1), (np.exp(s) * (s - t)).sum(-1)
    loss = Classification().distil(student=student, teacher=teacher).numpy()
    np.testing.assert_allclose(loss, forward, rtol=1e-4)
    assert not np.allclose(loss, backward, rtol=0.1)


def test_a_squared_error_is_per_sample():
    output, target, teacher = tensors(GUESS, TARGET, OTHER)
    np.testing.assert_allclose(Regression().loss(output, target).numpy(), (GUESS - TARGET) ** 2, rtol=1e-5)
    loss = Regression().distil(student=output, teacher=teacher)
    np.testing.assert_allclose(loss.numpy(), (GUESS - OTHER) ** 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("task", "student", "teacher"), [(Classification(), LOGITS, TEACHER), (Regression(), GUESS, OTHER)]
)
def test_the_teacher_gets_no_gradient(task, student, teacher):
    student, teacher = (t.clone().requires_grad_() for t in tensors(student, teacher))
    task.distil(student=student, teacher=teacher).sum().backward()
    assert teacher.grad is None
    assert student.grad.abs().sum() > 0


@pytest.mark.parametrize(("task", "output"), [(Classification(), LOGITS), (Regression(), GUESS)])
def test_a_student_that_equals_its_teacher_learns_nothing(task, output):
    (teacher,) = tensors(output)
    student = teacher.clone().requires_grad_()
    loss = task.distil(student=student, teacher=teacher)
    loss.sum().backward()
    assert loss.abs().max() < 1e-6
    assert student.grad.abs().max() < 1e-6


def test_accuracy():
    output, target = tensors(LOGITS, LABELS)
    score = Classification().score(output, target)
    assert score == np.mean(LOGITS.argmax(-1) == LABELS)
    assert type(score) is float
    perfect = torch.eye(4)[target]
    assert Classification().score(perfect, target) == 1.0
    assert Classification().score(-perfect, target) == 0.0
    assert Classification().score(torch.zeros(3, 2), torch.tensor([0, 1, 0])) == 2 / 3  # ties go to the first class


def test_the_error_is_in_the_users_units():
    output, target = tensors(GUESS, TARGET)
    expected = np.sqrt(np.mean((GUESS.astype("f8") - TARGET) ** 2))
    assert Regression().score(output, target) == pytest.approx(expected, rel=1e-6)
    assert Regression(unit=50.0).score(output, target) == pytest.approx(50 * expected, rel=1e-6)
    assert make_task("regression", 7.0).score(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0])) == pytest.approx(
        7 * 2.5**0.5
    )
    assert torch.equal(Regression(50.0).loss(output, target), Regression().loss(output, target))  # training is not
    assert make_task("regression") == Regression(1.0)


def test_a_standardised_target_has_its_error_in_the_users_units(tables):
    """Predicting the mean of all targets misses by their deviation, in the units of the table."""
    assert tables.target_std > 10
    task = make_task("regression", tables.target_std)
    standardised = torch.from_numpy((tables.dataset.y - tables.target_mean) / tables.target_std)
    raw = np.sqrt(np.mean((tables.dataset.y.astype("f8") - tables.target_mean) ** 2))
    assert task.score(torch.zeros(len(standardised)), standardised) == pytest.approx(raw, rel=1e-5)


def test_raw_outputs_are_read_as_single_precision():
    raw = torch.randn(5, 3, dtype=torch.bfloat16)
    assert Classification().read(raw).dtype == torch.float32
    assert Classification().read(raw).shape == (5, 3)
    for count in (1, 5):  # a batch of one keeps its batch axis
        read = Regression().read(torch.randn(count, 1, dtype=torch.bfloat16))
        assert (read.shape, read.dtype) == ((count,), torch.float32)


@pytest.mark.parametrize("count", [5, 1])
def test_a_model_may_give_its_predictions_without_a_second_axis(count):
    assert Regression().read(torch.randn(count)).shape == (count,)


def test_names_directions_and_energies():
    classification, regression = make_task("classification"), make_task("regression")
    assert (classification.metric, classification.higher_is_better, classification.energy) == ("accuracy", True, "kl")
    assert (regression.metric, regression.higher_is_better, regression.energy) == ("rmse", False, "squared")
    assert [task.name for task in (classification, regression)] == ["classification", "regression"]


def test_an_unknown_task_is_answered_with_the_nearest():
    with pytest.raises(FedekdError, match="unknown task 'regresion'; did you mean 'regression'") as error:
        make_task("regresion")
    assert "\n" not in str(error.value)


def test_the_errors_of_stacked_clients_are_those_of_each():
    output, target = torch.randn(2, 5, 3), torch.randint(0, 3, (2, 5))
    sort = make_task("classification")
    assert torch.equal(
        sort.errors(output, target), torch.stack([sort.errors(*one) for one in zip(output, target, strict=True)])
    )
    assert sort.score(output, target) == pytest.approx(sort.score(output.flatten(0, 1), target.flatten()))


def test_the_errors_of_the_samples_make_up_the_score():
    output, target = torch.randn(40, 3), torch.randint(0, 3, (40,))
    sort = make_task("classification")
    assert 1 - sort.errors(output, target).double().mean() == pytest.approx(sort.score(output, target))
    fit, value, goal = make_task("regression", unit=7.0), torch.randn(40), torch.randn(40)
    assert fit.errors(value, goal).double().square().mean().sqrt() == pytest.approx(fit.score(value, goal))
