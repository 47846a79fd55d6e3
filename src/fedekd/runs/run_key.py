"""The name of a run: everything that decides its numbers, in sixteen digits."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from dataclasses import asdict, fields, replace
from functools import cache
from types import CodeType
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
    """A method of fedekd by its name; one of the user's by its code too and by that of the classes of theirs that it
    extends."""
    kind = type(method)
    return "\n".join([f"{kind.__module__}.{kind.__qualname__}", *map(_source, _own_classes(method))])


def own_code(method: Method) -> str | None:
    """A checksum of the user's own code in a method; None where all of it is fedekd's."""
    sources = list(map(_source, _own_classes(method)))
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()[:16] if sources else None


def _own_classes(method: Method) -> list[type]:
    kind = type(method).original or type(method)
    return [own for own in kind.__mro__ if own.__module__ != "builtins" and not own.__module__.startswith("fedekd.")]


def _source(own: type) -> str:
    """Its text or, where Python cannot find that, as in a notebook, what it was compiled to."""
    try:
        return inspect.getsource(own)
    except (OSError, TypeError):
        found = [(name, value, _function(value)) for name, value in sorted(vars(own).items())]
        return repr([(name, _compiled(f or value)) for name, value, f in found if f or not name.startswith("__")])


def _function(value: Any) -> Any:
    """What a method, a property and the like call; None of anything else."""
    inner = next((getattr(value, name) for name in ("__func__", "fget", "func") if hasattr(value, name)), value)
    inner = inspect.unwrap(inner) if callable(inner) else inner
    return inner if hasattr(inner, "__code__") else None


def _compiled(value: Any) -> Any:
    """Without what differs from one kernel to the next, such as addresses, files, lines and the order of a set."""
    if function := _function(value):
        return _compiled(function.__code__), _compiled(function.__defaults__), _compiled(function.__kwdefaults__)
    if isinstance(value, CodeType):
        return value.co_code.hex(), value.co_names, value.co_varnames, [_compiled(one) for one in value.co_consts]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (tuple, list)):
        return [_compiled(one) for one in value]
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(value))


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


def model_titles(job: Job, role: str = "private") -> list[str]:
    """What each client's model is called in records; nothing where all have the default one."""
    if job.factory(role) is models.BUILT_IN[role]:
        return []
    make, dataset = job.factory(role), job.federation.dataset
    shape, clients = tuple(dataset.x.shape[1:]), range(len(job.federation.clients))
    return [_title(role, models.own_factory(make, client), shape, dataset.outputs, client) for client in clients]


@cache
def _title(role: str, make: models.Factory, shape: tuple[int, ...], outputs: int, client: int) -> str:
    if models.takes_client(make):
        module = models.build(role, make, shape, outputs, 0, client)
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
