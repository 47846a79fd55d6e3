"""One contract for every engine: jobs that are small, what each engine makes of them, and whether that is the same."""

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


MANY = made("classification", clients=4, rows=160)


def in_serial(jobs):
    """What each job ends with, and the first line that refused one."""
    return [_told(Serial(one), 0, one) for one in jobs]


def in_stack(jobs):
    engine = Stacked(jobs, chunk=4)
    run(engine, jobs[0])
    return [facts(engine, j) for j in range(len(jobs))]


def _told(engine, j, one):
    run(engine, one)
    return facts(engine, j)


def run(engine, one):
    while engine.round_number < one.training.rounds:
        engine.round()
        engine.evaluate()


def facts(engine, j):
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
    values = engine.evaluate()[j]
    return {
        "clients": known,
        "bytes": [door.bytes_up, door.bytes_down],
        "trust": engine.trust[j],
        "values": values,
        "log": sorted(door.log),
    }


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
        return "`reads_weights`"
    if what in ("received of a role at home", "received of another"):
        return "no exchange of that name"
    if what == "received by name":
        return "no exchange of that name" if server else None
    if what == "memory that is not there" or (what == "memory" and server):
        return "neither `begin` nor"
    if what.startswith("gradients"):
        return None if probe.summed and "another" not in what and not server else "gradients=True"
    if what in ("apply", "apply to another", "gradient"):
        return "not to a whole split" if whole else None
    return None


def called(probe):
    flags = [flag for flag in ("named", "wide", "summed") if getattr(probe, flag)]
    return "-".join([probe.where, probe.what, *flags]).replace(" ", "_")


DONE = [
    hostile.Toy(),
    hostile.Settings(),
    hostile.Settings("public", "adam"),
    hostile.Settings("val", "sgd"),
    hostile.Gradients(),
    hostile.Heads(),
    hostile.Heads(True),
    hostile.Copies(),
    hostile.Into(),
    hostile.Each(),
    hostile.Each(True),
    hostile.Each(False, True),
    hostile.Each(True, True),
    hostile.Aliases(),
    hostile.Told(),
    hostile.Seldom(),
    hostile.Changing(),
    hostile.Trusting(),
    hostile.Refined(),
]

REFUSED = [
    (hostile.BodyUnnamed(), "reads outputs['private'], but the step does not name"),
    (hostile.BodyUnnamedAnswer(), "reads outputs['private'], but the step does not name"),
    (hostile.OtherAnswer(), "reads outputs['private'], but the step does not name"),
    (hostile.CopyAcross(), "the proxy model has no body.2.weight to copy into private"),
    (hostile.CopyWide(), "the private model has no"),
    (hostile.AnswerWide(), "the private model has no"),
    (hostile.AnswerUnknown(), "the private model has no weight 'extra'"),
    (hostile.NoPair(), "an answer and the server's new memory"),
    (hostile.VectorLoss(), "take its mean with batch.mean"),
    (hostile.NothingToTrain(), "nothing to train"),
    (hostile.ExchangeInside(), "personalise"),
]
