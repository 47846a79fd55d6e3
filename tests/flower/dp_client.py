"""A client with differential privacy on a small dataset, for the tests of it."""

from __future__ import annotations

from dataclasses import replace

import torch
from village import schema_of

from fedekd import methods
from fedekd.engines.job import Job, Training
from fedekd.flower.protocol.rows import of_site
from fedekd.flower.settings import Privacy
from fedekd.flower.site.privacy import PrivateClient
from fedekd.methods.base import Train
from tiny import tiny_private, tiny_proxy

DP = Privacy(epsilon=8.0, delta=1e-3, clip=0.5)
BARE = replace(DP, epsilon=float("inf"))  # for tests that take the noise away


def client(folder, dataset, method="fedekd", dp=DP, rows=None, proxy=tiny_proxy, schema=None, **training):
    """``method`` is a name, or a name and its parameters; ``rows`` are places in the training split."""
    schema = schema or schema_of(dataset)
    federation = of_site(schema.fit(dataset), schema, "site", 0, 0)
    if rows is not None:
        (split,) = federation.clients
        federation = replace(federation, clients=(replace(split, train=split.train[rows]),))
    settings = Training(**{"rounds": 2, "epochs": 2, "batch_size": 16, "lr": 1e-2, **training})
    name, parameters = (method, {}) if isinstance(method, str) else method
    job = Job(federation, methods.get(name, **parameters), 0, settings, tiny_private, proxy)
    return PrivateClient(job, 0, dp, folder)


def trains(one, round=0):
    """The step that trains what is sent."""
    return next(s for s in one.method.steps(round) if isinstance(s, Train) and one.shared & set(s.roles))


def sent(one, round=0):
    """The model that would be sent after a round's training."""
    one.train(trains(one, round), round)
    return {k: w.clone() for k, w in one.message(*one.shared).items()}


def equal(a, b):
    return all(torch.equal(a[k], b[k]) for k in a)
