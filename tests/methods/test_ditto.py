"""Ditto: FedAvg in one role, Local in the other, and lam pulls the second to what the first has received."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

from fedekd import methods
from fedekd.engines.batch import make_batch
from fedekd.tasks import Regression
from serially import answers, engine_of, go_on, number, one_step, same, states, traffic, trained

FEDAVG, LOCAL = methods.get("fedavg"), methods.get("local")


@pytest.mark.parametrize("rows", ["images", "tables"])
@pytest.mark.parametrize("lam", [0.0, 1.0, 30.0])
def test_the_global_model_is_fedavgs_to_the_bit_for_any_lam(rows, lam, request):
    federation = request.getfixturevalue(rows)
    fedavg, ditto = trained(federation, FEDAVG), trained(federation, methods.get("ditto", lam=lam))
    assert same(states(fedavg), states(ditto, "global"))
    assert traffic(fedavg) == traffic(ditto)


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_without_its_term_the_personal_model_is_local_to_the_bit(rows, request):
    federation = request.getfixturevalue(rows)
    local, ditto = trained(federation, LOCAL), trained(federation, methods.get("ditto", lam=0.0))
    assert same(states(local), states(ditto))
    assert local.evaluate() == ditto.evaluate()
    assert not same(states(local), states(trained(federation, methods.get("ditto"))))


@pytest.mark.parametrize("lam", [None, 0.1, 2.0])
def test_one_step_from_v_1_and_w_3(lam):
    """f = v^2 / 2, so that v' = 1 - lr (1 - 2 lam), and y' = 3 - 3 lr; lam is 1 by default."""
    engine = one_step(
        methods.get("ditto") if lam is None else methods.get("ditto", lam=lam), private=1.0, **{"global": 3.0}
    )
    assert number(engine, "private") == pytest.approx(1 - 0.1 * (1 - 2 * (1.0 if lam is None else lam)), abs=1e-6)
    assert number(engine, "global") == pytest.approx(2.7, abs=1e-6)


def test_it_is_pulled_to_what_was_received_not_to_what_came_of_it(images):
    """After one round from one start, FedProx' local model: the same term, the same received model."""
    ditto, fedprox = methods.get("ditto", lam=0.7), methods.get("fedprox", mu=0.7)
    ours, theirs = trained(images, ditto, rounds=1), engine_of(images, fedprox)
    for client in theirs.clients:
        client.perform(fedprox.steps(0)[0], 0)
    assert same(states(ours), states(theirs))


def test_a_strong_pull_keeps_it_near_the_received_model(images):
    def distance(lam):
        engine = trained(images, methods.get("ditto", lam=lam))
        pairs = zip(states(engine), states(engine, "global"), strict=True)
        return sum(float((a[n] - b[n]).square().sum()) for a, b in pairs for n in a)

    assert distance(100.0) < 0.5 * distance(0.0)


def test_the_personal_model_answers_and_never_leaves(images):
    engine = trained(images, methods.get("ditto"))
    assert {name for _, name in engine.door.log} == {"global"}
    for client, found in zip(engine.clients, answers(engine), strict=True):
        assert torch.equal(found, client.outputs("private", client.rows["test"])[0])


def test_the_loss_can_be_mapped_over_clients():
    method = methods.get("ditto", lam=3.0)
    x, y = torch.tensor([[1.0, 2.0], [3.0, 50.0]]), torch.zeros(2, 2)
    mask = torch.tensor([[True, True], [True, False]])
    v, w = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])

    def one(v, w, x, y, mask):
        def loss(v):
            seen = {"y": y, "outputs": {"private": v * x}, "weights": {"private": {"w": v}}, "mask": mask}
            seen |= {"received": {"global": {"w": w}}, "uniform": x, "rows": x, "counts": x, "steps": x}
            return method.loss(make_batch(method, Regression(), 0.1, seen))

        return grad(loss)(v)

    expected = [2 * 1 * (1 + 4) / 2 + 3 * (1 - 3), 2 * 2 * 9 + 3 * (2 + 1)]
    torch.testing.assert_close(vmap(one)(v, w, x, y, mask), torch.tensor(expected))


def test_it_goes_on_to_the_same_bits_after_an_interruption(images):
    assert go_on(images, methods.get("ditto"))
