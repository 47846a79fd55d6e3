"""On heterogeneous quadratics FedDyn reaches the optimum of their average, and FedAvg does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedekd import methods
from fedekd.data import Dataset, Federation, Split
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial

CLIENTS, ROWS, WIDTH = 3, 12, 2


class Line(nn.Module):
    """y = <w, x>: with squared error, each client's loss is a quadratic in w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x):
        return self.w(x)


@pytest.fixture(scope="module")
def quadratics() -> Federation:
    """Each client has another curvature and another optimum."""
    rng = np.random.default_rng(3)
    scales = np.array([[0.3, 1.5], [1.2, 0.4], [0.8, 0.8]])
    optima = np.array([[2.0, -1.0], [-1.0, 3.0], [0.5, 0.5]])
    x = np.concatenate([rng.normal(size=(ROWS, WIDTH)) * scales[k] for k in range(CLIENTS)]).astype(np.float32)
    y = np.concatenate([x[k * ROWS : (k + 1) * ROWS] @ optima[k] for k in range(CLIENTS)]).astype(np.float32)
    dataset = Dataset("quadratics", "regression", x, y, 1, scale=None)
    rows = np.arange(len(y)).reshape(CLIENTS, ROWS)
    splits = tuple(Split(r, r, r) for r in rows)
    one, zero = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    return Federation(dataset, splits, ("0", "1", "2"), {"kind": "sites", "alpha": None}, zero, one, 0.0, 1.0)


def optimum(federation: Federation) -> torch.Tensor:
    x, y = (torch.from_numpy(a).double() for a in (federation.dataset.x, federation.dataset.y))
    return torch.linalg.lstsq(x, y[:, None]).solution[:, 0].float()


def distance(federation: Federation, method) -> float:
    training = Training(rounds=60, epochs=30, batch_size=ROWS, lr=0.05, optimizer="sgd")
    make = lambda shape, outputs: Line()  # noqa: E731
    engine = Serial(Job(federation, method, 0, training, make, make))
    for _ in range(training.rounds):
        engine.round()
    weights = engine.clients[0].models["private"].w.weight.detach()[0]
    return float((weights - optimum(federation)).norm())


def test_feddyn_reaches_the_optimum_where_fedavg_does_not(quadratics):
    assert distance(quadratics, methods.get("feddyn", a=0.5)) < 1e-3
    assert distance(quadratics, methods.get("fedavg")) > 0.1
