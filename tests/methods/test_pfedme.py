"""pFedMe: theta, the step of w and the server's step in closed form, and an answer that leaves w alone."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch import nn

from byhand import (
    around,
    interrupted,
    lines,
    padded_and_mapped,
    same,
    started,
    trained,
    training_loss,
    tree,
    uninterrupted,
    view,
    weight,
)
from fedekd import methods
from tiny import tiny_private

A, W = torch.tensor([3.0, -1.0]), torch.tensor([1.0, 2.0])


def fitted(w, lam, inner_lr, inner_steps):
    """Gradient descent from w on ||theta - A||^2 / 2 + lam/2 ||theta - w||^2."""
    best = (A + lam * w) / (1 + lam)
    return best + (1 - inner_lr * (1 + lam)) ** inner_steps * (w - best)


@pytest.mark.parametrize(("lam", "inner_lr", "inner_steps"), [(15.0, 0.01, 5), (2.0, 0.1, 3), (0.0, 0.2, 1)])
def test_theta_in_closed_form(lam, inner_lr, inner_steps):
    method = methods.get("pfedme", lam=lam, inner_lr=inner_lr, inner_steps=inner_steps)
    module = nn.Linear(2, 1, bias=False)
    batch = view(method, "regression", module, {"weight": W[None]}, torch.eye(2), A)
    torch.testing.assert_close(method.theta(batch)["weight"][0], fitted(W, lam, inner_lr, inner_steps))
    default = methods.get("pfedme")
    assert (default.lam, default.inner_lr, default.inner_steps, default.beta) == (15.0, 0.01, 5, 1.0)


def test_theta_goes_to_the_proximal_point():
    method = methods.get("pfedme", lam=4.0, inner_lr=0.1, inner_steps=60)
    module = nn.Linear(2, 1, bias=False)
    batch = view(method, "regression", module, {"weight": W[None]}, torch.eye(2), A)
    torch.testing.assert_close(method.theta(batch)["weight"][0], (A + 4 * W) / 5)


@pytest.mark.parametrize(("lam", "lr"), [(15.0, 0.005), (4.0, 0.25), (2.0, 0.1)])
def test_the_step_of_w(lam, lr):
    """w - lr lam (w - theta), whatever optimiser and rate the others have; with lr lam = 1 it is theta."""
    method = methods.get("pfedme", lam=lam, lr=lr)
    engine = trained(around(A, A), method, lines(*W), optimizer="adam", lr=0.7)
    theta = fitted(W, lam, 0.01, 5)
    torch.testing.assert_close(weight(engine), W - lr * lam * (W - theta))
    if lr * lam == 1:
        torch.testing.assert_close(weight(engine), theta)


@pytest.mark.parametrize("beta", [1.0, 0.5, 2.0])
def test_the_server_goes_beta_of_the_way_to_the_mean(beta):
    optima = torch.tensor([4.0, 0.0]), torch.tensor([0.0, 8.0])
    method = methods.get("pfedme", lam=1.0, lr=0.5, inner_lr=0.5, inner_steps=1, beta=beta)
    engine = started(around(*optima), method, lines(*W))
    engine.round()
    thetas = [W - 0.5 * (W - a) for a in optima]
    mean = torch.stack([W - 0.5 * (W - theta) for theta in thetas]).mean(0)
    torch.testing.assert_close(weight(engine), (1 - beta) * W + beta * mean)


def test_with_lam_0_w_never_changes_by_a_bit(images):
    engine = started(images, methods.get("pfedme", lam=0.0), tiny_private, batch_size=16, weighting="samples")
    before = tree(engine)
    for _ in range(2):
        engine.round()
        assert all(same(tree(engine, k), before) for k in range(3))
    moved = trained(images, methods.get("pfedme"), tiny_private)
    assert not same(tree(moved), before)


def test_the_answer_is_theta_of_all_own_rows_and_w_is_left_alone():
    lam, inner_lr, inner_steps = 2.0, 0.1, 4
    method = methods.get("pfedme", lam=lam, inner_lr=inner_lr, inner_steps=inner_steps)
    engine = trained(around(A, -A), method, lines(*W))
    w, client = weight(engine), engine.clients[0]
    with client.personalised():
        torch.testing.assert_close(weight(engine), fitted(w, lam, inner_lr, inner_steps))
        theta = weight(engine)
    assert torch.equal(weight(engine), w)
    assert client.score() == pytest.approx(float((theta - A).square().mean().sqrt()), rel=1e-5)
    assert torch.equal(weight(engine), w)


def test_answering_on_the_way_changes_nothing(tables):
    asked, left_alone = (started(tables, methods.get("pfedme"), tiny_private, batch_size=16) for _ in range(2))
    for _ in range(3):
        asked.evaluate()
        asked.round()
        left_alone.round()
    assert same(asked.state(), left_alone.state())


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_padding_and_mapping_change_nothing(task):
    alone, mapped = padded_and_mapped(methods.get("pfedme"), task)
    torch.testing.assert_close(mapped, alone)
    assert alone[0].min() > 0


def test_a_run_taken_up_again_goes_on_to_the_same_bits(tables):
    job = started(tables, methods.get("pfedme"), tiny_private, batch_size=16, participation=0.5).job
    whole, again = uninterrupted(job), interrupted(job, after=2)
    assert same(whole.state(), again.state())
    assert whole.evaluate() == again.evaluate()


@pytest.mark.parametrize("problem", ["images", "tables"])
def test_both_tasks_are_learnt(request, problem):
    """The common model is, and every client's own is better on its rows."""
    method = methods.get("pfedme", lam=1.0, lr=0.8, inner_lr=0.05)
    engine = started(request.getfixturevalue(problem), method, tiny_private, batch_size=16, epochs=3)
    before = training_loss(engine)
    for _ in range(3):
        engine.round()
    common = training_loss(engine)
    assert common < 0.97 * before
    with ExitStack() as stack:
        for client in engine.clients:
            stack.enter_context(client.personalised())
        assert training_loss(engine) < 0.97 * common
    assert training_loss(engine) == common


def test_batch_norm_counts_every_batch_once(images):
    def private(shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, outputs))

    engine = started(images, methods.get("pfedme"), private, batch_size=1000)
    client, (train, _) = engine.clients[0], engine.method.steps(0)
    start, rows = client.weights("private"), client.data.scale.inputs(client.data.x[client.rows["train"]]).flatten(1)
    client.perform(train, 0)
    norm = client.models["private"][2]
    hidden = rows @ start["1.weight"].T + start["1.bias"]
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(norm.running_mean, 0.1 * hidden.mean(0))
