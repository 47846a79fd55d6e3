"""What is to be run: settings become runs, each named by everything that decides its numbers."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from fedekd import methods, models
from fedekd.data import data_folder, federate, find_public, load_dataset
from fedekd.data.clusters import by_clusters, clusters_for
from fedekd.dataset import Dataset
from fedekd.engines.job import Job, Training
from fedekd.engines.rehearsal import rehearse
from fedekd.errors import unknown
from fedekd.federation import Federation
from fedekd.methods.base import Method
from fedekd.settings import NEWER, SHORTCUTS, Settings, model_name

SUFFICES = {"": ("",), "rows": ("", "rows"), "labels": ("", "rows", "labels")}
"""By what there is of public rows: which needs of a method it meets."""


@dataclass(frozen=True)
class Chosen:
    """A method with the name the user called it by and the parameters the user changed."""

    name: str
    method: Method
    changed: Mapping[str, Any]

    @property
    def label(self) -> str:
        changes = ", ".join(f"{key}={value}" for key, value in self.changed.items())
        return f"{self.name} ({changes})" if changes else self.name


@dataclass(frozen=True)
class Run:
    """One dataset, alpha, seed and method. ``local_key`` names the run of Local that it is measured against."""

    name: str
    label: str
    job: Job
    key: str
    local_key: str


def plan(settings: Settings, dataset: Dataset | None = None) -> list[Run]:
    """The runs that the settings ask for: seed by seed, Local first."""
    named, dataset = dataset is None, dataset or load(settings)
    checksum, clusters, runs = fingerprint(dataset), None, list[Run]()
    public = find_public(settings.public, dataset, target=settings.target, clients_from=settings.clients_from)
    for seed in settings.seeds:
        split = settings.seed_of_split(seed)
        if named and by_clusters(dataset, settings.partition):
            clusters = clusters_for(dataset, checksum, split, data_folder(settings.data))
        federation = federate(
            dataset,
            clients=settings.clients, alpha=settings.alpha, seed=split, partition=settings.partition, clusters=clusters,
            public=public, fraction=settings.fraction, fixed=settings.split_seed is not None,
        )  # fmt: skip
        runs += runs_on(federation, settings, seed, checksum)
    return runs


def runs_on(federation: Federation, settings: Settings, seed: int, checksum: str) -> list[Run]:
    """The runs on one federation, whose data have that fingerprint: Local first."""
    chosen = choose_methods(settings, federation.dataset.task, public_rows(federation))
    jobs = [make_job(settings, federation, one.method, seed) for one in chosen]
    for job in jobs:
        rehearse(job)
    keys = [run_key(job, checksum) for job in jobs]
    return [Run(c.name, c.label, j, key, keys[0]) for c, j, key in zip(chosen, jobs, keys, strict=True)]


def load(settings: Settings) -> Dataset:
    return load_dataset(
        settings.dataset,
        data_dir=settings.data,
        target=settings.target,
        task=settings.task,
        clients_from=settings.clients_from,
    )


def choose_methods(settings: Settings, task: str, public: str = "") -> list[Chosen]:
    """The methods asked for, Local first: every delta is measured against it.

    Of a group, those that fit the task and what there is of public rows: "", "rows" or "labels".
    """
    chosen: dict[str, Chosen] = {}
    asked: Iterable[Any] = ("local", *settings.methods)
    groups = methods.groups()
    for item in asked:
        if isinstance(item, str) and item in groups:
            for name in groups[item]:
                method = methods.get(name)
                if task in method.tasks and method.public in SUFFICES[public]:
                    chosen.setdefault(name, _choose(name, method, settings))
        elif isinstance(item, str):
            chosen.setdefault(item, _choose(item, methods.get(item), settings))
        elif isinstance(item, Method):
            name = item.name or type(item).__name__.lower()
            chosen.setdefault(name, _choose(name, item, settings))
        else:
            raise unknown("method", str(item), methods.known())
    for name in settings.parameters:
        if name != "*" and name not in chosen:
            raise unknown("method in parameters", name, chosen)
    for one in chosen.values():
        one.method.check(task)
    return list(chosen.values())


def left_out(settings: Settings, federation: Federation) -> str:
    """A line about the methods of the groups asked for that lack public rows here; nothing where none does."""
    task, public, groups = federation.dataset.task, public_rows(federation), methods.groups()
    asked = (name for item in settings.methods if isinstance(item, str) for name in groups.get(item, ()))
    found = {name: methods.get(name) for name in asked if name not in settings.methods}
    lacking = [n for n, m in found.items() if task in m.tasks and m.public not in SUFFICES[public]]
    if not lacking:
        return ""
    what = "public rows with labels" if public else "public rows (--public 0.1)"
    return f"{', '.join(lacking)} {'need' if len(lacking) > 1 else 'needs'} {what}: left out"


def public_rows(federation: Federation) -> str:
    """What a federation has of public rows, in the words of ``Method.public``."""
    if not len(federation.public):
        return ""
    return "labels" if federation.public_labelled else "rows"


def _choose(name: str, method: Method, settings: Settings) -> Chosen:
    takes = {f.name for f in fields(method)}
    changed = {k: v for k, v in settings.parameters.get("*", {}).items() if k in takes or k not in SHORTCUTS}
    changed |= settings.parameters.get(name, {})
    other = methods.with_parameters(method, changed)
    return Chosen(name, other, {k: getattr(other, k) for k in changed if getattr(other, k) != getattr(method, k)})


def make_job(settings: Settings, federation: Federation, method: Method, seed: int) -> Job:
    shared = {f.name: getattr(settings, f.name) for f in fields(Training)}
    private, proxy = (models.factory(role, getattr(settings, role)) for role in ("private", "proxy"))
    return Job(federation, method, seed, Training(**shared), private, proxy)


def run_key(job: Job, data_checksum: str) -> str:
    """A changed setting gives another key, so that a finished run is never taken for another.

    A setting that came later counts only where it is not at its default: the keys of runs from before it stay.
    """
    training = asdict(replace(job.training, device=job.training.device.split(":")[0]))
    identity = {
        "dataset": job.federation.dataset.name,
        "data": data_checksum,
        "partition": job.federation.partition,
        "seed": job.seed,
        "method": algorithm(job.method),
        "params": asdict(job.method),
        "training": {name: value for name, value in training.items() if (name, value) not in NEWER.items()},
        "models": [architecture(job, role) for role in ("private", "proxy")],
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]


def algorithm(method: Method) -> str:
    """A method of fedekd by its name; one of the user's by its code too, where Python can find it."""
    kind = type(method)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__.startswith("fedekd."):
        return name
    with contextlib.suppress(OSError, TypeError):
        return f"{name}\n{inspect.getsource(kind)}"
    return name


def architecture(job: Job, role: str) -> str:
    """A built-in model by its name; one of the user's by its layers too, which change while the name stays."""
    make, dataset = job.factory(role), job.federation.dataset
    name = model_name(make).replace(":", ".")
    if make is models.BUILT_IN[role]:
        return name
    clients = len(job.federation.clients) if models.takes_client(make) else 1
    shape = tuple(dataset.x.shape[1:])
    return "\n".join([name, *(_layers(role, make, shape, dataset.outputs, client) for client in range(clients))])


@cache
def _layers(role: str, make: models.Factory, shape: tuple[int, ...], outputs: int, client: int) -> str:
    module = models.build(role, make, shape, outputs, 0, client)
    return f"{module} {[(name, *tensor.shape) for name, tensor in module.state_dict().items()]}"


def fingerprint(dataset: Dataset) -> str:
    digest = hashlib.sha256()
    for array in (dataset.x, dataset.y):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]
