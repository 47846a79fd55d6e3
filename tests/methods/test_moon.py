"""MOON: its term by hand, nothing without it, and nothing to learn from it where both models are one."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from byhand import same, started, trained, training_loss, tree, view
from fedekd import methods
from fedekd.methods.moon import direction
from tiny import tiny_private

MOON = methods.get("moon")


def seen_as(private, near, far):
    """Only the features of a batch."""
    return SimpleNamespace(features={"private": private, "global": near, "previous": far})


def seen(method, own, near, far, mask=None):
    """A batch whose private, global and previous models have these features."""
    own, near, far = (torch.tensor(t, dtype=torch.float32) for t in (own, near, far))
    module = nn.Linear(own.shape[1], 3)
    with torch.no_grad():
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
    features = {"private": own.requires_grad_(), "global": near, "previous": far}
    y, weights = torch.zeros(len(own), dtype=torch.long), dict(module.named_parameters())
    return view(method, "classification", module, weights, own, y, mask, features=features)


@pytest.mark.parametrize(("mu", "temperature"), [(1.0, 0.5), (3.0, 0.5), (1.0, 2.0)])
def test_the_loss_by_hand(mu, temperature):
    """Cosines are 0.8 and -0.6 in the first row, 0 and 1 in the second; equal logits of three classes cost log 3."""
    method = methods.get("moon", mu=mu, temperature=temperature)
    batch = seen(method, [[2.0, 0.0], [0.0, 1.0]], [[4.0, 3.0], [5.0, 0.0]], [[-0.3, 0.4], [0.0, 7.0]])
    terms = []
    for near, far in ((0.8, -0.6), (0.0, 1.0)):
        a, b = math.exp(near / temperature), math.exp(far / temperature)
        terms.append(-math.log(a / (a + b)))
    assert method.loss(batch).item() == pytest.approx(math.log(3) + mu * sum(terms) / 2, rel=1e-6)
    assert methods.get("moon") == methods.get("moon", mu=1.0, temperature=0.5)


def test_padding_does_not_count():
    rows = [[1.0, 2.0], [0.5, -1.0]], [[3.0, 1.0], [1.0, 1.0]], [[-1.0, 1.0], [2.0, 0.0]]
    alone = MOON.loss(seen(MOON, *([one[0]] for one in rows)))
    assert torch.equal(MOON.loss(seen(MOON, *rows, mask=torch.tensor([True, False]))), alone)
    stack = torch.tensor(rows)[:, :, None]  # of two clients with one row each
    mapped = torch.func.vmap(lambda *own: MOON.contrastive(seen_as(*own)))(*stack)
    assert torch.equal(mapped.flatten(), MOON.contrastive(seen_as(*torch.tensor(rows))))


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-4, 1.0, 1e15])
def test_features_and_gradients_are_finite_however_long_a_row_is(scale):
    a = (scale * torch.tensor([[0.0, 3.0, 4.0]])).requires_grad_()
    found = direction(a) @ torch.tensor([0.0, 0.0, 1.0])
    assert found.item() == pytest.approx(0.8 if scale >= 1e-4 else 0.0, abs=1e-6)
    assert torch.isfinite(torch.autograd.grad(found.sum(), a)[0]).all()


@pytest.mark.parametrize("problem", ["images", "tables"])
def test_without_its_term_it_is_fedavg_to_the_bit(request, problem):
    federation = request.getfixturevalue(problem)
    fedavg, without, moon = (
        tree(trained(federation, method, tiny_private, 3, optimizer="adam", lr=0.01, batch_size=16))
        for method in (methods.get("fedavg"), methods.get("moon", mu=0.0), MOON)
    )
    assert same(fedavg, without)
    assert not same(fedavg, moon)


def test_where_the_previous_model_is_the_global_one_the_term_is_log_2_and_has_no_gradient(images):
    """As in the first round: the loss is the cross-entropy's and mu log 2, its gradient the cross-entropy's."""
    found = {}
    for mu in (0.0, 2.0):
        engine, losses = started(images, methods.get("moon", mu=mu), tiny_private, batch_size=8), []
        copied, train, *_ = engine.method.steps(0)

        def noted(batch, loss=train.loss, losses=losses):
            losses.append(loss(batch))
            return losses[-1]

        engine.clients[0].perform(copied, 0)
        engine.clients[0].perform(replace(train, loss=noted), 0)
        found[mu] = torch.stack(losses).detach(), tree(engine)
    assert len(found[0.0][0]) > 2
    torch.testing.assert_close(found[2.0][0], found[0.0][0] + 2 * math.log(2), rtol=1e-6, atol=1e-6)
    assert same(found[2.0][1], found[0.0][1])


def test_the_global_model_is_what_was_received_and_the_previous_one_what_was_trained(images):
    engine = started(images, MOON, tiny_private, lr=0.1)
    for _ in range(2):
        received = tree(engine)
        engine.round()
        assert same(tree(engine, role="global"), received)
        mean = {name: torch.stack([tree(engine, k, "previous")[name] for k in range(3)]).mean(0) for name in received}
        for name, w in tree(engine).items():
            torch.testing.assert_close(w, mean[name], rtol=1e-5, atol=1e-7)
        assert not same(tree(engine, 0, "previous"), tree(engine, 1, "previous"))
    assert engine.door.names == {"private"}


@pytest.mark.parametrize("problem", ["images", "tables"])
def test_both_tasks_are_learnt(request, problem):
    engine = started(request.getfixturevalue(problem), MOON, tiny_private, batch_size=16, lr=0.03, optimizer="adam")
    before = training_loss(engine)
    for _ in range(3):
        engine.round()
    assert training_loss(engine) < 0.97 * before
