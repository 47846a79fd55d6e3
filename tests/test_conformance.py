"""Every engine keeps one contract: the same method gives the same numbers, or the same line that refuses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

import hostile
from fedekd.data import Dataset, federate
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.engines.stacked import Stacked
from fedekd.errors import FedekdError
from fedekd.models import MLP
from hostile import PLACES, READS, Branch, Probe

TRAINING = Training(rounds=2, epochs=2, batch_size=8, lr=3e-3)


def small_private(shape, outputs):
    return MLP(shape[0], outputs, (6, 5))


def small_proxy(shape, outputs):
    return MLP(shape[0], outputs, (4,))


def made(task, clients=3, seed=0, rows=90, share=0.1):
    draw = np.random.default_rng(7)
    x = draw.normal(size=(rows, 4)).astype(np.float32)
    y = np.arange(rows) % 3 if task == "classification" else (x[:, 0] - x[:, 1] ** 2).astype(np.float32)
    key = (task, rows)
    if key not in KNOWN:
        KNOWN[key] = Dataset(
            "made", task, x, y, 3 if task == "classification" else 1, scale=None, standardise_target=True
        )
    return federate(KNOWN[key], clients=clients, alpha=0.5, seed=seed, public=share, min_samples=5)


KNOWN: dict = {}
CLASSES, NUMBERS = made("classification"), made("regression")


def job(method, federation=CLASSES, seed=0, **training):
    return Job(federation, method, seed, replace(TRAINING, **training), small_private, small_proxy)


# --- engines -------------------------------------------------------------------------------------------------


def in_serial(jobs):
    """What each job ends with, and the first line that refused one."""
    return [_told(Serial(one), 0, one) for one in jobs]


def in_stack(jobs):
    engine = Stacked(jobs, piece=4)
    _run(engine, jobs[0])
    return [_facts(engine, j) for j in range(len(jobs))]


def _told(engine, j, one):
    _run(engine, one)
    return _facts(engine, j)


def _run(engine, one):
    while engine.round_number < one.training.rounds:
        engine.round()
        engine.evaluate()


def _facts(engine, j):
    """All that can be asked of a job after its last round."""
    clients = engine.clients_of(j)
    known = [
        {
            "models": {role: dict(client.models[role].named_parameters()) for role in client.models},
            "received": client.received,
            "memory": client.memory,
            "gradients": client.gradients,
            "steps": client.steps,
            "round": client.round,
            "answers": client._answers("test")[0],
        }
        for client in clients
    ]
    door = engine.doors[j]
    values = {split: engine.evaluate(split)[j] for split in ("test", "val")}
    return {
        "clients": known, "bytes": [door.bytes_up, door.bytes_down], "trust": engine.trust[j], "values": values,
        "log": sorted(door.log),
    }  # fmt: skip


def outcome(engine, jobs):
    try:
        return engine(jobs)
    except FedekdError as error:
        return str(error)


def alike(ours, theirs, where="", atol=2e-4):
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype, f"{where}: {ours.dtype} and {theirs.dtype}"
        same = ours.shape == theirs.shape or where.endswith(("table", "rows"))
        assert same, f"{where}: {tuple(ours.shape)} and {tuple(theirs.shape)}"
        ours = ours[tuple(slice(n) for n in theirs.shape)]  # what is kept of each row is padded in a stack
        assert torch.allclose(ours.double(), theirs.double(), atol=atol, rtol=1e-4), f"{where}: {ours} and {theirs}"
    elif isinstance(theirs, Mapping):
        assert set(ours) == set(theirs), f"{where}: {set(ours)} and {set(theirs)}"
        for key in theirs:
            alike(ours[key], theirs[key], f"{where} {key}", atol)
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            alike(a, b, f"{where} {k}", atol)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=1e-3), where
    else:
        assert ours == theirs, f"{where}: {ours} and {theirs}"


def same(jobs, refused=None):
    """Both engines agree; ``refused`` is part of the line that both must give."""
    jobs = jobs if isinstance(jobs, list) else [jobs]
    ours, theirs = outcome(in_stack, jobs), outcome(in_serial, jobs)
    if isinstance(theirs, str) or isinstance(ours, str):
        assert ours == theirs
        assert "\n" not in theirs
        assert refused is not None, theirs
        assert refused in theirs
    else:
        assert refused is None, "nobody has refused it"
        alike(ours, theirs)
    return theirs


# --- what is read --------------------------------------------------------------------------------------------


def refusal(what, where, probe):
    """The words of the line that must refuse to read this there; None where it can be read."""
    no_rows = where in ("remember", "copy", "send")
    whole = no_rows or where in ("remember a split", "send a split", "personal remember")
    server = where == "refine"
    if what == "outputs":
        return "does not name that role" if no_rows else None
    if what == "outputs of another":
        return None if probe.named and not no_rows else "does not name that role"
    if what.startswith("features"):
        seen = probe.wide and not no_rows and ("another" not in what or probe.named)
        return None if seen else "`needs_features`"
    if what in ("weights of another",):
        return "`anchors`"
    if what in ("received of a role at home", "received of another"):
        return "nothing of that name"
    if what == "received by name":
        return "nothing of that name" if server else None
    if what == "memory that is not there" or (what == "memory" and server):
        return "neither `begin` nor"
    if what.startswith("gradients"):
        return None if probe.summed and "another" not in what and not server else "gradients=True"
    if what in ("apply", "apply to another", "gradient"):
        return "not to a whole split" if whole else None
    return None


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


def called(probe):
    flags = [flag for flag in ("named", "wide", "summed") if getattr(probe, flag)]
    return "-".join([probe.where, probe.what, *flags]).replace(" ", "_")


@pytest.mark.parametrize("probe", probes(), ids=called)
def test_what_a_step_reads(probe):
    same(job(probe), refusal(probe.what, probe.where, probe))


@pytest.mark.parametrize("what", [w for w in READS if "another" not in w and "not there" not in w])
@pytest.mark.parametrize("where", ["train", "send a split", "predict"])
def test_what_a_step_reads_in_a_regression(what, where):
    probe = Probe(what, where, wide="features" in what, summed="gradients" in what)
    same(job(probe, NUMBERS), refusal(what, where, probe))


def test_what_is_read_moves_the_numbers():
    """Else the tests above would compare what nobody has changed."""
    plain = in_serial([job(Probe("memory with a default", "train"))])
    for what in ("x", "steps", "counts", "uniform", "gradient", "received", "apply"):
        found = in_serial([job(Probe(what, "train"))])
        a, b = (one[0]["clients"][0]["models"]["private"]["head.weight"] for one in (plain, found))
        assert not torch.allclose(a, b, atol=1e-4), what


# --- what is done --------------------------------------------------------------------------------------------

DONE = [
    hostile.Toy(), hostile.Settings(), hostile.Settings("public", "adam"), hostile.Settings("test", "sgd"),
    hostile.Gradients(), hostile.Heads(), hostile.Heads(True), hostile.Copies(), hostile.Into(), hostile.Each(),
    hostile.Each(True), hostile.Each(False, True), hostile.Each(True, True), hostile.Aliases(), hostile.Told(),
    hostile.Seldom(), hostile.Changing(), hostile.Trusting(), hostile.Refined(),
]  # fmt: skip


@pytest.mark.parametrize("federation", [CLASSES, NUMBERS], ids=["classification", "regression"])
@pytest.mark.parametrize("method", DONE, ids=str)
def test_what_a_method_does(method, federation):
    same(job(method, federation, rounds=3))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_other_optimisers(optimizer):
    same(job(hostile.Settings(), optimizer=optimizer, lr=0.05))


REFUSED = [
    (hostile.BodyUnnamed(), "reads outputs['private'], but the step does not name"),
    (hostile.BodyUnnamedAnswer(), "reads outputs['private'], but the step does not name"),
    (hostile.OtherAnswer(), "reads outputs['private'], but the step does not name"),
    (hostile.CopyAcross(), "the proxy model has no body.2.weight to copy into private"),
    (hostile.CopyWide(), "the private model has no"),
    (hostile.AnswerWide(), "the private model has no"),
    (hostile.AnswerUnknown(), "the private model has no extra"),
    (hostile.NoPair(), "an answer and the server's new memory"),
    (hostile.VectorLoss(), "take its mean with batch.mean"),
    (hostile.NothingToTrain(), "nothing to train"),
    (hostile.ExchangeInside(), "personalise"),
]


@pytest.mark.parametrize(("method", "words"), REFUSED, ids=lambda v: type(v).__name__)
def test_what_no_engine_does(method, words):
    same(job(method), words)


# --- who takes part ------------------------------------------------------------------------------------------

MANY = made("classification", clients=4, rows=160)
SELDOM = [
    hostile.Toy(), hostile.Gradients(), hostile.Heads(), hostile.Into(), hostile.Each(), hostile.Each(True, True),
    hostile.Aliases(), hostile.Told(), hostile.Seldom(), hostile.Trusting(), hostile.Refined(),
    Probe("received by name", "train"), Probe("memory with a default", "predict"), Branch(0.3, "predict"),
]  # fmt: skip


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

BENT = ("train", "remember", "remember a split", "copy", "send", "send a split", "combine", "refine", "personal train",
        "personal remember", "predict")  # fmt: skip


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

    for make in (lambda: Stacked(jobs, piece=4), lambda: Serial(jobs[0])):
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
            alike(_facts(second, j), _facts(whole, j), atol=0)


@pytest.mark.parametrize(
    "method",
    [hostile.Seldom(), hostile.Gradients(), hostile.Into(), hostile.Each(True), hostile.Refined(), hostile.Aliases()],
    ids=str,
)
def test_an_interruption_changes_nothing(method):
    half = not isinstance(method, hostile.Gradients)
    interrupted([job(method, MANY, rounds=5, participation=0.5 if half else 1.0)], at=3, measured=half)
