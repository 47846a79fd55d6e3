"""Runs become records; what is finished is never repeated, and what was interrupted goes on where it stopped."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from fedekd import __version__, metrics
from fedekd.dataset import Dataset
from fedekd.engines.client import Client
from fedekd.engines.job import has_bf16, pick_device
from fedekd.engines.serial import Serial
from fedekd.engines.stackable import NotStackable, signature
from fedekd.engines.stacked import Stacked
from fedekd.errors import FedekdError
from fedekd.runs import details, saved_models
from fedekd.runs.observers import Nobody, Observer
from fedekd.runs.plan import Run, left_out, plan
from fedekd.runs.records import RECORD_VERSION
from fedekd.runs.results import Result
from fedekd.runs.store import Record, Store
from fedekd.settings import Settings, make_settings

CHECKPOINT_FORMAT = 3
STACK_CHECKPOINTS = 60.0  # seconds at least between checkpoints of a stack, which may hold gigabytes


@dataclass(frozen=True)
class Keep:
    """What a run leaves besides its record: details for the report, and the clients' models on these seeds."""

    details: bool = False
    seeds: frozenset[int] = frozenset()

    @classmethod
    def of(cls, settings: Settings) -> Keep:
        seeds = {"first": settings.seeds[:1], "all": settings.seeds, "none": ()}[settings.models]
        return cls(True, frozenset(seeds))


@dataclass
class Story:
    """What a worker has gone through so far, for each of its runs; it survives an interruption with the worker."""

    seconds: float
    curves: list[list[list[float]]]  # by run, round and client
    exchange: list[list[dict[str, int]]]  # by run and round

    @classmethod
    def fresh(cls, runs: int) -> Story:
        return cls(0.0, [[] for _ in range(runs)], [[] for _ in range(runs)])


NOTHING = Keep()


def run(dataset: str | Dataset = "digits", *, progress: bool = True, log_to: str = "none", **given: Any) -> Result:
    """Train the methods on every seed and compare each client with training alone.

    Takes every setting of ``fedekd run`` by its name (``methods``, ``alpha``, ``seeds``, ``rounds``, ...). Also takes
    objects where the command line takes names: a ``Dataset``, ``Method`` instances among ``methods``, and functions
    as ``private`` and ``proxy``. ``log_to`` names trackers, as ``--log-to`` does.
    """
    from fedekd import trackers
    from fedekd.report.progress import watch
    from fedekd.runs.progress_file import Beacon

    name = dataset.name if isinstance(dataset, Dataset) else dataset
    settings = make_settings({"dataset": name, **given})
    with watch(progress, [Beacon(settings.out), *trackers.choose(log_to, settings, not progress)]) as observer:
        return execute(settings, observer, dataset if isinstance(dataset, Dataset) else None)


def execute(settings: Settings, observer: Observer | None = None, dataset: Dataset | None = None) -> Result:
    """Do what the settings say, skipping what their folder already holds."""
    observer = observer or Nobody()
    runs = plan(settings, dataset)
    store = Store(settings.out)
    if lacking := left_out(settings, runs[0].job.federation):
        observer.note(lacking)
    if settings.precision == "bf16" and not has_bf16(runs[0].job.training.device):
        observer.note("this CPU has no bf16 instructions: bf16 is emulated here, and slower than fp32")
    records = perform(runs, store, observer, settings.engine, Keep.of(settings))
    return Result([records[r.key] for r in runs])


def perform(
    runs: Sequence[Run], store: Store, observer: Observer, engine: str = "auto", keep: Keep = NOTHING
) -> dict[str, Record]:
    """The records of all these runs by key: from the store where they are, by running where they are not."""
    wanted = {r.key for r in runs}
    records = {record["key"]: record for record in store.records() if record.get("key") in wanted}
    waiting = [r for r in runs if r.key not in records]
    observer.plan([(r.label, r.job.seed, r.job.work()) for r in waiting])
    for key in list(records):
        store.discard(key)  # a process killed at its very end may have left a checkpoint
        observer.finish(records[key], cached=True)
    for group in in_groups(waiting, engine):
        for record in run_group(group, store, observer, records, engine, keep):
            records[record["key"]] = record
            observer.finish(record, cached=False)
    return records


def in_groups(runs: Sequence[Run], engine: str) -> Iterator[list[Run]]:
    """Runs that train together, Local before the runs that are measured against it."""
    if not runs:
        return
    if not stacks(runs[0], engine):
        yield from ([r] for r in runs)
        return
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for r in sorted(runs, key=lambda r: r.key != r.local_key):
        groups.setdefault(signature(r.job), []).append(r)
    yield from groups.values()


def stacks(run: Run, engine: str) -> bool:
    """On a GPU clients are stacked; on a CPU one after another is faster."""
    return engine == "stacked" or (engine == "auto" and pick_device(run.job.training.device).type == "cuda")


def run_group(
    runs: Sequence[Run],
    store: Store,
    observer: Observer,
    known: Mapping[str, Record],
    engine: str,
    keep: Keep = NOTHING,
) -> Iterator[Record]:
    """Runs that train together, from their last checkpoint or from the start, to their records."""
    key, rounds = stack_key(runs), runs[0].job.training.rounds
    try:
        worker, story = _resumed(runs, store.restore(key), observer, engine)
    except NotStackable as reason:
        observer.note(f"{runs[0].label}: serial engine, since {reason}")
        for r in runs:
            yield from run_group([r], store, observer, known, "serial", keep)
        return
    label = runs[0].label if len(runs) == 1 else f"{runs[0].label} and {len(runs) - 1} more"
    observer.begin(label, runs[0].job.seed, sum(r.job.work() for r in runs), rounds, worker.round_number)
    began = saved_at = time.perf_counter()
    while worker.round_number < rounds:
        before = [(door.bytes_up, door.bytes_down) for door in worker.doors]
        worker.round()
        for history, door, (up, down) in zip(story.exchange, worker.doors, before, strict=True):
            history.append({"up": door.bytes_up - up, "down": door.bytes_down - down})
        if worker.round_number == rounds:
            break
        if keep.details:
            _tell(observer, runs, worker, worker.evaluate(), story)
        if len(runs) == 1 or time.perf_counter() - saved_at > STACK_CHECKPOINTS:
            saved_at = time.perf_counter()
            so_far = replace(story, seconds=story.seconds + saved_at - began)
            store.save(key, {"format": CHECKPOINT_FORMAT, "engine": worker.state(), "story": vars(so_far)})
    with worker.personalised():  # once, for the record, the details and the models
        values = worker.evaluate()
        _tell(observer, runs, worker, values, story)
        seconds = story.seconds + time.perf_counter() - began
        for j, (r, own, door) in enumerate(zip(runs, values, worker.doors, strict=True)):
            alone = own if r.key == r.local_key else [client["value"] for client in known[r.local_key]["clients"]]
            record = make_record(r, own, alone, door.bytes_up, door.bytes_down, seconds / len(runs), worker.trust[j])
            if keep.details:
                clients = worker.clients_of(j)
                found = details.describe(r.key, clients, story.curves[j], worker.trust[j], story.exchange[j])
                _leave(store, observer, record, found, clients if r.job.seed in keep.seeds else ())
            store.add(record)
            yield record
    store.discard(key)


def _resumed(runs: Sequence[Run], saved: Any, observer: Observer, engine: str) -> tuple[Serial | Stacked, Story]:
    """Where a checkpoint left off; at the start if there is none, or one that the code here cannot go on from."""

    def fresh() -> Serial | Stacked:
        if stacks(runs[0], engine):
            return Stacked([r.job for r in runs], observer.advance)
        return Serial(runs[0].job, observer.advance)

    worker = fresh()
    try:
        if saved is not None and saved["format"] == CHECKPOINT_FORMAT:
            worker.restore(saved["engine"])
            return worker, Story(**saved["story"])
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError):
        worker = fresh()  # the first may be half restored
    if saved is not None:
        observer.note(f"{runs[0].label}: starts anew, since its checkpoint is of another version or engine")
    return worker, Story.fresh(len(runs))


def _leave(store: Store, observer: Observer, record: Record, found: details.Details, clients: Sequence[Client]) -> None:
    """Write the details and models. What cannot be written is not worth the run, whose record takes less room."""
    try:
        details.write(store.folder, record["key"], found)
        for position, client in enumerate(clients):
            if client.models:
                saved_models.write(store.folder, record, position, client)
    except FedekdError as error:
        observer.note(f"{record['label']}: the run is kept, but not all it leaves: {error}")


def _tell(
    observer: Observer, runs: Sequence[Run], worker: Serial | Stacked, values: list[list[float]], story: Story
) -> None:
    for r, own, curve, trust in zip(runs, values, story.curves, worker.trust, strict=True):
        curve.append(own)
        names, now = r.job.federation.names, worker.round_number
        seen = trust[-1]["clients"] if trust and trust[-1]["round"] == now else None
        by_name = dict(zip(names, seen, strict=True)) if seen else None
        observer.measured(r.label, r.job.seed, now, dict(zip(names, own, strict=True)), by_name)


def stack_key(runs: Sequence[Run]) -> str:
    """The name of a group's checkpoint."""
    return runs[0].key if len(runs) == 1 else hashlib.sha256("".join(r.key for r in runs).encode()).hexdigest()[:16]


def make_record(
    run: Run, values: list[float], local: list[float], bytes_up: int, bytes_down: int, seconds: float, trust: list[Any]
) -> Record:
    federation, task = run.job.federation, run.job.task
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
    record = {
        "version": RECORD_VERSION,
        "dataset": federation.dataset.name,
        "alpha": federation.partition.get("alpha"),
        "seed": run.job.seed,
        "method": run.name,
        "label": run.label,
        "params": {**asdict(run.job.method), **asdict(run.job.training)},
        "task": task.name,
        "metric": task.metric,
        "clients": clients,
        **metrics.summarise(values, local, task.higher_is_better),
        "bytes_up": bytes_up,
        "bytes_down": bytes_down,
        "seconds": seconds,
        "trust": [{name: value for name, value in entry.items() if name != "clients"} for entry in trust],
        "partition": federation.partition,
        "versions": {
            "fedekd": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "key": run.key,
    }
    return cast("Record", record)
