"""The name of a run: everything that decides its numbers, in sixteen digits."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
from dataclasses import asdict, fields, replace
from functools import cache
from typing import Any

import numpy as np

from fedekd import architectures, models
from fedekd.dataset import Dataset
from fedekd.engines.job import Job
from fedekd.methods.base import Method
from fedekd.methods.second_opinion import SecondOpinion
from fedekd.settings import NEWER, model_name


def run_key(job: Job, data_checksum: str) -> str:
    """A changed setting gives another key, so that a finished run is never taken for another.

    A setting or parameter that came later counts only where it is not at its default: the keys of runs from before it
    stay.
    """
    training = asdict(replace(job.training, device=job.training.device.split(":")[0]))
    identity = {
        "dataset": job.federation.dataset.name,
        "data": data_checksum,
        "partition": job.federation.partition,
        "seed": job.seed,
        "method": algorithm(job.method),
        "params": counted(job.method),
        "training": {name: value for name, value in training.items() if (name, value) not in NEWER.items()},
        "models": [architecture(job, role) for role in ("private", "proxy")],
    }
    if job.training.participation < 1 and not job.alone_is_drawn:
        identity["alone"] = "every round"  # before, those that train alone were drawn too, and Δ was against that
    if "group" in job.federation.partition and isinstance(job.method, SecondOpinion):
        identity["weighed"] = "by group"  # before, rows of one group were in several folds
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]


def counted(method: Method) -> dict[str, Any]:
    """The method's parameters but those that came later and are at their default."""
    newer = {one.name: one.default for one in fields(method) if one.metadata.get("newer")}
    return {name: value for name, value in asdict(method).items() if (name, value) not in newer.items()}


def algorithm(method: Method) -> str:
    """A method of fedekd by its name; one of the user's by its code too, where Python can find it, and by that of the
    classes of theirs that it extends."""
    kind = type(method)
    found = [f"{kind.__module__}.{kind.__qualname__}"]
    for own in (kind.original or kind).__mro__:
        if not own.__module__.startswith("fedekd."):
            with contextlib.suppress(OSError, TypeError):
                found.append(inspect.getsource(own))
    return "\n".join(found)


def architecture(job: Job, role: str) -> str:
    """A built-in model by its name; one of the user's by its layers too, which change while the name stays."""
    return "\n".join(_architecture(job, role, own) for own in models.every_factory(job.factory(role)))


def _architecture(job: Job, role: str, make: models.Factory) -> str:
    dataset = job.federation.dataset
    name = model_name(make).replace(":", ".")
    if make is models.BUILT_IN[role]:
        return name
    clients = len(job.federation.clients) if models.takes_client(make) else 1
    shape = tuple(dataset.x.shape[1:])
    return "\n".join([name, *(_layers(role, make, shape, dataset.outputs, client) for client in range(clients))])


def model_titles(job: Job) -> list[str]:
    """What each client's private model is called in records; nothing where all have the default one."""
    if job.private is models.private or not job.method.roles:
        return []
    return [_title(job, client) for client in range(len(job.federation.clients))]


def _title(job: Job, client: int) -> str:
    make, dataset = models.own_factory(job.private, client), job.federation.dataset
    if models.takes_client(make):
        module = models.build("private", make, dataset.x.shape[1:], dataset.outputs, job.seed, client)
        size = sum(w.numel() for w in module.parameters())  # two that are both a Sequential may differ
        return f"{type(module).__name__} ({size:,} weights)"
    name = model_name(make)
    return architectures.name_of(name) or name


@cache
def _layers(role: str, make: models.Factory, shape: tuple[int, ...], outputs: int, client: int) -> str:
    module = models.build(role, make, shape, outputs, 0, client)
    return f"{module} {[(name, *tensor.shape) for name, tensor in module.state_dict().items()]}"


def fingerprint(dataset: Dataset) -> str:
    digest = hashlib.sha256()
    for array in (dataset.x, dataset.y, *(names.codes for names in (dataset.groups, dataset.subgroups) if names)):
        digest.update(np.ascontiguousarray(array).data)
    if dataset.gaps and dataset.fill != "median":
        digest.update(dataset.fill.encode())
    return digest.hexdigest()[:16]
