"""What every method and Local can be trained with alike: decay of the weights, and a learning rate that falls."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from fedekd import methods
from fedekd.engines.chunk import Chunk
from fedekd.engines.job import Job, Training, make_optimizer
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from fedekd.methods.base import Exchange, Remember, Train
from fedekd.methods.fedavg import FedAvg
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
    return found(engine)


def found(engine):
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


# --- the learning rate, round by round -----------------------------------------------------------------------


def test_the_cosine_falls_from_the_whole_rate_and_still_learns_in_the_last_round():
    falling = replace(TRAINING, rounds=4, lr=0.8, lr_schedule="cosine")
    assert [falling.at(round).lr for round in range(4)] == pytest.approx([0.8, 0.6828427, 0.4, 0.1171573])
    assert falling.at(None).lr == 0.8
    assert replace(falling, lr_schedule="constant").at(3).lr == 0.8
    assert falling.of(Train(("private",), lambda batch: batch, lr=0.1)).at(2).lr == pytest.approx(0.05)


@dataclass(frozen=True)
class Telling(FedAvg):
    """Remembers the rate that its functions see; the second training has a rate of its own."""

    reads_weights = ("private",)

    def steps(self, round):
        own = Train(("private",), self.loss, lr=0.5, optimizer="sgd", gradients=True)
        return Train(("private",), self.loss), Remember(self.told), Exchange("private"), own, Remember(self.own)

    def begin(self, client):
        return {"lr": torch.zeros(()), "own": torch.zeros(())}

    def loss(self, batch):
        return batch.supervised("private") * 0 + batch.lr * sum(w.sum() for w in batch.weights["private"].values())

    def told(self, batch):
        return {"lr": torch.as_tensor(batch.lr)}

    def own(self, batch):
        """The loss's slope is the rate."""
        return {"own": next(iter(batch.gradients["private"].values())).flatten()[0]}

    def personalise(self):
        return (Remember(self.told),)


@pytest.mark.parametrize("kind", [Serial, lambda one: Stacked([one])])
def test_the_rate_that_a_method_sees_is_the_one_in_force(images, kind):
    one = job(images, Telling(), lr_schedule="cosine", rounds=4, lr=0.8)
    engine, seen = kind(one), []
    for _ in range(4):
        engine.round()
        seen.append([(float(c.memory["lr"]), float(c.memory["own"])) for c in engine.clients_of(0)])
    rates = (1.0, 0.8535534, 0.5, 0.1464466)
    for found, rate in zip(seen, rates, strict=True):
        assert found == [pytest.approx((0.8 * rate, 0.5 * rate))] * 3
    with engine.personalised():
        assert [float(c.memory["lr"]) for c in engine.clients_of(0)] == pytest.approx([0.8] * 3)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
@pytest.mark.parametrize("name", ["fedekd", "pfedme", "apfl-adaptive"])
def test_the_rate_falls_alike_in_both_engines(images, name, optimizer):
    given = {"optimizer": optimizer, "lr": 3e-3 if optimizer == "adam" else 0.05}
    falling = agree(job(images, name, lr_schedule="cosine", **given))
    assert differ(falling, serially(job(images, name, **given)))


@pytest.mark.parametrize("kind", [Serial, lambda one: Stacked([one])])
def test_a_round_on_the_cosine_is_a_round_with_that_rate(images, kind):
    falling, constant = job(images, lr_schedule="cosine", rounds=2), job(images, rounds=2)
    engine, first, lower = kind(falling), kind(constant), kind(job(images, rounds=2, lr=TRAINING.lr / 2))
    engine.round()
    first.round()
    assert not differ(found(engine), found(first))
    lower.restore(copy.deepcopy(engine.state()))
    engine.round()
    lower.round()
    assert not differ(found(engine), found(lower))


def test_tuning_before_an_answer_has_the_whole_rate(images):
    """It belongs to no round; on the cosine it would end with nothing."""
    one = job(images, "fedavg-tuned", lr_schedule="cosine")
    for engine in (Serial(one), Stacked([one])):
        weights_of(engine, one)
        before = found(engine)
        with engine.personalised():
            moved = [max(float((a["private"][n] - b["private"][n]).abs().max()) for n in a["private"])
                     for a, b in zip(found(engine), before, strict=True)]  # fmt: skip
        assert min(moved) > TRAINING.lr / 2


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_a_rate_that_a_graph_would_read_falls_too(images, optimizer, monkeypatch):
    """On a GPU the rate is a tensor, which lies where the captured graphs look for it; here without graphs."""
    make, rates = Chunk.__init__, []

    def as_on_a_gpu(chunk, engine, *args):
        engine.graphs = True
        make(chunk, engine, *args)
        engine.graphs = False
        rates.append(chunk.lr)

    monkeypatch.setattr(Chunk, "__init__", as_on_a_gpu)
    given = {"optimizer": optimizer, "lr": 3e-3 if optimizer == "adam" else 0.05}
    agree(job(images, "fedekd", lr_schedule="cosine", weight_decay=0.01, **given))
    assert len(rates) == 2, "the chunks of the first round are those of all"
    assert [float(rate) for rate in rates] == pytest.approx([given["lr"] / 4] * 2)
    assert all(isinstance(rate, torch.Tensor) for rate in rates)
