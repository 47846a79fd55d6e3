"""Twins: alone is a federation of one, an uninformed teacher knows nothing of the sample, and nothing is sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedekd import methods
from fedekd.engines.job import Job, Training
from fedekd.engines.rehearsal import rehearse, traffic
from fedekd.engines.serial import Serial
from fedekd.engines.stackable import NotStackable
from fedekd.engines.stacked import Stacked
from fedekd.errors import FedekdError
from fedekd.methods.twins import Teaching, check_taught
from fedekd.runs.plan import choose_methods
from fedekd.runs.run_key import run_key
from fedekd.settings import make_settings
from fedekd.tasks import Classification, Regression
from hand_batch import hand_batch
from tiny import quick, tiny_private, tiny_proxy

TRAINING = Training(rounds=3, epochs=1, batch_size=16, lr=3e-3)
METHODS = sorted(n for n, m in methods.known().items() if m.roles and n == m.name)


def job(federation, method, **training):
    public = federation.clients[0].val  # rows that are there; nobody trains on its validation rows
    return Job(replace(federation, public=public), method, 0, replace(TRAINING, **training), tiny_private, tiny_proxy)


def trained(one):
    engine = Serial(one)
    for _ in range(one.training.rounds):
        engine.round()
    return engine


def weights(client):
    return {f"{role}/{n}": t for role, module in client.models.items() for n, t in module.state_dict().items()}


def same(a, b):
    return all(torch.equal(t, weights(b)[n]) for n, t in weights(a).items())


@pytest.mark.parametrize("name", METHODS)
def test_alone_is_a_federation_of_one(name, images, tables):
    """With its own server, memory and all: bit for bit what the method does where there is one client."""
    method = quick(name)
    federation = images if "classification" in method.tasks else tables
    only = replace(federation, clients=federation.clients[:1], names=federation.names[:1])
    alone, plain = trained(job(federation, quick(f"{name}@alone"))), trained(job(only, method))
    assert same(alone.clients[0], plain.clients[0])
    assert alone.door.bytes_up == alone.door.bytes_down == 0


@pytest.mark.parametrize("task", ["images", "tables"])
@pytest.mark.parametrize(
    ("name", "given"), [("fedavg", {}), ("fedprox", {"mu": 0.0}), ("fedper", {}), ("fedbn", {}), ("moon", {"mu": 0.0})]
)
def test_what_adds_nothing_of_its_own_is_local(request, task, name, given):
    federation = request.getfixturevalue(task)
    local = trained(job(federation, methods.get("local")))
    alone = trained(job(federation, methods.get(f"{name}@alone", **given)))
    assert all(same(a, b) for a, b in zip(local.clients, alone.clients, strict=True))


@pytest.mark.parametrize("name", ["local", "local-smooth", "fedavg@alone", "scaffold@alone", "second-opinion@alone"])
def test_who_trains_alone_does_not_wait_to_be_drawn(images, name):
    """Else a federation of which a third takes part in a round is compared with a third of the training alone."""
    one, seldom = job(images, methods.get(name)), job(images, methods.get(name), participation=0.34)
    assert all(same(a, b) for a, b in zip(trained(one).clients, trained(seldom).clients, strict=True))
    if name != "second-opinion@alone":
        stacked, other = Stacked([one]), Stacked([seldom])
        for _ in range(2):
            stacked.round()
            other.round()
        assert all(same(a, b) for a, b in zip(stacked.clients_of(0), other.clients_of(0), strict=True))
    assert run_key(one, "") != run_key(seldom, "")
    drawn = trained(job(images, methods.get("fedavg"), participation=0.34))
    assert not same(drawn.clients[0], trained(job(images, methods.get("fedavg"))).clients[0])


def test_of_very_many_those_alone_are_drawn_too(images, monkeypatch):
    one, other = (job(images, methods.get(name), participation=0.34) for name in ("local", "fedavg"))
    every, key, of_other = trained(one), run_key(one, ""), run_key(other, "")
    monkeypatch.setattr("fedekd.engines.job.TOO_MANY_ALONE", len(images.clients))
    few = job(images, methods.get("local"), participation=0.34)
    assert not all(same(a, b) for a, b in zip(every.clients, trained(few).clients, strict=True))
    assert run_key(few, "") != key
    assert run_key(other, "") != of_other, "its record holds Δ against Local"


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("control", methods.CONTROLS)
@pytest.mark.parametrize("name", METHODS)
def test_twins_are_stacked_as_they_run_serially(name, control, participation, images, tables):
    method = quick(f"{name}@{control}")
    federation = images if "classification" in method.tasks else tables
    one = job(federation, method, participation=participation, rounds=2, optimizer="sgd", lr=0.05)
    if method.teaching is not None:
        rehearse(one)  # finds out whether it teaches
        if not method.teaching.taught:
            pytest.skip("no teacher")
    try:
        stacked = Stacked([one])
    except NotStackable:
        pytest.skip("cannot be stacked")
    serial = trained(one)
    for _ in range(2):
        stacked.round()
    near = 3e-3 if name == "fccl" else 2e-5  # its correlations of few rows magnify the last bit
    for a, b in zip(serial.clients, stacked.clients_of(0), strict=True):
        for n, t in weights(a).items():
            assert float((weights(b)[n] - t).abs().mean()) < near, n  # weights move by 0.01 and more
    assert stacked.doors[0].bytes_up == serial.door.bytes_up
    assert (serial.door.bytes_up == 0) == (control == "alone" or name in ("local", "local-smooth"))


def test_an_interrupted_twin_goes_on_to_the_bit(images):
    one = job(images, methods.get("fedadam@alone"))
    whole, first, second = trained(one), Serial(one), Serial(one)
    first.round()
    second.restore(first.state())
    second.round()
    second.round()
    assert all(same(a, b) for a, b in zip(whole.clients, second.clients, strict=True))


def lesson(control, task, outputs, mask=None, student="private"):
    teaching = Teaching(control, ("private",))
    n = len(outputs)
    uniform = torch.from_numpy(np.random.default_rng(0).random((n, 1))).float()
    batch = hand_batch(task, torch.zeros(n), {}, uniform=uniform, mask=mask, teaching=teaching)
    return batch.lesson(student, outputs)


def test_shuffled_outputs_are_all_there_and_none_is_at_home():
    outputs = torch.arange(20.0).reshape(10, 2)
    given = lesson("shuffled", Classification(), outputs)
    assert sorted(given.tolist()) == outputs.tolist()
    assert not (given == outputs).any()


def test_padding_is_never_dealt_out():
    outputs, mask = torch.arange(10.0), torch.tensor([1, 1, 1, 1, 1, 1, 0, 0, 0, 0], dtype=torch.bool)
    given = lesson("shuffled", Regression(), outputs, mask)
    assert sorted(given[:6].tolist()) == outputs[:6].tolist()
    assert not (given[:6] == outputs[:6]).any()


def test_a_uniform_teacher_knows_nothing():
    assert lesson("uniform", Classification(), torch.randn(4, 3)).tolist() == torch.zeros(4, 3).tolist()
    assert lesson("uniform", Regression(), torch.tensor([1.0, 2.0, 6.0])).tolist() == [3, 3, 3]


def test_a_proxy_learns_as_ever():
    outputs = torch.randn(5, 3)
    assert torch.equal(lesson("shuffled", Classification(), outputs, student="proxy"), outputs)


def test_an_uninformed_teacher_is_another_one(images):
    plain, shuffled, uniform = (
        trained(job(images, methods.get(name))).clients[0] for name in ("fml", "fml@shuffled", "fml@uniform")
    )
    assert not same(plain, shuffled)
    assert not same(plain, uniform)
    assert not same(shuffled, uniform)


@pytest.mark.parametrize(("name", "given"), [("fedtype", {}), ("fccl", {"lam": 0.0}), ("fedmd", {"pretrain": 0})])
def test_who_teaches_by_sets_or_correlations_is_a_teacher_too(images, name, given):
    """One that knows nothing has no sets and no correlations; FedMD's draws all logits to zero."""
    plain, shuffled, uniform, local = (
        trained(job(images, methods.get(one, **more))).clients[0]
        for one, more in ((name, given), (f"{name}@shuffled", given), (f"{name}@uniform", given), ("local", {}))
    )
    private = [{n: w for n, w in weights(c).items() if n.startswith("private/")} for c in (uniform, local)]
    assert all(torch.equal(private[0][n], w) for n, w in private[1].items()) == (name != "fedmd")
    assert not same(plain, shuffled)
    assert not same(plain, uniform)


def test_where_nothing_is_distilled_it_is_said(images):
    one = job(images, methods.get("fedavg@shuffled"))
    rehearse(one)
    with pytest.raises(FedekdError, match="fedavg has no teacher, so fedavg@shuffled shows nothing"):
        check_taught(one.method, 2)


def test_parameters_names_and_errors():
    twin = methods.get("fedekd@alone", beta=2.0)
    assert (twin.name, twin.beta, twin.twin) == ("fedekd@alone", 2.0, "alone")
    assert replace(twin, beta=3.0).twin == "alone"
    assert type(methods.get("fedekd@alone")) is type(twin)
    with pytest.raises(FedekdError, match="lonely"):
        methods.get("fedekd@lonely")
    with pytest.raises(FedekdError, match="is a twin already"):
        methods.get("fedekd@alone@shuffled")


def test_a_twin_without_its_method_takes_the_methods_parameters():
    settings = make_settings({"methods": ["fedprox@alone"], "parameters": {"fedprox": {"mu": 0.0}}})
    _, twin = choose_methods(settings, "classification")
    assert (twin.label, twin.method.mu) == ("fedprox@alone (mu=0.0)", 0.0)


def test_with_one_round_it_is_said_that_a_teacher_may_come_later(images):
    one = job(images, methods.get("fedavg@shuffled"))
    rehearse(one)
    with pytest.raises(FedekdError, match="no teacher in the first round; with more rounds it may have, so"):
        check_taught(one.method, 1)


def test_who_trains_alone_sends_nothing_in_a_dry_run_either(images):
    assert traffic(job(images, methods.get("fedekd"))) > 0
    assert traffic(job(images, methods.get("fedekd@alone"))) == 0
    assert traffic(job(images, methods.get("fedekd@shuffled"))) == traffic(job(images, methods.get("fedekd")))
