"""What every method and Local can be trained with alike: decay of the weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedekd import methods
from fedekd.engines.job import Job, Training, make_optimizer
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from tiny import tiny_private, tiny_proxy

TRAINING = Training(rounds=3, epochs=2, batch_size=16, lr=3e-3)


def job(federation, method="local", seed=0, private=tiny_private, **training):
    settings = replace(TRAINING, **training)
    found = methods.get(method) if isinstance(method, str) else method
    return Job(federation, found, seed, settings, private, tiny_proxy)


def weights_of(engine, one):
    """By client and role, the weights after all rounds."""
    for _ in range(one.training.rounds):
        engine.round()
    return [{role: client.weights(role) for role in client.models} for client in engine.clients_of(0)]


def serially(one):
    return weights_of(Serial(one), one)


def agree(one, atol=2e-4):
    """Both engines give the same weights, which are returned."""
    ours, theirs = weights_of(Stacked([one]), one), serially(one)
    for a, b in zip(ours, theirs, strict=True):
        for role, tree in b.items():
            for n, w in tree.items():
                assert torch.allclose(a[role][n], w, atol=atol, rtol=0), (role, n)
    return theirs


def differ(ours, theirs):
    return any(
        not torch.equal(a[role][n], b[role][n])
        for a, b in zip(ours, theirs, strict=True)
        for role in a
        for n in a[role]
    )


# --- decay of the weights ------------------------------------------------------------------------------------


def stepped(optimizer, decay, steps=3):
    """A weight of two entries after steps along a gradient of (1, -2)."""
    weight = nn.Parameter(torch.tensor([2.0, -3.0]))
    made = make_optimizer(replace(TRAINING, lr=0.1, optimizer=optimizer, weight_decay=decay), [weight])
    for _ in range(steps):
        weight.grad = torch.tensor([1.0, -2.0])
        made.step()
    return weight.detach()


def test_adam_decays_apart_from_the_gradient():
    """The gradient is constant, so that each of Adam's steps is 0.1 along its sign."""
    by_hand = torch.tensor([2.0, -3.0])
    for _ in range(3):
        by_hand = by_hand * (1 - 0.1 * 0.5) - 0.1 * torch.tensor([1.0, -1.0])
    assert torch.allclose(stepped("adam", 0.5), by_hand, atol=1e-6)


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("momentum", 0.9)])
def test_gradient_descent_decays_with_the_gradient(optimizer, momentum):
    by_hand, moment = torch.tensor([2.0, -3.0]), torch.zeros(2)
    for _ in range(3):
        moment = momentum * moment + torch.tensor([1.0, -2.0]) + 0.5 * by_hand
        by_hand = by_hand - 0.1 * moment
    assert torch.allclose(stepped(optimizer, 0.5), by_hand, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_both_engines_decay_alike(images, optimizer):
    given = {"optimizer": optimizer, "lr": 3e-3 if optimizer == "adam" else 0.05}
    decayed = agree(job(images, "fedekd", weight_decay=0.1, **given))
    assert differ(decayed, serially(job(images, "fedekd", **given)))


def test_no_decay_is_training_as_it_was(images):
    plain, zero = serially(job(images)), serially(job(images, weight_decay=0))
    assert not differ(plain, zero)


def test_weights_that_a_step_does_not_train_do_not_decay(images):
    """FedRep trains the head first and the body afterwards."""
    agree(job(images, "fedrep", weight_decay=0.1))
    engine = Serial(job(images, "fedrep", weight_decay=0.1))
    before = engine.clients[0].weights("private")
    step = engine.method.steps(0)[0]
    engine.clients[0].perform(step, 0)
    after = engine.clients[0].weights("private")
    assert {n for n in before if not torch.equal(before[n], after[n])} == set(engine.clients[0]._part("private", step))
