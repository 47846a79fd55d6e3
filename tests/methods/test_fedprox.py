"""FedProx's proximal term is (mu/2)||theta - received||^2, in the loss, its gradient and whole rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import quadratics
from fedekd import methods
from fedekd.methods.base import Exchange, Train
from fedekd.tasks import Regression
from hand_batch import hand_batch
from quadratics import CLIENTS, RATE


def test_the_loss_and_its_gradient_by_hand():
    """(1 + 9) / 2 + (mu / 2) (1 + 4 + 9) with mu = .5"""
    weights = {"w": torch.tensor([1.0, 3.0], requires_grad=True), "b": torch.tensor([2.0], requires_grad=True)}
    received = {"w": torch.tensor([0.0, 1.0]), "b": torch.tensor([-1.0])}
    batch = hand_batch(
        Regression(),
        torch.zeros(2),
        {"private": torch.tensor([1.0, 3.0])},
        weights={"private": weights},
        received={"private": received},
    )
    loss = methods.get("fedprox", mu=0.5).loss(batch)
    assert loss.item() == pytest.approx(5 + 0.25 * 14)
    w, b = torch.autograd.grad(loss, list(weights.values()))
    torch.testing.assert_close(w, 0.5 * torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(b, 0.5 * torch.tensor([3.0]))


@pytest.mark.parametrize(("name", "parameters"), [("fedprox", {"mu": 3.0}), ("fedavg", {})])
def test_rounds_follow_the_algorithm(name, parameters):
    """Gradient descent from the received weights, pulled back by mu times the way gone, then the mean."""
    federation, epochs, mu = quadratics.quadratics(), 3, parameters.get("mu", 0.0)
    engine = quadratics.engine_of(federation, methods.get(name, **parameters), rounds=2, epochs=epochs)
    given = quadratics.private_weights(engine)[0]
    for _ in range(2):
        trained = []
        for k in range(CLIENTS):
            w = given.copy()
            for _ in range(epochs):
                w -= RATE * (quadratics.gradient(federation, k, w) + mu * (w - given))
            trained.append(w)
        given = np.mean(trained, axis=0)
        engine.round()
        np.testing.assert_allclose(quadratics.private_weights(engine), [given] * CLIENTS, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["fedprox", "fedavg"])
def test_a_round_trains_and_sends_the_private_model(name):
    method = methods.get(name)
    train, exchange = method.steps(0)
    assert isinstance(train, Train)
    assert (train.roles, train.frozen, train.loss) == (("private",), (), method.loss)
    assert isinstance(exchange, Exchange)
    assert exchange.name == "private"
