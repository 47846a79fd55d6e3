"""Runs: dataset x alpha x seed x method becomes a record; interrupted runs go on where they stopped."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import torch

from fedekd import __version__, methods, metrics, models
from fedekd.data import Dataset, Federation, federate, load_dataset
from fedekd.engines.job import Job, Training
from fedekd.engines.serial import Serial
from fedekd.errors import unknown
from fedekd.methods.base import Method
from fedekd.results import Result
from fedekd.settings import SHORTCUTS, Settings, make_settings
from fedekd.store import Record, Store

# What `--methods NAME` stands for besides a method's own name.
GROUPS = {
    "all": ("fedekd", "fedavg", "fedprox", "feddyn", "fedtype", "fedtype-prox", "fml", "local", "constant"),
    "energies": ("fedekd", "fedekd-entropy", "fedekd-margin", "fedekd-lse", "fedekd-feature"),
    "controls": ("fedekd-ungated", "fedekd-half", "fedekd-permuted", "fedtype-nograd", "constant"),
}


class Observer(Protocol):
    """Who watches: the live display, plain lines, or nobody."""

    def plan(self, jobs: list[tuple[str, int, int]]) -> None: ...  # (label, seed, samples to train on)
    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None: ...
    def advance(self, round: int, client: str, samples: int) -> None: ...
    def finish(self, record: Record, cached: bool) -> None: ...


class Nobody:
    def plan(self, jobs: list[tuple[str, int, int]]) -> None: ...
    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None: ...
    def advance(self, round: int, client: str, samples: int) -> None: ...
    def finish(self, record: Record, cached: bool) -> None: ...


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


def run(dataset: str | Dataset = "digits", *, progress: bool = True, **given: Any) -> Result:
    """Train the methods on every seed and compare each client with training alone.

    Takes every setting of ``fedekd run`` by its name (``methods``, ``alpha``, ``seeds``, ``rounds``, ...). Also takes
    objects where the command line takes names: a ``Dataset``, ``Method`` instances among ``methods``, and functions
    as ``private`` and ``proxy``.
    """
    from fedekd.report.progress import watch

    name = dataset.name if isinstance(dataset, Dataset) else dataset
    settings = make_settings({"dataset": name, **given})
    with watch(progress) as observer:
        return execute(settings, observer, dataset if isinstance(dataset, Dataset) else None)


def execute(settings: Settings, observer: Observer | None = None, dataset: Dataset | None = None) -> Result:
    """Do what the settings say, skipping what their folder already holds."""
    observer = observer or Nobody()
    dataset = dataset or load_dataset(
        settings.dataset,
        data_dir=settings.data,
        target=settings.target,
        task=settings.task,
        clients_from=settings.clients_from,
    )
    chosen = choose_methods(settings, dataset.task)
    store = Store(settings.out)
    done = {record["key"]: record for record in store.records()}
    jobs: list[tuple[Chosen, Job, str]] = []
    checksum = fingerprint(dataset)
    for seed in settings.seeds:
        federation = federate(
            dataset, clients=settings.clients, alpha=settings.alpha, seed=seed, partition=settings.partition
        )
        for one in chosen:
            job = make_job(settings, federation, one.method, seed)
            jobs.append((one, job, run_key(one, job, checksum)))
    observer.plan([(one.label, job.seed, job.work()) for one, job, key in jobs if key not in done])
    records = []
    local: list[float] = []
    for one, job, key in jobs:
        cached = key in done
        record = done[key] if cached else run_one(one, job, key, local, store, observer)
        if one.name == "local":
            local = [client["value"] for client in record["clients"]]
        observer.finish(record, cached)
        records.append(record)
    return Result(records)


def run_one(one: Chosen, job: Job, key: str, local: list[float], store: Store, observer: Observer) -> Record:
    """One run from its last checkpoint, or from the start, to its record."""
    engine = Serial(job, observer.advance)
    seconds = 0.0
    saved = store.restore(key)
    if saved:
        engine.restore(saved["engine"])
        seconds = saved["seconds"]
    rounds = job.training.rounds
    observer.begin(one.label, job.seed, job.work(), rounds, engine.round_number)
    began = time.perf_counter()
    while engine.round_number < rounds:
        engine.round()
        if engine.round_number < rounds:
            elapsed = seconds + time.perf_counter() - began
            store.save(key, {"engine": engine.state(), "seconds": elapsed})
    values = engine.evaluate()
    seconds += time.perf_counter() - began
    record = make_record(one, job, key, values, local or values, engine.door.bytes_up, engine.door.bytes_down)
    record |= {
        "seconds": seconds,
        "trust": engine.trust,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    store.add(record)
    store.discard(key)
    return record


def make_record(
    one: Chosen, job: Job, key: str, values: list[float], local: list[float], bytes_up: int, bytes_down: int
) -> Record:
    federation, task = job.federation, job.task
    clients = [
        {
            "id": name,
            "n_train": len(split.train),
            "n_val": len(split.val),
            "n_test": len(split.test),
            "local": alone,
            "value": value,
            "delta": value - alone,
        }
        for name, split, alone, value in zip(federation.names, federation.clients, local, values, strict=True)
    ]
    return {
        "dataset": federation.dataset.name,
        "alpha": federation.partition.get("alpha"),
        "seed": job.seed,
        "method": one.name,
        "label": one.label,
        "params": {**asdict(one.method), **asdict(job.training)},
        "task": task.name,
        "metric": task.metric,
        "clients": clients,
        **metrics.summarise(values, local, task.higher_is_better),
        "bytes_up": bytes_up,
        "bytes_down": bytes_down,
        "partition": federation.partition,
        "versions": {
            "fedekd": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "key": key,
    }


def choose_methods(settings: Settings, task: str) -> list[Chosen]:
    """The methods asked for, Local first: every delta is measured against it."""
    chosen: dict[str, Chosen] = {}
    asked: Iterable[Any] = ("local", *settings.methods)
    for item in asked:
        if isinstance(item, str) and item in GROUPS:
            fitting = [name for name in GROUPS[item] if task in methods.get(name).tasks]
            for name in fitting:
                chosen.setdefault(name, _choose(name, methods.get(name), settings))
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


def _choose(name: str, method: Method, settings: Settings) -> Chosen:
    takes = {f.name for f in fields(method)}
    changed = {k: v for k, v in settings.parameters.get("*", {}).items() if k in takes or k not in SHORTCUTS}
    changed |= settings.parameters.get(name, {})
    other = methods.with_parameters(method, changed)
    return Chosen(
        name, other, {k: getattr(other, k) for k in changed if getattr(other, k) != getattr(method, k)}
    )


def make_job(settings: Settings, federation: Federation, method: Method, seed: int) -> Job:
    shared = {f.name: getattr(settings, f.name) for f in fields(Training)}
    return Job(
        federation,
        method,
        seed,
        Training(**shared),
        models.factory("private", settings.private),
        models.factory("proxy", settings.proxy),
    )


def run_key(one: Chosen, job: Job, data_checksum: str) -> str:
    """Names a run by everything that decides its numbers: a changed setting is another run."""
    identity = {
        "dataset": job.federation.dataset.name,
        "data": data_checksum,
        "partition": job.federation.partition,
        "seed": job.seed,
        "method": f"{type(one.method).__module__}.{type(one.method).__qualname__}",
        "params": asdict(one.method),
        "training": asdict(replace(job.training, device=job.training.device.split(":")[0])),
        "models": [f"{f.__module__}.{f.__qualname__}" for f in (job.private, job.proxy)],
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]


def fingerprint(dataset: Dataset) -> str:
    digest = hashlib.sha256()
    for array in (dataset.x, dataset.y):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]
