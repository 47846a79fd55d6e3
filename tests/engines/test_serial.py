"""The serial engine: who takes part in a round and what that changes, and what each setting of a training does."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from byhand import around, interrupted, lines, same, started, tree, uninterrupted, weight
from fedekd import methods
from fedekd.data import Split
from fedekd.engines.job import Job, Training
from fedekd.engines.schedule import participants
from fedekd.engines.serial import Serial
from fedekd.exchange import size
from fedekd.methods.base import Exchange, Method, Train
from fedekd.models import trainable
from fedekd.parts import Head
from tiny import tiny_private

CLIENTS = 6
OPTIMA = [(float(k), -0.5 * k) for k in range(CLIENTS)]


def some(method="fedavg", **settings):
    """Half of six clients each round."""
    known = methods.get(method) if isinstance(method, str) else method
    return started(around(*OPTIMA), known, lines(1.0, 2.0), **{"participation": 0.5, "rounds": 6, **settings})


def supervised(batch):
    return batch.supervised("private")


@dataclass(frozen=True)
class Doing(Method):
    """Whatever steps it is given"""

    plan: tuple = ()
    name = "doing"
    roles = ("private", "proxy")
    reads_weights = ("private",)

    def steps(self, round):
        return self.plan


# Who takes part


@pytest.mark.parametrize("name", ["fedavg", "fedekd", "fml", "scaffold", "pfedme"])
def test_who_takes_part_depends_on_seed_and_round_alone(name):
    for seed in (0, 5):
        engine = some(name, seed=seed)
        for round in range(4):
            engine.round()
            here = participants(seed, round, CLIENTS, 0.5)
            assert {client for client, _ in engine.door.log} == {str(k) for k in here}


def test_those_who_take_part_change_from_round_to_round_and_seed_to_seed():
    drawn = {(seed, round): tuple(participants(seed, round, CLIENTS, 0.5)) for seed in range(4) for round in range(8)}
    assert all(len(set(here)) == 3 and set(here) <= set(range(CLIENTS)) for here in drawn.values())
    assert len({drawn[0, round] for round in range(8)}) > 4
    assert len({tuple(drawn[seed, round] for round in range(8)) for seed in range(4)}) == 4
    counts = Counter(k for here in drawn.values() for k in here)
    assert min(counts.values()) > 6


@pytest.mark.parametrize(("share", "count"), [(1.0, 6), (0.5, 3), (0.25, 2), (0.4, 2), (0.01, 1), (0.99, 6)])
def test_how_many_take_part(share, count):
    assert len(participants(3, 1, CLIENTS, share)) == count


def test_an_absent_client_does_nothing():
    """Its models, its memory and what it has received stay to the bit; the others' change."""
    engine = some("scaffold")
    absent = 0
    for round in range(6):
        before = [copy.deepcopy(client.state()) for client in engine.clients]
        engine.round()
        here = participants(0, round, CLIENTS, 0.5)
        for k, old in enumerate(before):
            now = {**engine.clients[k].state(), "round": round}
            assert same(old, now) == (k not in here)
            absent += k not in here
    assert absent == 18


def test_a_client_that_comes_back_begins_with_the_newest_answer():
    begun = {}

    def noted(batch):
        begun[current].append(batch.weights["private"]["w.weight"].detach()[0].clone())
        return batch.supervised("private")

    method = Doing((Train(("private",), noted), Exchange("private")))
    engine = some(method)
    newest, back = torch.tensor([1.0, 2.0]), 0
    for current in range(6):
        begun[current] = []
        here = participants(0, current, CLIENTS, 0.5)
        back += sum(not torch.equal(weight(engine, k), newest) for k in here)
        engine.round()
        assert len(begun[current]) == 3
        assert all(torch.equal(w, newest) for w in begun[current])
        newest = weight(engine, here[0])
        assert all(torch.equal(weight(engine, k), newest) for k in here)
    assert back > 3


@dataclass(frozen=True)
class OnceSent(Doing):
    """Models travel in the first round only"""

    def steps(self, round):
        train = Train(("private",), supervised)
        return (train, Exchange("private")) if round == 0 else (train,)


def test_a_client_catches_up_once():
    """What it has trained since then is not overwritten by an answer that it has."""
    engine = some(OnceSent(), rounds=6)
    engine.round()
    first = participants(0, 0, CLIENTS, 0.5)
    newest, trainings = weight(engine, first[0]), Counter(dict.fromkeys(first, 0))
    for round in range(1, 6):
        engine.round()
        trainings.update(participants(0, round, CLIENTS, 0.5))
    for k, count in trainings.items():
        torch.testing.assert_close(weight(engine, k), descended(count, w=newest.tolist(), a=OPTIMA[k]))
    late = trainings.keys() - set(first)
    assert any(trainings[k] > 1 for k in late)
    assert engine.door.bytes_down == (3 + len(late)) * 2 * 4


def test_the_mean_is_over_those_who_take_part():
    """One step of rate .1 on ||w - a||^2 / 2 moves each of them .1 of its way."""
    engine, w = some(), torch.tensor([1.0, 2.0])
    for round in range(5):
        engine.round()
        here = participants(0, round, CLIENTS, 0.5)
        w = w + 0.1 * (torch.tensor([OPTIMA[k] for k in here]).mean(0) - w)
        torch.testing.assert_close(weight(engine, here[0]), w)


def test_bytes_are_counted_for_those_who_take_part_and_once_for_each_who_comes_back():
    engine, model, up, down, before = some(), 2 * 4, 0, 0, set(range(CLIENTS))
    assert model == size(tree(engine))
    for round in range(6):
        engine.round()
        here = set(participants(0, round, CLIENTS, 0.5))
        up += 3 * model
        down += (3 + len(here - before)) * model
        assert (engine.door.bytes_up, engine.door.bytes_down) == (up, down)
        assert len(engine.door.log) == 3
        before = here
    assert down > up


def test_samples_are_reported_for_those_who_take_part():
    engine, seen = some(epochs=2), []
    engine.advance = lambda round, client, samples: seen.append((round, client, samples))
    for _ in range(2):
        engine.round()
    assert seen == [(r, str(k), 4) for r in range(2) for k in participants(0, r, CLIENTS, 0.5)]


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("name", ["fedavg", "fedekd", "feddyn"])
def test_a_run_taken_up_again_goes_on_to_the_same_bits(name, after):
    """Also for clients that were absent when it was interrupted."""
    job = some(name, optimizer="adam").job
    whole, again = uninterrupted(job), interrupted(job, after)
    assert same(whole.state(), again.state())
    assert whole.evaluate() == again.evaluate()


def test_all_clients_are_evaluated():
    engine = some()
    engine.round()
    (values,) = engine.evaluate()
    here = participants(0, 0, CLIENTS, 0.5)
    for k, value in enumerate(values):
        model = weight(engine, here[0]) if k in here else torch.tensor([1.0, 2.0])
        assert value == pytest.approx(float((model - torch.tensor(OPTIMA[k])).square().mean().sqrt()), rel=1e-5)


# What a training is told


def descended(steps, lr=0.1, momentum=0.0, w=(1.0, 2.0), a=(3.0, -1.0)):
    """So many steps on ||w - a||^2 / 2."""
    w, a, velocity = torch.tensor(w), torch.tensor(a), 0
    for _ in range(steps):
        velocity = momentum * velocity + (w - a)
        w = w - lr * velocity
    return w


def alone(*plan, rounds=1, **settings):
    """One client that does these steps."""
    engine = started(around((3.0, -1.0)), Doing(plan), lines(1.0, 2.0), **settings)
    for _ in range(rounds):
        engine.round()
    return engine


def test_momentum_is_the_users_or_the_steps_and_fresh_each_time():
    train, own = Train(("private",), supervised), Train(("private",), supervised, optimizer="momentum")
    expected = descended(3, momentum=0.9)
    torch.testing.assert_close(weight(alone(train, optimizer="momentum", epochs=3)), expected)
    torch.testing.assert_close(weight(alone(own, optimizer="adam", epochs=3)), expected)
    again = descended(3, momentum=0.9, w=expected.tolist())
    torch.testing.assert_close(weight(alone(own, rounds=2, epochs=3)), again)
    torch.testing.assert_close(weight(alone(own, own, epochs=3)), again)
    assert not torch.allclose(again, descended(6, momentum=0.9))
    assert not torch.allclose(expected, descended(3))


def test_a_step_may_have_its_own_epochs_rate_and_optimiser():
    own = {"epochs": 4, "lr": 0.05, "optimizer": "sgd"}
    for given in ({"epochs": 4}, {"lr": 0.05}, {"optimizer": "sgd"}, own):
        settings = (
            {"epochs": 2, "lr": 0.2, "optimizer": "sgd"} if len(given) < 3 else {"epochs": 2, "optimizer": "adam"}
        )
        seen = {**settings, **given}
        engine = alone(Train(("private",), supervised, **given), **settings)
        torch.testing.assert_close(weight(engine), descended(seen["epochs"], seen.get("lr", 0.1)))
    adam = weight(alone(Train(("private",), supervised, optimizer="adam"), lr=0.01))
    torch.testing.assert_close(adam, torch.tensor([1.01, 1.99]))


def test_a_rate_of_0_and_no_epochs_leave_the_model_alone():
    for given in ({"lr": 0.0}, {"epochs": 0}):
        engine = alone(Train(("private",), supervised, **given))
        assert torch.equal(weight(engine), torch.tensor([1.0, 2.0]))
        assert engine.clients[0].steps == (0 if "epochs" in given else 1)


def test_the_loss_is_told_the_steps_own_rate_and_count():
    seen = []

    def noted(batch):
        seen.append((batch.lr, int(batch.steps)))
        return batch.supervised("private")

    alone(Train(("private",), noted, lr=0.03, epochs=3), batch_size=1)
    assert seen == [(0.03, 6)] * 6


def test_a_part_is_trained_and_the_rest_stays_to_the_bit(images):
    train = Train(("private",), supervised, part=Head())
    engine = started(images, Doing((train,)), tiny_private, optimizer="adam")
    before = tree(engine)
    engine.round()
    changed = {name for name, w in tree(engine).items() if not torch.equal(w, before[name])}
    assert changed == {"head.weight", "head.bias"}
    client = engine.clients[0]
    assert trainable(client.models["private"]).keys() == before.keys()
    client.perform(replace(train, part=None), 1)
    assert {name for name, w in tree(engine).items() if not torch.equal(w, before[name])} == set(before)


def test_the_mean_gradient_is_of_the_part_and_over_all_steps():
    engine = alone(Train(("private",), supervised, gradients=True, epochs=3))
    path = torch.stack([descended(steps) for steps in range(3)])
    expected = (path - torch.tensor([3.0, -1.0])).mean(0)
    torch.testing.assert_close(engine.clients[0].gradients["private"]["w.weight"][0], expected)


def test_what_was_sent_stays_what_it_was():
    """The server may keep an upload, and the client goes on training."""

    def kept(uploads):
        return {}, {"first": uploads.memory.get("first", uploads.each[0]["w.weight"])}

    send = Exchange("sent", kept, send=lambda batch: batch.weights["private"])
    engine = alone(send, Train(("private",), supervised), rounds=2)
    assert engine.server.memory["sent"]["first"].tolist() == [[1.0, 2.0]]


def test_training_on_the_validation_rows_takes_only_those():
    federation = around((3.0, -1.0), (-5.0, 7.0))
    rows = federation.clients
    crossed = replace(federation, clients=(Split(rows[0].train, rows[1].train, rows[0].test),), names=("0",))
    for split, optimum in (("train", (3.0, -1.0)), ("val", (-5.0, 7.0))):
        engine = started(crossed, Doing((Train(("private",), supervised, split=split),)), lines(1.0, 2.0))
        engine.round()
        torch.testing.assert_close(weight(engine), descended(1, a=optimum))


def test_training_on_public_rows_takes_the_same_rows_at_every_client():
    federation = around((3.0, -1.0), (-5.0, 7.0), (2.0, 2.0))
    public = replace(federation, clients=federation.clients[:2], names=("0", "1"), public=np.array([4, 5]))
    engine = started(public, Doing((Train(("private",), supervised, split="public"),)), lines(1.0, 2.0))
    engine.round()
    for k in range(2):
        torch.testing.assert_close(weight(engine, k), descended(1, a=(2.0, 2.0)))


def test_a_role_trained_twice_in_a_round_sees_other_batches_the_second_time(images):
    seen: dict[str, list[list[int]]] = {}

    def noting(name):
        def loss(batch):
            seen.setdefault(name, []).extend(batch.rows.tolist())
            return batch.supervised("private")

        return loss

    plans = {"once": ("first",), "twice": ("a", "b", "c")}
    for names in plans.values():
        one = replace(images, clients=images.clients[:1], names=images.names[:1])
        method = Doing(tuple(Train(("private",), noting(name)) for name in names))
        started(one, method, tiny_private, batch_size=8).round()
    count = len(images.clients[0].train)
    assert all(sorted(rows) == list(range(count)) for rows in seen.values())
    assert seen["first"] == seen["a"]
    assert len({tuple(seen[name]) for name in "abc"}) == 3


def test_another_role_or_split_in_between_does_not_count_as_a_second_time(images):
    seen: dict[str, list[int]] = {}

    def train(name, role="private", split="train"):
        def loss(batch):
            seen.setdefault(name, []).extend(batch.rows.tolist())
            return batch.supervised(role)

        return Train((role,), loss, split=split)

    one = replace(images, clients=images.clients[:1], names=images.names[:1])
    for steps in (
        (train("alone"),),
        (train("proxy", "proxy"), train("val", split="val"), train("after")),
    ):
        method = Doing(steps)
        started(one, method, tiny_private, batch_size=8).round()
    assert seen["alone"] == seen["after"]
    assert seen["alone"] != seen["proxy"]
    assert sorted(seen["val"]) == list(range(len(one.clients[0].val)))


def test_weights_outside_of_a_part_are_left_alone_by_momentum_too(images):
    """A gradient of zero would not do: what a first training has stirred up would go on moving them."""
    method = Doing((Train(("private",), supervised), Train(("private",), supervised, part=Head())))
    engine = started(images, method, tiny_private, optimizer="momentum")
    client = engine.clients[0]
    client.perform(method.plan[0], 0)
    before = tree(engine)
    client.perform(method.plan[1], 0, 1)
    assert {name for name, w in tree(engine).items() if not torch.equal(w, before[name])} == {
        "head.weight",
        "head.bias",
    }


def test_batch_norm_statistics_of_applied_weights_are_not_kept(images):
    """A loss may apply a model as often as it likes; its running statistics have seen each batch once."""

    def private(shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, outputs))

    def loss(batch):
        again = batch.apply("private", batch.weights["private"])
        batch.gradient("private", batch.weights["private"], lambda out: out.square().mean())
        return batch.supervised("private") + 0 * again.sum()

    trees = []
    for used in (supervised, loss):
        method = Doing((Train(("private",), used),))
        engine = started(images, method, private, batch_size=16)
        engine.round()
        trees.append(tree(engine))
    assert trees[0]["2.num_batches_tracked"] > 1
    assert same(*trees)


def test_a_strided_convolution_of_one_pixel_trains_on_several_threads(images):
    """torch's kernel for it crashes on odd batches where the channels come last."""

    def private(shape, outputs):
        layers = [nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 1, stride=2), nn.Flatten(), nn.Linear(256, outputs)]
        return nn.Sequential(*layers)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        training = Training(rounds=1, epochs=2, batch_size=9, lr=1e-3)
        Serial(Job(images, methods.get("local"), 0, training, private)).round()
    finally:
        torch.set_num_threads(before)
