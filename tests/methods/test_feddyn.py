"""FedDyn step by step, and that on quadratics it reaches the optimum of their average where FedAvg does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import quadratics
from fedekd import methods
from fedekd.data import Federation
from fedekd.methods.base import ClientInit
from fedekd.tasks import Regression
from hand_batch import hand_batch
from quadratics import CLIENTS, RATE


@pytest.fixture(scope="module")
def federation() -> Federation:
    return quadratics.quadratics()


def test_the_loss_by_hand():
    """(1 + 9) / 2 - <(3, -1), (1, 2)> + (a / 2) |(1, 2) - (4, 1)|^2 with a = .5"""
    weights = {"u": torch.tensor([1.0], requires_grad=True), "v": torch.tensor([2.0], requires_grad=True)}
    batch = hand_batch(
        Regression(),
        torch.zeros(2),
        {"private": torch.tensor([1.0, 3.0])},
        weights={"private": weights},
        received={"private": {"u": torch.tensor([4.0]), "v": torch.tensor([1.0])}},
        memory={"gradient": {"u": torch.tensor([3.0]), "v": torch.tensor([-1.0])}},
    )
    method = methods.get("feddyn", a=0.5)
    loss = method.loss(batch)
    assert loss.item() == pytest.approx(5 - (3 - 2) + 0.25 * (9 + 1))
    u, v = torch.autograd.grad(loss, list(weights.values()))
    assert u.item() == pytest.approx(-3 + 0.5 * (1 - 4))  # -g + a (theta - received)
    assert v.item() == pytest.approx(1 + 0.5 * (2 - 1))
    remembered = method.corrected(batch)["gradient"]
    assert remembered["u"].item() == pytest.approx(3 - 0.5 * (1 - 4))
    assert remembered["v"].item() == pytest.approx(-1 - 0.5 * (2 - 1))


def test_the_linear_term_begins_at_nothing_for_any_weights():
    weights = {"private": {"w": torch.tensor([[0.0, -2.0]]), "b": torch.zeros(2)}}
    begun = methods.get("feddyn").begin(ClientInit(weights=weights, features={}, seed=0, targets=torch.ones(1)))[
        "gradient"
    ]
    assert {name: tensor.tolist() for name, tensor in begun.items()} == {"w": [[0, 0]], "b": [0, 0]}


def test_rounds_follow_the_algorithm(federation):
    """Acar et al., Algorithm 1, in numpy: what the clients remember and what all are given, round by round."""
    a, rounds, epochs = 0.4, 3, 2
    engine = quadratics.engine_of(federation, methods.get("feddyn", a=a), rounds, epochs)
    given = quadratics.private_weights(engine)[0]
    remembered, h = np.zeros((CLIENTS, 2)), np.zeros(2)
    for client in engine.clients:
        assert client.memory["gradient"]["w.weight"].abs().sum() == 0
    for _ in range(rounds):
        trained = []
        for k in range(CLIENTS):
            w = given.copy()
            for _ in range(epochs):
                w -= RATE * (quadratics.gradient(federation, k, w) - remembered[k] + a * (w - given))
            remembered[k] -= a * (w - given)
            trained.append(w)
        mean = np.mean(trained, axis=0)
        h -= a * (mean - given)
        given = mean - h / a
        engine.round()
        found = [client.memory["gradient"]["w.weight"].numpy()[0] for client in engine.clients]
        np.testing.assert_allclose(found, remembered, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(quadratics.private_weights(engine), [given] * CLIENTS, rtol=1e-4, atol=1e-6)


def optimum(federation: Federation) -> np.ndarray:
    x, y = federation.dataset.x.astype(float), federation.dataset.y.astype(float)
    return np.linalg.lstsq(x, y, rcond=None)[0]


def distance(federation: Federation, method) -> float:
    engine = quadratics.engine_of(federation, method, rounds=20, epochs=30)
    for _ in range(20):
        engine.round()
    return float(np.linalg.norm(quadratics.private_weights(engine)[0] - optimum(federation)))


def test_feddyn_reaches_the_optimum_where_fedavg_does_not(federation):
    assert distance(federation, methods.get("feddyn", a=2.0)) < 1e-3
    assert distance(federation, methods.get("fedavg")) > 0.1
