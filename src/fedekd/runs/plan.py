"""What is to be run: settings become cells and their runs, each named by everything that decides its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedekd import methods, models
from fedekd.data import PublicRows, data_folder, federate, find_public, load_dataset
from fedekd.data.clusters import by_clusters, clusters_for
from fedekd.data.partition import Fold
from fedekd.data.registry import is_named
from fedekd.dataset import Dataset, Reading
from fedekd.engines.job import Job, Training
from fedekd.engines.rehearsal import traffic
from fedekd.errors import FedekdError, unknown
from fedekd.exchange import exchanges
from fedekd.federation import Federation
from fedekd.methods.base import Method
from fedekd.methods.twins import check_taught
from fedekd.robust import check_enough
from fedekd.runs.aggregate import in_one
from fedekd.runs.alone import ALONE
from fedekd.runs.run_key import fingerprint, model_titles, own_code, run_key
from fedekd.settings import MANY, READING, SHORTCUTS, Settings
from fedekd.units import METRICS

SMOOTH = ("local-smooth-tenth", "local-smooth-quarter", "local-smooth")  # of what a client could do alone
SUFFICES = {"": ("",), "rows": ("", "rows"), "labels": ("", "rows", "labels")}  # needs that public rows meet
SOURCE = ("dataset", "data", "target", "task", "clients_from", "group", "subgroups", *READING, "public")
"""What decides the data."""
FEDERATION = ("clients", "alpha", "partition", "fraction", "split_seed", "folds", "engine", "device")
"""And how it is dealt out."""


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
class RunSpec:
    """One dataset, alpha, seed and method, without the data: what the run is called and what it costs."""

    key: str
    local_key: str
    """Of the run of Local that it is measured against."""
    label: str
    dataset: str
    alpha: float | None
    seed: int
    samples: int
    """Trained on, counting every pass."""
    cost: int
    """Samples times their width, which is what time goes with."""
    traffic: int
    """Bytes up and down."""
    own: tuple[tuple[str, str], ...]
    """What is not fedekd's, for its record: models by name, data and code by checksums."""


@dataclass(frozen=True)
class PlannedRun(RunSpec):
    """A run that can be trained."""

    name: str
    job: Job

    @classmethod
    def of(cls, chosen: Chosen, job: Job, key: str, local_key: str, traffic: int, data: str | None) -> PlannedRun:
        """``data``: the checksum of the user's own."""
        dataset, alpha, samples = job.federation.dataset.name, job.federation.partition["alpha"], job.work()
        names = {role: in_one(model_titles(job, role)) for role in ("private", "proxy")}
        own = {**names, "data": data, "code": own_code(job.method)}
        told = tuple((name, value) for name, value in own.items() if value)
        about = (key, local_key, chosen.label, dataset, alpha, job.seed, samples, samples * width(job), traffic, told)
        return cls(*about, chosen.name, job)

    def spec(self) -> RunSpec:
        return RunSpec(*(getattr(self, field.name) for field in fields(RunSpec)))


def width(job: Job) -> int:
    return math.prod(job.federation.dataset.x.shape[1:])


class LoadedData(NamedTuple):
    """A dataset, its checksum and what of it is public."""

    dataset: Dataset
    checksum: str
    public: float | PublicRows | None


@dataclass(frozen=True, eq=False)
class Cell:
    """One dataset, alpha and seed, so one federation, with settings that differ in methods, parameters or training.

    Another process can build the runs of a cell from it, unless the dataset was ``given`` as an object.
    """

    settings: tuple[Settings, ...]
    seed: int
    given: LoadedData | None = None
    clusters: np.ndarray | None = None  # of a regression's rows, where the partition needs them

    @property
    def first(self) -> Settings:
        return self.settings[0]

    @property
    def source(self) -> tuple[Any, ...]:
        return _values(self.first, SOURCE)

    @property
    def name(self) -> str:
        return repr((*self.source, *_values(self.first, FEDERATION), self.seed))

    @property
    def split(self) -> int:
        """The seed of the federation."""
        return self.first.seed_of_split(self.seed)

    @property
    def data(self) -> LoadedData:
        return self.given or _loaded(*self.source)

    def with_clusters(self) -> Cell:
        """The same with its clusters, so that whoever runs it needs neither scikit-learn nor the time."""
        dataset, checksum, _ = self.data
        if self.given or self.clusters is not None or not by_clusters(dataset, self.first.partition):
            return self
        return replace(self, clusters=clusters_for(dataset, checksum, self.split, data_folder(self.first.data)))

    def federation(self) -> Federation:
        first, (dataset, _, public) = self.first, self.data
        return federate(
            dataset,
            clients=first.clients,
            alpha=first.alpha,
            seed=self.split,
            partition=first.partition,
            clusters=self.clusters,
            public=public,
            fraction=first.fraction,
            fixed=first.split_seed is not None,
            fold=None if first.folds is None else Fold(self.seed % first.folds, first.folds),
        )

    def runs(self, federation: Federation | None = None) -> list[PlannedRun]:
        """Each run once, Local before those that are measured against it; every one has passed a dry pass."""
        federation, found = federation or self.federation(), dict[str, PlannedRun]()
        for settings in self.settings:
            chosen = choose_methods(settings, federation.dataset.task, public_rows(federation))
            jobs = [make_job(settings, federation, one.method, self.seed) for one in chosen]
            sent = [traffic(job) for job in jobs]  # found by the dry pass
            for one in chosen:
                check_taught(one.method, jobs[0].training.rounds)
            keys = [run_key(job, self.data.checksum) for job in jobs]
            data = None if self.given is None and is_named(self.first.dataset) else self.data.checksum
            for one, job, key, bytes_ in zip(chosen, jobs, keys, sent, strict=True):
                found.setdefault(key, PlannedRun.of(one, job, key, keys[0], bytes_, data))
        return list(found.values())


def plan(settings: Settings, dataset: Dataset | None = None) -> list[PlannedRun]:
    """The runs that the settings ask for: seed by seed, Local first."""
    return [run for cell in make_cells([settings], dataset) for run in cell.with_clusters().runs()]


def make_cells(grid: Sequence[Settings], dataset: Dataset | None = None) -> list[Cell]:
    """The cells of a grid, dataset by dataset, so that each is loaded once; ``dataset`` stands for the one named."""
    _loaded.cache_clear()  # a file may have changed since an earlier plan
    given = load(grid[0], dataset) if dataset else None
    found: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Settings]]] = {}
    for settings in grid:
        by_seed = found.setdefault(_values(settings, SOURCE), {})
        for seed in settings.seeds:
            key = (*_values(settings, FEDERATION), seed)
            by_seed.setdefault(key, []).append(replace(settings, seeds=(seed,)))
    return [Cell(tuple(some), some[0].seeds[0], given) for cells in found.values() for some in cells.values()]


def load(settings: Settings, dataset: Dataset | None = None) -> LoadedData:
    """The dataset that the settings name, or the given one, with what they say is public."""
    target, clients_from = settings.target, settings.clients_from
    if dataset is None:
        dataset = load_dataset(
            settings.dataset,
            data_dir=settings.data,
            target=target,
            task=settings.task,
            clients_from=clients_from,
            group=settings.group,
            subgroups=settings.subgroups,
            reading=Reading.of(settings),
        )
    public = find_public(settings.public, dataset, target=target, clients_from=clients_from)
    return LoadedData(dataset, fingerprint(dataset), public)


@lru_cache(maxsize=1)
def _loaded(*source: Any) -> LoadedData:
    """The data of the last source that was asked for is kept."""
    return load(Settings(**dict(zip(SOURCE, source, strict=True))))


def _values(settings: Settings, names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(getattr(settings, name) for name in names)


# --- methods and jobs ---------------------------------------------------------------------------------------


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
                    _add(chosen, _choose(name, method, settings))
        elif isinstance(item, str):
            _add(chosen, _choose(item, methods.get(item), settings))
        else:
            _add(chosen, _given(item, settings))
    names = {one.name for one in chosen.values()}
    names |= {name.partition("@")[0] for name in names}  # a twin has its method's parameters
    for name in settings.parameters:
        if name != "*" and name not in names:
            run = ", ".join(sorted(names))
            raise FedekdError(f"parameters are given for {name!r}, which is not among the methods of the run: {run}")
    if settings.alone == "menu":
        chosen = _with_menu(chosen, settings)
    for one in chosen.values():
        one.method.check(task)
    return list(chosen.values())


def _with_menu(chosen: Mapping[str, Chosen], settings: Settings) -> dict[str, Chosen]:
    """The methods with all that a client could do alone: Local with smoothed targets, and each method's twin."""
    found = {"local": chosen["local"]}
    for name in SMOOTH:
        if not any(one.name == name for one in chosen.values()):
            _add(found, _choose(name, methods.get(name), settings))
    for one in chosen.values():
        _add(found, one)
        if has_twin(one.method, settings.rounds or 1):
            _add(found, Chosen(f"{one.name}{ALONE}", methods.twin(one.method, "alone"), one.changed))
    return found


def has_twin(method: Method, rounds: int) -> bool:
    """Whether there is something to take away: a method that exchanges nothing is its own twin."""
    return not method.twin and bool(exchanges(method, rounds))


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


def sending_nothing(runs: Iterable[PlannedRun]) -> str:
    """A line about the user's own methods that exchange nothing, which may be a mistake."""
    own = [r for r in runs if not type(r.job.method).__module__.startswith("fedekd.") and not r.job.method.twin]
    names = dict.fromkeys(r.label for r in own if not r.traffic)
    what = "their steps have" if len(names) > 1 else "its steps have"
    return f"{', '.join(names)}: {what} no Exchange, so this is training alone and gets no verdict" if names else ""


def public_rows(federation: Federation) -> str:
    """What a federation has of public rows, in the words of ``Method.public``."""
    if not len(federation.public):
        return ""
    return "labels" if federation.public_labelled else "rows"


def _add(chosen: dict[str, Chosen], one: Chosen) -> None:
    """By label: a method may be there with several values of a parameter."""
    other = chosen.setdefault(one.label, one)
    if type(other.method) is not type(one.method):
        raise FedekdError(f"two methods are called {one.label!r}; give the class of one its own `name`")


def _given(item: Any, settings: Settings) -> Chosen:
    """An instance, whose label names what is not its class's default, or a class."""
    if isinstance(item, type) and issubclass(item, Method):
        item = item()
    if not isinstance(item, Method):
        raise FedekdError(f"methods takes names and instances of Method, got {item!r}")
    chosen = _choose(item.name or type(item).__name__.lower(), item, settings)
    own = {f.name: getattr(chosen.method, f.name) for f in fields(item) if getattr(chosen.method, f.name) != f.default}
    return replace(chosen, changed=own)


def _choose(name: str, method: Method, settings: Settings) -> Chosen:
    takes = {f.name for f in fields(method)}
    changed = {k: v for k, v in settings.parameters.get("*", {}).items() if k in takes or k not in SHORTCUTS}
    changed |= {**settings.parameters.get(name.partition("@")[0], {}), **settings.parameters.get(name, {})}
    other = methods.with_parameters(method, changed)
    return Chosen(name, other, {k: getattr(other, k) for k in changed if getattr(other, k) != getattr(method, k)})


def make_job(settings: Settings, federation: Federation, method: Method, seed: int) -> Job:
    shared = {f.name: getattr(settings, f.name) for f in fields(Training)}
    check_enough(settings.combine, len(federation.clients), settings.participation)
    if settings.measure_every is None:
        last_alone = len(federation.clients) >= MANY and not settings.choose_rounds
        shared["measure_every"] = shared["rounds"] if last_alone else 1
    shared["metric"] = _metric(settings.metric, federation.dataset.task)
    private, proxy = (models.factory(role, getattr(settings, role)) for role in ("private", "proxy"))
    return Job(federation, method, seed, Training(**shared), private, proxy)


def _metric(name: str | None, task: str) -> str | None:
    """None if it is the task's own metric, so that naming that one changes nothing."""
    known = [metric for metric, about in METRICS.items() if about.task == task]
    if name is not None and name not in known:
        raise unknown(f"metric of a {task}", name, known)
    return None if name == known[0] else name
