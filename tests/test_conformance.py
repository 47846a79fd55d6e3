"""Every engine keeps one contract: the same method gives the same numbers, or the same line that refuses it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import hostile
from conforming import (
    CLASSES,
    DONE,
    MANY,
    NUMBERS,
    REFUSED,
    alike,
    called,
    facts,
    in_serial,
    in_stack,
    job,
    made,
    outcome,
    refusal,
    run,
    same,
)
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from hostile import PLACES, READS, Branch, Probe

# --- what is read --------------------------------------------------------------------------------------------


def probes():
    for what in READS:
        for where in PLACES:
            yield Probe(what, where)
            if "another" in what and what.split()[0] in ("outputs", "features"):
                yield Probe(what, where, named=True, wide=True)
            if what.startswith("features"):
                yield Probe(what, where, wide=True)
            if what.startswith("gradients"):
                yield Probe(what, where, summed=True)


def job_reading(probe, federation=CLASSES):
    """One or two steps a round show what each of them reads, not what is summed or remembered from step to step."""
    grows = probe.what.startswith(("gradients", "memory"))
    training = {"epochs": 2, "batch_size": 8} if grows else {"epochs": 1, "batch_size": 16}
    return job(probe, federation, **training)


@pytest.mark.parametrize("probe", probes(), ids=called)
def test_what_a_step_reads(probe):
    same(job_reading(probe), refusal(probe.what, probe.where, probe))


@pytest.mark.parametrize("what", [w for w in READS if "another" not in w and "not there" not in w])
@pytest.mark.parametrize("where", ["train", "send a split", "predict"])
def test_what_a_step_reads_in_a_regression(what, where):
    probe = Probe(what, where, wide="features" in what, summed="gradients" in what)
    same(job_reading(probe, NUMBERS), refusal(what, where, probe))


def test_what_is_read_moves_the_numbers():
    """Else the tests above would compare what nobody has changed."""
    plain = in_serial([job(Probe("memory with a default", "train"))])
    for what in ("x", "steps", "counts", "uniform", "gradient", "received", "apply"):
        found = in_serial([job(Probe(what, "train"))])
        a, b = (one[0]["clients"][0]["models"]["private"]["head.weight"] for one in (plain, found))
        assert not torch.allclose(a, b, atol=1e-4), what


# --- what is done --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("federation", [CLASSES, NUMBERS], ids=["classification", "regression"])
@pytest.mark.parametrize("method", DONE, ids=str)
def test_what_a_method_does(method, federation):
    same(job(method, federation, rounds=3))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_other_optimisers(optimizer):
    same(job(hostile.Settings(), optimizer=optimizer, lr=0.05))


@pytest.mark.parametrize(("method", "words"), REFUSED, ids=lambda v: type(v).__name__)
def test_what_no_engine_does(method, words):
    same(job(method), words)


class Tied(torch.nn.Module):
    """A layer under two names."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.head = torch.nn.Linear(inputs, inputs), torch.nn.Linear(inputs, outputs)
        self.again = self.first

    def forward(self, x):
        return self.head(torch.relu(self.again(torch.relu(self.first(x)))))


@pytest.mark.parametrize(
    "method", [hostile.Toy(), hostile.Refined(), hostile.Copies(), hostile.Each(True), Probe("gradient")], ids=str
)
def test_tied_weights(method):
    one = replace(job(method, rounds=3), private=lambda shape, outputs: Tied(shape[0], outputs))
    same([one])


def test_a_client_without_rows_in_a_split():
    none, (first, *others) = np.empty(0, np.int64), CLASSES.clients
    federation = replace(CLASSES, clients=(replace(first, val=none), *others))
    for method in (hostile.Settings(), hostile.Heads(), Probe("y", "remember a split")):
        same(job(method, federation))


def dropped(shape, outputs):
    return torch.nn.Sequential(torch.nn.Linear(shape[0], 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, outputs))


@pytest.mark.parametrize("engine", [lambda one: Stacked([one], chunk=4), Serial], ids=["stacked", "serial"])
def test_chance_is_the_engines_own(engine):
    """A model with dropout: the same seed gives the same bits, and nobody else's numbers are drawn."""
    one, found = replace(job(hostile.Settings()), private=dropped), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        worker = engine(one)
        run(worker, one)
        assert torch.equal(before, torch.get_rng_state())
        found.append(facts(worker, 0))
    alike(*found, atol=0)


# --- who takes part ------------------------------------------------------------------------------------------

SELDOM = [
    hostile.Toy(),
    hostile.Gradients(),
    hostile.Heads(),
    hostile.Into(),
    hostile.Each(),
    hostile.Each(True, True),
    hostile.Aliases(),
    hostile.Told(),
    hostile.Seldom(),
    hostile.Trusting(),
    hostile.Refined(),
    Probe("received by name", "train"),
    Probe("memory with a default", "predict"),
    Branch(0.3, "predict"),
]


@pytest.mark.parametrize("method", SELDOM, ids=str)
def test_half_of_the_clients_in_each_round(method):
    if isinstance(method, hostile.Gradients):
        same(job(method, MANY, rounds=5, participation=0.5), "neither `begin` nor")
    else:
        same(job(method, MANY, rounds=5, participation=0.5))


def test_someone_was_absent_twice():
    from fedekd.engines.schedule import participants

    there = [participants(0, round, 4, 0.5) for round in range(5)]
    assert any(sum(k not in now for now in there) >= 2 and k in there[-1] for k in range(4))
    assert any(all(k not in now for now in there[:2]) for k in range(4)), "and someone from the start"


def test_whoever_was_never_there_cannot_answer_from_what_a_round_gives():
    same(job(hostile.NeverNoted(), MANY, participation=0.5), "reads memory['late']")
    same(job(hostile.NeverNoted(), MANY))


def test_memory_that_changes_its_shape_while_some_are_absent():
    line = outcome(in_stack, [job(hostile.Changing(), MANY, rounds=5, participation=0.5)])
    assert isinstance(line, str), "a stack cannot hold it, and must not lose it"
    assert "stacks = False" in line


# --- several jobs in a stack ---------------------------------------------------------------------------------

BENT = (*PLACES, "combine")


def bent(where, **training):
    other = made("classification", seed=5)
    return [
        job(Branch(0.1, where), **training),
        job(Branch(0.9, where), other, seed=5, **training),
        job(Branch(0.2, where), seed=1, **training),
    ]


@pytest.mark.parametrize("where", BENT)
def test_a_parameter_in_an_if_may_differ_between_jobs(where):
    same(bent(where))


@pytest.mark.parametrize("where", ["train", "remember", "personal train", "predict"])
def test_a_parameter_in_an_if_after_an_interruption(where):
    interrupted(bent(where, rounds=3), at=1)
    interrupted(bent(where, rounds=3), at=2, measured=False)


def test_jobs_of_other_public_rows_do_not_share_a_stack():
    from fedekd.engines.stackable import signature

    one, other = made("classification", share=0.1), made("classification", share=0.2)
    assert len(one.public) != len(other.public)
    assert signature(job(hostile.Toy(), one)) != signature(job(hostile.Toy(), other))


@pytest.mark.parametrize(
    "method", [hostile.Seldom(), hostile.Refined(), hostile.Into(), hostile.Each(True, True)], ids=str
)
def test_unequal_federations_in_one_stack(method):
    same([job(method), job(method, made("classification", clients=4, seed=3), seed=3), job(method, seed=2)])


# --- interruption --------------------------------------------------------------------------------------------


def interrupted(jobs, at=2, measured=True):
    """A run that was saved and loaded ends as one that was not, in both engines, to the bit."""
    import io

    for make in (lambda: Stacked(jobs, chunk=4), lambda: Serial(jobs[0])):
        whole, first, second = make(), make(), make()
        for engine, rounds in ((whole, jobs[0].training.rounds), (first, at)):
            for _ in range(rounds):
                engine.round()
                if measured:
                    engine.evaluate()
        file = io.BytesIO()
        torch.save(first.state(), file)
        file.seek(0)
        second.restore(torch.load(file, weights_only=True))
        alike(second.evaluate(), first.evaluate())
        while second.round_number < jobs[0].training.rounds:
            second.round()
        for j in range(len(whole.doors)):
            alike(facts(second, j), facts(whole, j), atol=0)


@pytest.mark.parametrize(
    "method",
    [hostile.Seldom(), hostile.Gradients(), hostile.Into(), hostile.Each(True), hostile.Refined(), hostile.Aliases()],
    ids=str,
)
def test_an_interruption_changes_nothing(method):
    half = not isinstance(method, hostile.Gradients)
    interrupted([job(method, MANY, rounds=5, participation=0.5 if half else 1.0)], at=3, measured=half)
