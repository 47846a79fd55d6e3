"""FedAdam and FedYogi: the first step in closed form, and how each moves its second moment."""

from __future__ import annotations

import pytest
import torch

from byhand import around, interrupted, lines, same, started, trained, training_loss, uninterrupted, weight
from fedekd import methods
from fedekd.errors import FedekdError
from fedekd.exchange import Aggregator
from fedekd.methods.base import Exchange
from tiny import tiny_private

RATES = {"server_lr": 0.3, "beta1": 0.8, "beta2": 0.95, "tau": 0.02}


def moments(method, changes):
    """The server's model and memory after each of these mean changes."""
    server, step, found = Aggregator({"private": {"w": torch.zeros(3)}}), Exchange("private", method.server), []
    for round, change in enumerate(changes):
        upload = {"w": server.sent["private"]["w"] + change}
        answer = server.combine(step, [upload, upload], [1.0, 1.0], [0, 1], round)
        found.append((answer["w"], server.memory["private"]["m"]["w"], server.memory["private"]["v"]["w"]))
    return found


@pytest.mark.parametrize("second", ["adam", "yogi"])
def test_the_first_step_in_closed_form(second):
    """Both are the same from zero: server_lr (1 - beta1) delta / (sqrt(1 - beta2) |delta| + tau)."""
    federation = around((1.0, -4.0), (3.0, 0.0))
    engine = trained(federation, methods.get("fedadam", second=second, **RATES), lines(0.0, 0.0))
    delta = 0.1 * torch.tensor([2.0, -2.0])
    step = 0.3 * (1 - 0.8) * delta / ((1 - 0.95) ** 0.5 * delta.abs() + 0.02)
    torch.testing.assert_close(weight(engine), step)


@pytest.mark.parametrize("name", ["fedadam", "fedadam-yogi"])
def test_the_moments_by_hand(name):
    changes = [torch.tensor(c) for c in ([1.0, 2.0, -3.0], [-1.0, 0.1, 0.0], [5.0, 0.1, -3.0])]
    w, m, v = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    for change, (now, first, second) in zip(changes, moments(methods.get(name, **RATES), changes), strict=True):
        m = 0.8 * m + 0.2 * change
        if name == "fedadam":
            v = 0.95 * v + 0.05 * change**2
        else:
            torch.testing.assert_close((second - v).abs(), 0.05 * change**2)
            v = v - 0.05 * change**2 * torch.sign(v - change**2)
        w = w + 0.3 * m / (v.sqrt() + 0.02)
        for ours, theirs in ((now, w), (first, m), (second, v)):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_yogi_forgets_by_the_change_and_adam_by_itself():
    changes = [torch.full((3,), 10.0)] * 3 + [torch.full((3,), 1.0)]
    adam, yogi = (
        [float(v[0]) for _, _, v in moments(methods.get(n, **RATES), changes)] for n in ("fedadam", "fedadam-yogi")
    )
    assert adam[3] - adam[2] == pytest.approx(-0.05 * (adam[2] - 1), rel=1e-4)
    assert yogi[3] - yogi[2] == pytest.approx(-0.05, rel=1e-4)


def test_its_names_and_defaults():
    assert methods.get("fedadam-yogi") == methods.get("fedadam", second="yogi")
    method = methods.get("fedadam")
    assert (method.server_lr, method.beta1, method.beta2, method.tau) == (0.01, 0.9, 0.99, 1e-3)
    with pytest.raises(FedekdError, match="second moment of fedadam 'adem'; did you mean 'adam'"):
        methods.get("fedadam", second="adem").check("regression")


def test_a_run_taken_up_again_goes_on_to_the_same_bits(tables):
    job = started(tables, methods.get("fedadam"), tiny_private, participation=0.5).job
    assert same(uninterrupted(job).state(), interrupted(job, after=2).state())


@pytest.mark.parametrize("name", ["fedadam", "fedadam-yogi"])
@pytest.mark.parametrize("problem", ["images", "tables"])
def test_both_tasks_are_learnt(request, problem, name):
    federation, method = request.getfixturevalue(problem), methods.get(name, server_lr=0.02)
    engine = started(federation, method, tiny_private, batch_size=16, lr=0.02, optimizer="adam")
    before = training_loss(engine)
    for _ in range(3):
        engine.round()
    assert training_loss(engine) < 0.97 * before
