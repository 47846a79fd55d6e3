"""SCAFFOLD: its controls are mean gradients, their mean is the server's, and drift is gone under SGD and Adam."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import byhand
from byhand import drifting, lines, same, slope, started, trained, training_loss, tree, weight
from fedekd import methods
from fedekd.engines.schedule import participants
from fedekd.exchange import size
from tiny import tiny_private

SCAFFOLD = methods.get("scaffold")


def distance(method, rounds, **training) -> float:
    federation = drifting()
    engine = trained(federation, method, lines(0.5, -0.5), rounds, epochs=10, **training)
    return float((weight(engine) - byhand.optimum(federation)).norm())


def mean_control(engine):
    own = [client.memory["control"] for client in engine.clients]
    return {name: torch.stack([one[name] for one in own]).mean(0) for name in own[0]}


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_servers_control_is_the_mean_of_all_clients_controls(images, participation, optimizer):
    training = {"participation": participation, "optimizer": optimizer, "lr": 0.01, "batch_size": 16}
    engine = started(images, SCAFFOLD, tiny_private, weighting="samples", **training)
    absent = set()
    for round in range(4):
        before = [dict(client.memory["control"]) for client in engine.clients]
        engine.round()
        here = participants(0, round, 3, participation)
        absent |= set(range(3)) - set(here)
        changed = [not same(old, client.memory["control"]) for old, client in zip(before, engine.clients, strict=True)]
        assert changed == [k in here for k in range(3)]
        common = engine.server.sent["control"]
        assert max(float(c.abs().max()) for c in common.values()) > 1e-3
        for name, mean in mean_control(engine).items():
            torch.testing.assert_close(common[name], mean, rtol=1e-4, atol=1e-6)
    assert bool(absent) == (participation < 1)


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_one_full_batch_step_is_gradient_descent_on_the_mean_loss(server_lr):
    """The controls cancel, and every client counts alike though they have unequal rows."""
    federation = drifting()
    engine = started(federation, methods.get("scaffold", server_lr=server_lr), lines(1.0, 2.0), weighting="samples")
    w = torch.tensor([1.0, 2.0])
    for _ in range(3):
        engine.round()
        w = w - server_lr * 0.1 * sum(slope(federation, k, w) for k in range(3)) / 3
        for k in range(3):
            torch.testing.assert_close(weight(engine, k), w, rtol=1e-5, atol=1e-6)


def test_under_sgd_the_control_is_option_ii_and_under_adam_the_mean_gradient():
    federation = drifting()
    for optimizer in ("sgd", "adam"):
        engine = trained(federation, SCAFFOLD, lines(1.0, 2.0), 2, epochs=3, optimizer=optimizer)
        client = engine.clients[1]
        w, old, common = weight(engine, 1), client.memory["control"]["w.weight"], engine.server.sent["control"]
        train, remember, *_ = SCAFFOLD.steps(2)
        path = []

        def noted(batch, loss=train.loss, path=path):
            path.append(batch.weights["private"]["w.weight"].detach()[0].clone())
            return loss(batch)

        client.perform(replace(train, loss=noted), 2)
        client.perform(remember, 2)
        new = client.memory["control"]["w.weight"][0]
        local = torch.stack([slope(federation, 1, y) for y in path]).mean(0)
        assert len(path) == 3
        torch.testing.assert_close(new, local, rtol=1e-5, atol=1e-5)
        second = (old - common["w.weight"])[0] + (w - weight(engine, 1)) / (3 * 0.1)
        assert torch.allclose(new, second, rtol=1e-4, atol=1e-4) == (optimizer == "sgd")
        assert not torch.allclose(old[0], new, rtol=1e-2)


def test_several_local_steps_reach_the_optimum_where_fedavg_does_not():
    assert distance(SCAFFOLD, 40, lr=0.05) < 2e-6
    assert distance(methods.get("fedavg"), 40, lr=0.05) > 0.1


def test_under_adam_it_comes_much_nearer_than_fedavg():
    ours = distance(SCAFFOLD, 25, lr=0.01, optimizer="adam")
    assert ours < distance(methods.get("fedavg"), 25, lr=0.01, optimizer="adam") / 20


def test_the_first_round_is_fedavgs(images):
    """All controls are still zero. The server adds a mean change where FedAvg takes a mean."""
    ours, theirs = (tree(trained(images, methods.get(name), tiny_private)) for name in ("scaffold", "fedavg"))
    for name, w in theirs.items():
        torch.testing.assert_close(ours[name], w, rtol=1e-5, atol=1e-6)


def test_a_model_and_a_control_of_its_size_travel_each_way(images):
    engine = trained(images, SCAFFOLD, tiny_private)
    assert engine.door.bytes_up == engine.door.bytes_down == 3 * 2 * size(tree(engine))
    assert engine.door.log == [(str(k), name) for name in ("private", "control") for k in range(3)]


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_run_taken_up_again_goes_on_to_the_same_bits(tables, participation):
    job = started(tables, SCAFFOLD, tiny_private, participation=participation, optimizer="adam", lr=0.003).job
    whole, again = byhand.uninterrupted(job), byhand.interrupted(job, after=2)
    assert same(whole.state(), again.state())
    assert whole.evaluate() == again.evaluate()


@pytest.mark.parametrize("problem", ["images", "tables"])
def test_both_tasks_are_learnt(request, problem):
    engine = started(request.getfixturevalue(problem), SCAFFOLD, tiny_private, batch_size=16, lr=0.02, optimizer="adam")
    before = training_loss(engine)
    for _ in range(3):
        engine.round()
    assert training_loss(engine) < 0.97 * before
