"""The same two measurements through fedekd: its planning, its serial engine, its store and its checkpoints.

    python benchmarks/ours.py throughput --data FILE    Local on one client, round after round: samples/s
    python benchmarks/ours.py job --data FILE           FedAvg over six clients: their accuracies

`fedekd run` always trains Local too, to measure FedAvg against it. No other side does that, so here only the
FedAvg run of the plan is performed.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace

import job
import numpy as np

from fedekd.data import Dataset, Split
from fedekd.engines.serial import Serial
from fedekd.runs.execution import Failure, Started, execute
from fedekd.runs.observers import Observer
from fedekd.runs.plan import PlannedRun, plan
from fedekd.runs.store import Store
from fedekd.settings import make_settings


def planned(method: str, clients: int, spec: job.Spec) -> PlannedRun:
    """The run that `fedekd run` would do, on the benchmark's own clients."""
    arrays = job.load(spec.data)
    dataset, splits = read(arrays)
    settings = make_settings(
        {
            "dataset": dataset.name,
            "methods": [method],
            "seeds": [0],
            "clients": job.CLIENTS,
            "partition": "iid",
            "rounds": spec.rounds,
            "epochs": spec.epochs,
            "batch_size": job.BATCH,
            "lr": job.LR,
            "precision": spec.precision,
        }
    )
    (run,) = (run for run in plan(settings, dataset) if run.name == method)
    federation = replace(run.job.federation, clients=splits[:clients], names=run.job.federation.names[:clients])
    return replace(run, job=replace(run.job, federation=federation))


def read(arrays: dict[str, np.ndarray]) -> tuple[Dataset, tuple[Split, ...]]:
    x = np.concatenate([arrays[f"{split}_x"].reshape(-1, 1, 28, 28) for split in ("train", "test")])
    y = np.concatenate([arrays[f"{split}_y"].reshape(-1) for split in ("train", "test")])
    train = np.arange(arrays["train_y"].size).reshape(arrays["train_y"].shape)
    test = np.arange(arrays["test_y"].size).reshape(arrays["test_y"].shape) + train.size
    splits = tuple(Split(t, t[:0], e) for t, e in zip(train, test, strict=True))
    return Dataset("benchmark", "classification", x, y, job.CLASSES), splits


def throughput(spec: job.Spec) -> None:
    engine = Serial(planned("local", 1, spec).job)
    trained = spec.epochs * len(engine.job.federation.clients[0].train)
    rates = []
    for _ in range(1 + spec.repeats):
        start = time.perf_counter()
        engine.round()
        rates.append(trained / (time.perf_counter() - start))
    job.report_throughput("fedekd", spec, rates[1:])


def fedavg(spec: job.Spec) -> None:
    run = planned("fedavg", job.CLIENTS, spec)
    with tempfile.TemporaryDirectory(prefix="fedekd-bench-") as out:
        alone = [replace(run, local_key=run.key)]
        outcomes = execute(alone, [run.key], Store(out), Observer(), "serial", strict=True)
        record = next(found for found in outcomes if not isinstance(found, (Failure, Started)))
    accuracies = [client["value"] for client in record["clients"]]
    model = run.job.private(run.job.federation.dataset.x.shape[1:], job.CLASSES)
    job.report_job("fedekd", spec, accuracies, model, run.job.work(), fedekd=record["versions"]["fedekd"])


if __name__ == "__main__":
    args, spec = job.parse(mode=("throughput", "job"))
    throughput(spec) if args.mode == "throughput" else fedavg(spec)
