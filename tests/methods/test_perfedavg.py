"""Per-FedAvg: its step in closed form, its halves, FedAvg without the inner step, and one step before an answer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from byhand import (
    clients_of,
    lines,
    padded_and_mapped,
    rows_of,
    same,
    slope,
    started,
    trained,
    training_loss,
    tree,
    view,
    weight,
)
from fedekd import methods
from fedekd.methods.base import Exchange, Method, Train
from fedekd.methods.perfedavg import halves
from tiny import tiny_private

HALF = 0.5**0.5  # an input whose squared error has the gradient w - a


def place_by_place(rows, mask=None):
    method = methods.get("perfedavg")
    weights = {"weight": torch.zeros(1, 1)}
    return halves(
        view(method, "regression", nn.Linear(1, 1, bias=False), weights, torch.zeros(rows, 1), torch.zeros(rows), mask)
    )


def test_even_places_come_first_and_odd_places_second():
    first, second = place_by_place(5)
    assert first.tolist() == [True, False, True, False, True]
    assert second.tolist() == [False, True, False, True, False]


def test_a_single_row_is_in_both_halves_and_padding_in_none():
    assert [half.tolist() for half in place_by_place(1)] == [[True], [True]]
    mask = torch.tensor([True, False, False])
    assert [half.tolist() for half in place_by_place(3, mask)] == [[True, False, False]] * 2
    mask = torch.tensor([False, True, True, False, True])
    first, second = place_by_place(5, mask)
    assert first.tolist() == [False, True, False, False, True]
    assert second.tolist() == [False, False, True, False, False]
    assert not any(half.any() for half in place_by_place(3, torch.zeros(3, dtype=torch.bool)))


@pytest.mark.parametrize(("alpha", "beta"), [(0.01, 0.001), (0.3, 0.1), (0.0, 0.5)])
def test_a_step_on_a_parabola(alpha, beta):
    """f = w^2 / 2 on both halves: w (1 - beta (1 - alpha)), whatever optimiser and rate the others have."""
    method = methods.get("perfedavg", alpha=alpha, beta=beta)
    engine = trained(clients_of(([[HALF]] * 4, [0.0] * 4)), method, lines(2.0), optimizer="adam", lr=0.7)
    torch.testing.assert_close(weight(engine), torch.tensor([2.0 * (1 - beta * (1 - alpha))]))
    default = methods.get("perfedavg")
    assert (default.alpha, default.beta) == (0.01, 0.001)


def test_the_first_half_makes_the_step_and_the_second_the_gradient():
    """f = (w - a)^2 / 2 on even and (w - b)^2 / 2 on odd places: the gradient at y is y - alpha (y - a) - b."""
    a, b, alpha, y = 3.0, -2.0, 0.25, torch.tensor([[1.5]], requires_grad=True)
    method = methods.get("perfedavg", alpha=alpha)
    x, targets = torch.full((6, 1), HALF), HALF * torch.tensor([a, b] * 3)
    loss = method.loss(view(method, "regression", nn.Linear(1, 1, bias=False), {"weight": y}, x, targets))
    u = 1.5 - alpha * (1.5 - a)
    assert loss.item() == pytest.approx((u - b) ** 2 / 2, rel=1e-5)
    assert torch.autograd.grad(loss, y)[0].item() == pytest.approx(u - b, rel=1e-5)


@dataclass(frozen=True)
class OddRows(Method):
    """FedAvg on the rows at odd places, by plain SGD"""

    rate: float = 0.05

    def steps(self, round):
        return Train(("private",), self.loss, optimizer="sgd", lr=self.rate), Exchange("private")

    def loss(self, batch):
        kept = torch.arange(len(batch.y)) % 2 == (1 if len(batch.y) > 1 else 0)
        return torch.where(kept, batch.task.loss(batch.outputs["private"], batch.y), 0.0).sum(-1) / kept.sum()


def flat(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, outputs))


def without_the_inner_step(federation, private):
    """Per-FedAvg with alpha 0, FedAvg on the odd rows, and Per-FedAvg with an inner step."""
    alike = methods.get("perfedavg", alpha=0.0, beta=0.05), OddRows(), methods.get("perfedavg", alpha=0.1, beta=0.05)
    settings = {"batch_size": 16, "optimizer": "adam", "lr": 0.01}
    return (tree(trained(federation, method, private, 2, **settings)) for method in alike)


@pytest.mark.parametrize(("problem", "private"), [("images", flat), ("tables", tiny_private)])
def test_without_the_inner_step_it_is_fedavg_on_the_odd_rows_to_the_bit(request, problem, private):
    ours, odd, other = without_the_inner_step(request.getfixturevalue(problem), private)
    assert same(ours, odd)
    assert not same(ours, other)


def test_and_to_rounding_with_convolutions(images):
    """Moved weights of a convolution with one channel have another layout in memory, and other kernels take them."""
    ours, odd, _ = without_the_inner_step(images, tiny_private)
    torch.testing.assert_close(ours, odd, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_padding_and_mapping_change_nothing(task):
    alone, mapped = padded_and_mapped(methods.get("perfedavg", alpha=0.2), task)
    torch.testing.assert_close(mapped, alone)
    assert alone[0].min() > 0


@pytest.mark.parametrize("batch_size", [64, 3])
def test_the_answer_is_one_step_over_all_own_rows_and_the_model_is_left_alone(batch_size):
    """Also where rows are cut into batches of three, the last of them smaller."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(7, 2, generator=generator), torch.randn(7, generator=generator)
    federation = clients_of((x, y), (x[:2], -y[:2]))
    engine = trained(federation, methods.get("perfedavg", alpha=0.1, beta=0.05), lines(1.0, 2.0), batch_size=batch_size)
    w, client = weight(engine), engine.clients[0]
    with client.personalised():
        adapted = weight(engine)
        torch.testing.assert_close(adapted, w - 0.1 * slope(federation, 0, w), rtol=1e-5, atol=1e-6)
    assert torch.equal(weight(engine), w)
    inputs, targets = rows_of(federation, 0)
    assert client.score() == pytest.approx(float((inputs @ adapted - targets).square().mean().sqrt()), rel=1e-5)


def test_answering_on_the_way_changes_nothing(tables):
    asked, left_alone = (started(tables, methods.get("perfedavg"), tiny_private, batch_size=16) for _ in range(2))
    for _ in range(2):
        asked.evaluate()
        asked.round()
        left_alone.round()
    assert same(asked.state(), left_alone.state())


@pytest.mark.parametrize("problem", ["images", "tables"])
def test_both_tasks_are_learnt(request, problem):
    method = methods.get("perfedavg", alpha=0.05, beta=0.2)
    engine = started(request.getfixturevalue(problem), method, tiny_private, batch_size=8, epochs=3)
    before = training_loss(engine)
    for _ in range(4):
        engine.round()
    assert training_loss(engine) < 0.97 * before
