"""Runs become records; what is finished is never repeated, and what was interrupted goes on where it stopped."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch

from fedekd import __version__, metrics
from fedekd.engines.job import Measured, pick_device
from fedekd.engines.serial import Serial
from fedekd.engines.stackable import NotStackable, signature
from fedekd.engines.stacked import Stacked
from fedekd.engines.threads import fitting_threads
from fedekd.errors import FedekdError, in_words
from fedekd.runs import answers, details, saved_models
from fedekd.runs.choosing import option
from fedekd.runs.current import asked_again
from fedekd.runs.history import History
from fedekd.runs.observers import ClientTrained, Note, Observer, RoundMeasured, RunFinished, RunsPlanned, RunStarted
from fedekd.runs.plan import PlannedRun, RunSpec, width
from fedekd.runs.records import RECORD_VERSION, Record
from fedekd.runs.run_key import model_titles
from fedekd.runs.store import Store
from fedekd.settings import MANY, Settings
from fedekd.units import METRICS

CHECKPOINT_FORMAT = 3
STACK_CHECKPOINTS = 60.0  # seconds at least between checkpoints of a stack, which may hold gigabytes
MODELS = 540  # in one stack: enough to fill a GPU, few enough that records come steadily


@dataclass(frozen=True)
class Artifacts:
    """What a run leaves besides its record: details for the report, with pictures of training samples where they are
    asked for, and the clients' models on these seeds."""

    details: bool = False
    seeds: frozenset[int] = frozenset()
    thumbnails: bool = False

    @property
    def training_rows(self) -> int:
        """How many of each client's rows the training loss is measured on: so few that it costs almost nothing."""
        return 200 if self.details else 0

    def keeps(self, run: PlannedRun) -> bool:
        """Whether the run's models are kept."""
        return run.seed in self.seeds and len(run.job.federation.clients) < MANY

    @classmethod
    def of(cls, settings: Settings) -> Artifacts:
        seeds = {"first": settings.seeds[:1], "all": settings.seeds, "none": ()}[settings.models]
        return cls(True, frozenset(seeds), settings.thumbnails)


@dataclass(frozen=True)
class Failure:
    """A run that ended in an error, or a whole cell or dataset; the next call of the study tries it again."""

    key: str
    label: str
    dataset: str
    alpha: float | None
    seed: int | None
    error: str
    time: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    @classmethod
    def of(cls, run: RunSpec, error: Exception | str) -> Failure:
        return cls(run.key, run.label, run.dataset, run.alpha, run.seed, in_words(error))

    def text(self) -> str:
        alpha = "" if self.alpha is None else f" α={self.alpha:g}"
        seed = "" if self.seed is None else f" seed {self.seed}"
        return f"{self.dataset}{alpha}{seed} {self.label}: {self.error}"


@dataclass(frozen=True)
class Started:
    """These runs are being trained now: what is to blame if their process dies."""

    keys: tuple[str, ...]


Outcome = Record | Failure | Started
NOTHING = Artifacts()


def announce(runs: Collection[RunSpec], store: Store, observer: Observer) -> dict[str, Record]:
    """Tell the observer what is to be done and what is done already. Returns the records of the latter by key."""
    known = asked_again(runs, store)
    observer.observe(RunsPlanned([(r.label, r.seed, r.cost) for r in runs if r.key not in known], len(known)))
    for key, record in known.items():
        store.discard(key)  # a process killed at its very end may have left a checkpoint
        observer.observe(RunFinished(record, cached=True))
    return known


def execute(
    runs: Sequence[PlannedRun],
    wanted: Collection[str],
    store: Store,
    observer: Observer,
    engine: str,
    artifacts: Artifacts = NOTHING,
    strict: bool = False,
) -> Generator[Outcome]:
    """A record or a failure for each of the runs that are wanted, Local first. Runs of one stack come together.

    ``runs`` are all that were planned with them, so that a resumed stack is the same stack. ``strict`` raises the first
    error; otherwise a stack that fails is halved until the runs that fail stand alone.
    """
    known = store.among({r.key for r in runs})
    yield from (known[key] for key in wanted if key in known)  # what another process has done meanwhile

    def attempt(stack: Sequence[PlannedRun]) -> Iterator[Outcome]:
        coming = known.keys() | {r.key for r in stack}
        for r in stack:
            if r.local_key not in coming:
                yield Failure.of(r, "Local failed, and every Δ is measured against it")
        stack = [r for r in stack if r.local_key in coming]
        if not stack:
            return
        yield Started(tuple(r.key for r in stack))
        alone = not stacks(stack[0], engine)
        try:
            with fitting_threads(stack[0].job) if alone else nullcontext():
                for record in train_together(stack, store, observer, known, engine, artifacts):
                    known[record["key"]] = record
                    yield record
        except Exception as error:
            if strict:
                raise
            if len(stack) == 1:
                yield Failure.of(stack[0], error)
                return
        rest = [r for r in stack if r.key not in known]
        if rest:
            store.discard(stack_key(stack))
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            half = (len(rest) + 1) // 2
            yield from attempt(rest[:half])
            yield from attempt(rest[half:])

    for whole in in_stacks(runs, engine):
        if any(r.key in known for r in whole):  # no longer the stack that may have left a checkpoint
            store.discard(stack_key(whole))
        yield from attempt([r for r in whole if r.key in wanted and r.key not in known])


def in_stacks(runs: Sequence[PlannedRun], engine: str) -> Iterator[Sequence[PlannedRun]]:
    """Runs that train together, Local before the runs that are measured against it."""
    yield from ([r] for r in runs if not stacks(r, engine))
    groups: dict[tuple[Any, ...], list[PlannedRun]] = {}
    for r in sorted((r for r in runs if stacks(r, engine)), key=lambda r: r.key != r.local_key):
        groups.setdefault(signature(r.job), []).append(r)
    for group in groups.values():
        most = max(1, MODELS // len(group[0].job.federation.clients))
        yield from (group[start : start + most] for start in range(0, len(group), most))


def stacks(run: PlannedRun, engine: str) -> bool:
    """Whether clients are stacked: on a GPU, unless the engine is named; on a CPU one after another is faster."""
    if engine != "auto":
        return engine == "stacked"
    return pick_device(run.job.training.device).type == "cuda"


def train_together(
    runs: Sequence[PlannedRun],
    store: Store,
    observer: Observer,
    known: Mapping[str, Record],
    engine: str,
    artifacts: Artifacts,
) -> Iterator[Record]:
    """Runs of one stack, from their last checkpoint or from the start, to their records."""
    key, training = stack_key(runs), runs[0].job.training
    try:
        worker, history = _resumed(runs, store.restore(key), observer, engine)
    except NotStackable as reason:
        observer.observe(Note(f"{runs[0].label}: serial engine, since {reason}"))
        for r in runs:
            yield from train_together([r], store, observer, known, "serial", artifacts)
        return
    label = runs[0].label if len(runs) == 1 else f"{runs[0].label} and {len(runs) - 1} more"
    work = sum(r.cost for r in runs)
    observer.observe(RunStarted(label, runs[0].seed, work, training.rounds, worker.round_number))
    began = time.perf_counter()
    _train(runs, worker, history, began, store, observer, artifacts)
    with worker.personalised():  # once, for the record, the details and the models
        measured = _checked(runs, worker.measure(artifacts.training_rows), training.rounds)
        history.add(training.rounds, measured, training)
        _tell(observer, runs, worker, history)
        seconds = history.seconds + time.perf_counter() - began
        for j, (r, door) in enumerate(zip(runs, worker.doors, strict=True)):
            own = history.clients(j, r.job, measured[j])
            values = [client["value"] for client in own]
            alone = values if r.key == r.local_key else [client["value"] for client in known[r.local_key]["clients"]]
            record = make_record(r, own, alone, door.bytes_up, door.bytes_down, seconds / len(runs), worker.trust[j])
            if artifacts.details:
                _leave(j, r, record, worker, history, store, observer, artifacts)
            if training.metric:
                answers.write(store.folder, r.key, history.test_rows(j, r.job, measured[j]))
            store.add(record)
            yield record
    store.discard(key)


def _train(
    runs: Sequence[PlannedRun],
    worker: Serial | Stacked,
    history: History,
    began: float,
    store: Store,
    observer: Observer,
    artifacts: Artifacts,
) -> None:
    """All rounds, with checkpoints on the way; the last is not measured here."""
    training, saved_at = runs[0].job.training, began
    while worker.round_number < training.rounds:
        before = [(door.bytes_up, door.bytes_down) for door in worker.doors]
        worker.round()
        for exchanged, door, (up, down) in zip(history.exchange, worker.doors, before, strict=True):
            exchanged.append({"up": door.bytes_up - up, "down": door.bytes_down - down})
        if worker.round_number == training.rounds:
            return
        if worker.round_number % training.measure_every == 0:
            _measure(runs, worker, history, observer, artifacts)
        few = len(runs) == 1 and len(runs[0].job.federation.clients) < MANY
        if few or time.perf_counter() - saved_at > STACK_CHECKPOINTS:
            saved_at = time.perf_counter()
            so_far = replace(history, seconds=history.seconds + saved_at - began)
            state = {"format": CHECKPOINT_FORMAT, "engine": worker.state(), "story": vars(so_far)}
            store.save(stack_key(runs), state)


def _measure(
    runs: Sequence[PlannedRun],
    worker: Serial | Stacked,
    history: History,
    observer: Observer,
    artifacts: Artifacts,
) -> None:
    """Measure all clients after a round that is not the last."""
    training = runs[0].job.training
    given_back = artifacts.details and len(runs[0].job.federation.clients) < MANY
    keeps = [given_back and (training.choose_rounds or artifacts.keeps(r)) for r in runs]
    with worker.personalised() if any(keeps) else nullcontext():  # what is kept is what was measured
        measured = _checked(runs, worker.measure(artifacts.training_rows), worker.round_number)
        better = history.add(worker.round_number, measured, training)
        if any(keeps):
            history.keep(worker, [own if kept else [] for own, kept in zip(better, keeps, strict=True)])
    if artifacts.details:
        _tell(observer, runs, worker, history)


def _resumed(
    runs: Sequence[PlannedRun], saved: Any, observer: Observer, engine: str
) -> tuple[Serial | Stacked, History]:
    """The engine as the checkpoint left it; at the start if there is none, or one that this code cannot go on from."""
    weight = width(runs[0].job)

    def advance(round: int, client: str, samples: int) -> None:
        observer.observe(ClientTrained(round, client, samples * weight))

    def fresh() -> Serial | Stacked:
        if stacks(runs[0], engine):
            return Stacked([r.job for r in runs], advance)
        return Serial(runs[0].job, advance)

    worker = fresh()
    try:
        if saved is not None and saved["format"] == CHECKPOINT_FORMAT:
            worker.restore(saved["engine"])
            return worker, History(**saved["story"])
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError):
        worker = fresh()  # the first may be half restored
    if saved is not None:
        observer.observe(Note(f"{runs[0].label}: starts anew, since its checkpoint is of another version or engine"))
    return worker, History.fresh(len(runs))


def _checked(
    runs: Sequence[PlannedRun], measured: Sequence[Sequence[Measured]], round: int
) -> Sequence[Sequence[Measured]]:
    """Training and uploads are checked where they happen; what a server combines, and ``predict``, only here."""
    for r, own in zip(runs, measured, strict=True):
        for name, one in zip(r.job.federation.names, own, strict=True):
            if np.isnan(one.errors).any() or np.isnan(one.val_losses).any():
                raise FedekdError(
                    f"{r.label}: client {name} predicts NaN after round {round}; look at what the server combines and "
                    "at `predict`, or lower --lr"
                )
    return measured


def _leave(
    j: int,
    run: PlannedRun,
    record: Record,
    worker: Serial | Stacked,
    history: History,
    store: Store,
    observer: Observer,
    artifacts: Artifacts,
) -> None:
    """Write the details and models of the stack's ``j``-th run, unless its clients are very many. What cannot be
    written is not worth the run, whose record takes less room."""
    number, training = len(record["clients"]), run.job.training
    if number >= MANY:
        line = f"{run.label}: {number:,} clients: neither their models nor details for the page are kept"
        observer.observe(Note(line))
        return
    clients = worker.clients_of(j)
    judged = [option(record, k).round for k in range(number)]
    if training.choose_rounds:
        history.give_back(j, clients, judged)
    found = details.describe(clients, history.curves[j], worker.trust[j], history.exchange[j], artifacts.thumbnails)
    if len(history.training[j]) == len(history.measured):
        found["train_loss"] = history.training[j]
    if training.measure_every != 1:
        found["rounds"] = history.measured
    history.give_back(j, clients, judged)  # a model is of the round that verdicts take
    try:
        details.write(store.folder, record["key"], found)
        for position, client in enumerate(clients if artifacts.keeps(run) else ()):
            if client.models:
                saved_models.write(store.folder, record, position, client)
    except FedekdError as error:
        observer.observe(Note(f"{record['label']}: the run is kept, but not all it leaves: {error}"))


def _tell(observer: Observer, runs: Sequence[PlannedRun], worker: Serial | Stacked, history: History) -> None:
    for r, curve, trust in zip(runs, history.curves, worker.trust, strict=True):
        names, now, own = r.job.federation.names, worker.round_number, curve[-1]
        seen = trust[-1]["clients"] if trust and trust[-1]["round"] == now else None
        by_name = dict(zip(names, seen, strict=True)) if seen else None
        observer.observe(RoundMeasured(r.label, r.seed, now, dict(zip(names, own, strict=True)), by_name))


def stack_key(runs: Sequence[PlannedRun]) -> str:
    """The name of a group's checkpoint."""
    return runs[0].key if len(runs) == 1 else hashlib.sha256("".join(r.key for r in runs).encode()).hexdigest()[:16]


def make_record(
    run: PlannedRun,
    own: Sequence[dict[str, Any]],
    local: list[float],
    bytes_up: int,
    bytes_down: int,
    seconds: float,
    trust: list[Any],
) -> Record:
    """``own``: each client's numbers with the method, ``local``: its metric with Local."""
    federation, task = run.job.federation, run.job.task
    metric = run.job.training.metric or task.metric
    values = [client["value"] for client in own]
    titles = model_titles(run.job) if run.job.method.roles else []
    named = [{"model": title} for title in titles] or [{} for _ in own]
    clients = [
        {
            "id": name,
            **model,
            "n_train": len(split.train),
            "n_val": len(split.val),
            "n_test": len(split.test),
            "local": alone,
            "value": client["value"],
            "delta": client["value"] - alone,
            **client,
        }
        for name, split, alone, client, model in zip(
            federation.names, federation.clients, local, own, named, strict=True
        )
    ]
    record = {
        "version": RECORD_VERSION,
        "dataset": federation.dataset.name,
        "alpha": federation.partition.get("alpha"),
        "seed": run.seed,
        "method": run.name,
        "label": run.label,
        "params": {**asdict(run.job.method), **asdict(run.job.training)},
        "task": task.name,
        "metric": metric,
        "clients": clients,
        **metrics.summarise(values, local, METRICS[metric].higher_is_better),
        "bytes_up": bytes_up,
        "bytes_down": bytes_down,
        "seconds": seconds,
        "trust": [{name: value for name, value in entry.items() if name != "clients"} for entry in trust],
        "partition": federation.partition,
        **dict(run.own),
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
