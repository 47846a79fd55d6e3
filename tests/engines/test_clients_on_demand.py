"""The serial engine makes a client when its turn comes; that changes no number."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

from byhand import same
from fedekd import methods
from fedekd.data import federate
from fedekd.engines.client_models import ClientModels
from fedekd.engines.schedule import participants
from fedekd.engines.serial import Serial
from fedekd.models import Dealt
from tiny import job, tiny_private, tiny_proxy

CLIENTS, FEW = 8, 0.25
NAMES = ["fedavg", "ditto", "scaffold", "fedekd", "second-opinion", "fedrep", "knnper", "fedavg@alone"]


@pytest.fixture(autouse=True)
def twins_are_drawn_too(monkeypatch):
    """As where there are very many clients."""
    monkeypatch.setattr("fedekd.engines.job.TOO_MANY_ALONE", CLIENTS)


@pytest.fixture(scope="module")
def eight(digits):
    return federate(digits, clients=CLIENTS, alpha=0.5, seed=2)


def job_of(federation, name, **more):
    method = methods.twin(methods.get(name.partition("@")[0]), "alone") if "@" in name else methods.get(name)
    return job(federation, method, participation=FEW, **{"epochs": 1, "rounds": 3, "batch_size": 64, **more})


def eager(one) -> Serial:
    """With all clients from the start."""
    engine = Serial(one)
    assert len(list(engine.clients)) == CLIENTS
    return engine


def took_part(one, rounds: int) -> set[int]:
    return {k for r in range(rounds) for k in participants(one.seed, r, CLIENTS, FEW)}


def told(engine) -> list:
    """All that a record and a checkpoint take from an engine."""
    found = []
    with engine.personalised():
        for one in engine.measure(20)[0]:
            numbers = [one.value, one.val_value, one.val_loss, one.train_loss]
            arrays = [one.errors, one.val_losses, one.answers("test"), one.answers("val")]
            found += [torch.tensor(numbers).nan_to_num(-1.0), *map(torch.from_numpy, arrays)]
        found += [engine.states_of(0, range(CLIENTS))]
    found += engine.evaluate(), engine.states_of(0, range(CLIENTS)), engine.trust
    return [*found, engine.door.bytes_up, engine.door.bytes_down, engine.server.state()]


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_of_clients_that_were_all_there_from_the_start(eight, name):
    one = job_of(eight, name)
    engine, other = Serial(one), eager(one)
    for _ in range(one.training.rounds):
        engine.round()
        other.round()
    assert same(told(engine), told(other))
    assert set(engine.clients.made) == took_part(one, 3)
    assert len(engine.clients.made) < CLIENTS


@pytest.mark.parametrize("name", ["fedbn", "fedavg-tuned", "pfedme", "second-opinion"])
def test_the_same_with_batch_norm(eight, name):
    """Whose statistics, and what a method fits before it answers, must not reach those that begin alike."""

    def normed(shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[-1] ** 2, 8), nn.BatchNorm1d(8), nn.Linear(8, outputs))

    one = job_of(eight, name, private=normed)
    engine, other = Serial(one), eager(one)
    for _ in range(2):
        engine.round()
        other.round()
        assert same(told(engine), told(other))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "second-opinion", "fedavg@alone"])
def test_a_checkpoint_in_the_middle(eight, name):
    one = job_of(eight, name)
    whole, first, after, of_old, old = Serial(one), Serial(one), Serial(one), eager(one), Serial(one)
    for engine in (whole, whole, whole, first, of_old):
        engine.round()
    saved, file = first.state(), io.BytesIO()
    assert {k for k, state in enumerate(saved["clients"]) if state is not None} == took_part(one, 1)
    torch.save(saved, file)
    file.seek(0)
    after.restore(torch.load(file, weights_only=True))
    old.restore(of_old.state())  # of when every client's state was in it
    expected = told(whole)
    for engine in (after, old):
        engine.round()
        engine.round()
        assert same(told(engine), expected)


def test_an_engine_that_went_on_can_be_taken_back(eight):
    one = job_of(eight, "ditto")
    engine, before = Serial(one), Serial(one).state()
    engine.round()
    engine.restore(before)
    assert not engine.clients.made
    assert same(told(engine), told(Serial(one)))


@pytest.fixture
def built(monkeypatch) -> list[int]:
    """The numbers of clients for which a model was made."""
    found, build = [], ClientModels._build

    def counted(self, role):
        found.append(self.number)
        return build(self, role)

    monkeypatch.setattr(ClientModels, "_build", counted)
    return found


@pytest.mark.parametrize("name", ["fedavg", "knnper"])
def test_models_are_made_for_those_that_take_part_and_once_for_all_others(eight, built, name):
    one = job_of(eight, name)
    engine = Serial(one)
    assert built == [0], "what the server begins with"
    built.clear()
    engine.round()
    assert set(built) == took_part(one, 1)
    assert len(built) == 2
    engine.round()
    assert len(built) == len(took_part(one, 2))
    built.clear()
    engine.measure()
    with engine.personalised():
        engine.measure()
        engine.states_of(0, range(CLIENTS))
    assert len(built) <= 4, "one that all share; the first client's is its own, as it may be that of no other"
    assert len(engine.clients.starts) == 1


def test_a_start_for_each_architecture(eight, built):
    one = job_of(eight, "fedekd", private=Dealt((tiny_private, tiny_proxy)))
    engine, other = Serial(one), eager(one)
    built.clear()
    for _ in range(2):
        assert engine.evaluate() == other.evaluate()
    assert len(engine.clients.starts) == 2
    assert len(built) == 2 * (2 + 2), "two models of the first two clients, and two for the others of each kind"


def test_of_a_factory_that_knows_the_client_no_start_is_kept(eight):
    def own(shape, outputs, client):
        return tiny_private(shape, outputs) if client % 2 else tiny_proxy(shape, outputs)

    one = job_of(eight, "fedekd", private=own)
    engine, other = Serial(one), eager(one)
    for each in (engine, other):
        each.round()
    assert engine.evaluate() == other.evaluate()
    assert not engine.clients.starts


def test_whoever_never_took_part_is_handed_out_as_it_answers(eight):
    one = job_of(eight, "fedrep")
    engine, other = Serial(one), eager(one)
    for each in (engine, other):
        each.round()
    before = engine.states_of(0, range(CLIENTS))
    with engine.personalised(), other.personalised():
        ours, theirs = ([client.state() for client in each.clients_of(0)] for each in (engine, other))
        assert same(ours, theirs)
        assert not same(ours, before)
    assert same(engine.states_of(0, range(CLIENTS)), before)
