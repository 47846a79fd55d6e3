"""Clients whose loss is a quadratic in two weights, so that a test can compute every step of training itself."""

from __future__ import annotations

import numpy as np
from torch import nn

from fedekd.data import Dataset, Federation, Split
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.methods.base import Method

CLIENTS, ROWS, WIDTH, RATE = 3, 12, 2, 0.05


class Line(nn.Module):
    """y = <w, x>: with squared error, each client's loss is a quadratic in w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x):
        return self.w(x)


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


def engine_of(federation: Federation, method: Method, rounds: int, epochs: int) -> Serial:
    """Plain gradient descent on all of a client's rows: an epoch is one step."""
    training = Training(rounds=rounds, epochs=epochs, batch_size=ROWS, lr=RATE, optimizer="sgd")
    make = lambda shape, outputs: Line()  # noqa: E731
    return Serial(Job(federation, method, 0, training, make, make))


def private_weights(engine: Serial) -> np.ndarray:
    """[clients, 2]"""
    return np.stack([client.models["private"].w.weight.detach().numpy()[0] for client in engine.clients]).astype(float)


def gradient(federation: Federation, client: int, w: np.ndarray) -> np.ndarray:
    """Of the mean squared error on a client's rows."""
    rows = federation.clients[client].train
    x, y = federation.dataset.x[rows].astype(float), federation.dataset.y[rows].astype(float)
    return 2 * x.T @ (x @ w - y) / len(rows)
