"""A cell of a study: one dataset, alpha and seed, so one federation, and every run that is wanted on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedekd.data import PublicRows, data_folder, federate, find_public, load_dataset
from fedekd.data.clusters import by_clusters, clusters_for
from fedekd.dataset import Dataset
from fedekd.engines.rehearsal import traffic
from fedekd.federation import Federation
from fedekd.runs.plan import Run, fingerprint, runs_on
from fedekd.settings import Settings

SOURCE = ("dataset", "data", "target", "task", "clients_from", "public")
FEDERATION = ("clients", "alpha", "partition", "fraction", "split_seed", "engine", "device")


@dataclass(frozen=True, eq=False)
class Cell:
    """Settings that agree on the federation and differ in methods, parameters or training."""

    settings: tuple[Settings, ...]
    seed: int
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

    def prepared(self) -> Cell:
        """The same with its clusters, so that whoever runs it needs neither scikit-learn nor the time."""
        dataset, checksum, _ = loaded(*self.source)
        if not by_clusters(dataset, self.first.partition):
            return self
        return replace(self, clusters=clusters_for(dataset, checksum, self.split, data_folder(self.first.data)))

    def federation(self) -> Federation:
        first, (dataset, _, public) = self.first, loaded(*self.source)
        return federate(
            dataset,
            clients=first.clients, alpha=first.alpha, seed=self.split, partition=first.partition,
            clusters=self.clusters, public=public, fraction=first.fraction, fixed=first.split_seed is not None,
        )  # fmt: skip

    def runs(self, federation: Federation | None = None) -> list[Run]:
        """Each run once, Local before those that are measured against it."""
        federation, checksum = federation or self.federation(), loaded(*self.source)[1]
        found: dict[str, Run] = {}
        for settings in self.settings:
            for run in runs_on(federation, settings, self.seed, checksum):
                found.setdefault(run.key, run)
        return list(found.values())


def make_cells(grid: Iterable[Settings]) -> list[Cell]:
    """The cells of a grid, dataset by dataset, so that each dataset is loaded once."""
    found: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Settings]]] = {}
    for settings in grid:
        by_seed = found.setdefault(_values(settings, SOURCE), {})
        for seed in settings.seeds:
            key = (*_values(settings, FEDERATION), seed)
            by_seed.setdefault(key, []).append(replace(settings, seeds=(seed,)))
    return [Cell(tuple(some), some[0].seeds[0]) for cells in found.values() for some in cells.values()]


def _values(settings: Settings, names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(getattr(settings, name) for name in names)


@lru_cache(maxsize=1)
def loaded(
    dataset: str, data: str | None, target: str | None, task: str | None, clients_from: str | None, public: str | None
) -> tuple[Dataset, str, float | PublicRows | None]:
    """A dataset, its checksum and what of it is public, kept until another is asked for."""
    found = load_dataset(dataset, data_dir=data, target=target, task=task, clients_from=clients_from)
    return found, fingerprint(found), find_public(public, found, target=target, clients_from=clients_from)


# --- what a run costs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sketch:
    """A run without its data: what it is called and what it costs."""

    key: str
    local_key: str
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


def sketch(run: Run) -> Sketch:
    job, dataset = run.job, run.job.federation.dataset
    samples, alpha = job.work(), job.federation.partition["alpha"]
    cost = samples * width(dataset)
    return Sketch(run.key, run.local_key, run.label, dataset.name, alpha, job.seed, samples, cost, traffic(job))


def width(dataset: Dataset) -> int:
    return int(np.prod(dataset.x.shape[1:]))
