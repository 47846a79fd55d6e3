"""FedAvgM: FedAvg without momentum, and a geometric sum of changes with it."""

from __future__ import annotations

import pytest
import torch

from byhand import around, lines, started, trained, training_loss, tree, weight
from fedekd import methods
from fedekd.exchange import Aggregator
from fedekd.methods.base import Exchange
from tiny import tiny_private


@pytest.mark.parametrize("problem", ["images", "tables"])
def test_without_momentum_it_is_fedavg_to_rounding(request, problem):
    federation = request.getfixturevalue(problem)
    ours, theirs = (
        tree(trained(federation, method, tiny_private, 2, optimizer="adam", lr=0.01, weighting="samples"))
        for method in (methods.get("fedavgm", beta=0.0), methods.get("fedavg"))
    )
    for name, w in theirs.items():
        torch.testing.assert_close(ours[name], w, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("beta", "server_lr"), [(0.9, 1.0), (0.5, 0.25)])
def test_a_constant_change_adds_up(beta, server_lr):
    """m_t = delta (1 - beta^t) / (1 - beta), and every round goes server_lr m_t further."""
    method = methods.get("fedavgm", beta=beta, server_lr=server_lr)
    server, step = Aggregator({"private": {"w": torch.zeros(2)}}), Exchange("private", method.server)
    w, delta = torch.zeros(2), torch.tensor([1.0, -2.0])
    for t in range(1, 6):
        uploads = [{"w": server.sent["private"]["w"] + d} for d in (0 * delta, 4 * delta)]
        answer = server.combine(step, uploads, [3.0, 1.0], [0, 1], t - 1)
        w = w + server_lr * delta * (1 - beta**t) / (1 - beta)
        torch.testing.assert_close(answer["w"], w, rtol=1e-5, atol=1e-6)
    assert (methods.get("fedavgm").beta, methods.get("fedavgm").server_lr) == (0.9, 1.0)


def test_two_rounds_by_hand():
    """f = (w - a)^2 / 2 and one step of rate .1 a round: the mean change is .1 (a - w)."""
    engine = trained(around((1.0, 4.0), (3.0, 0.0)), methods.get("fedavgm", beta=0.5), lines(0.0, 0.0), 2)
    first = 0.1 * torch.tensor([2.0, 2.0])
    torch.testing.assert_close(weight(engine), first + 0.5 * first + 0.1 * (2.0 - first))


def test_it_keeps_buffers_out_of_its_momentum():
    start, method = {"w": torch.zeros(1)}, methods.get("fedavgm")
    server, step = Aggregator({"private": start}), Exchange("private", method.server)
    for _ in range(2):
        uploads = [{"w": torch.ones(1), "norm.running_mean": torch.tensor([m])} for m in (2.0, 6.0)]
        answer = server.combine(step, uploads, [1.0, 1.0], [0, 1], 0)
    assert float(answer["norm.running_mean"]) == 4.0
    assert set(server.memory["private"]) == {"w"}


@pytest.mark.parametrize("problem", ["images", "tables"])
def test_both_tasks_are_learnt(request, problem):
    method = methods.get("fedavgm", beta=0.5)
    engine = started(request.getfixturevalue(problem), method, tiny_private, batch_size=16, lr=0.02, optimizer="adam")
    before = training_loss(engine)
    for _ in range(3):
        engine.round()
    assert training_loss(engine) < 0.97 * before
