"""What the tests of methods with public rows or prototypes share: federations, engines and batches made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedekd.data import Federation, Split
from fedekd.engines.serial import Serial
from fedekd.methods.batch import Batch
from fedekd.tasks import Classification
from serially import same, states
from tiny import job


def with_public(federation: Federation, share: float = 0.25, clients: int | None = None) -> Federation:
    """The same federation, or its first clients, with a share of everybody's training rows made public."""
    kept, public = [], []
    for split in federation.clients[:clients]:
        cut = max(1, int(share * len(split.train)))
        public.append(split.train[:cut])
        kept.append(Split(split.train[cut:], split.val, split.test))
    names = federation.names[: len(kept)]
    return replace(federation, clients=tuple(kept), names=names, public=np.sort(np.concatenate(public)))


def engine_of(federation, method, **options) -> Serial:
    return Serial(job(federation, method, **{"rounds": 3, "epochs": 1, **options}))


def trained(federation, method, rounds=3, **given) -> Serial:
    engine = engine_of(federation, method, rounds=rounds, **given)
    for _ in range(rounds):
        engine.round()
    return engine


def equal(a: Serial, b: Serial, role: str = "private") -> bool:
    return same(states(a, role), states(b, role))


def resumed(federation, method, rounds=4, stop=2, **given) -> tuple[Serial, Serial]:
    """One engine that runs through, and one that another goes on with after ``stop`` rounds."""
    through = trained(federation, method, rounds, **given)
    first, second = (engine_of(federation, method, rounds=rounds, **given) for _ in range(2))
    for _ in range(stop):
        first.round()
    second.restore(first.state())
    for _ in range(rounds - stop):
        second.round()
    return through, second


def batch_of(y, outputs=None, features=None, received=None, memory=None, rows=None, mask=None, **other) -> Batch:
    """A batch made by hand; outputs and features are the private model's unless they are given by role."""
    by_role = [
        given if isinstance(given, dict) else {} if given is None else {"private": given}
        for given in (outputs, features)
    ]
    none = torch.zeros(0)
    facts = {
        "task": Classification(),
        "x": None,
        "y": y,
        "outputs": by_role[0],
        "features": by_role[1],
        "weights": {},
        "received": received or {},
        "memory": memory or {},
        "gradients": {},
        "uniform": none,
        "counts": none,
        "rows": torch.arange(len(y)) if rows is None else rows,
        "lr": 0.1,
        "steps": none,
        "mask": mask,
    }
    return Batch(**{**facts, "groups": facts["rows"], **other})
