"""What a study comes to: its runs by cell, and the datasets and partitions that cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from fedekd.data import catalogue
from fedekd.data.registry import recipe
from fedekd.engines.job import bf16_warning
from fedekd.errors import FedekdError, unknown
from fedekd.runs.execution import Failure
from fedekd.runs.observers import Note, Observer
from fedekd.runs.plan import Cell, PlannedRun, RunSpec, left_out, make_cells, sending_nothing
from fedekd.runs.worker import WorkItem
from fedekd.settings import Settings
from fedekd.studies.grid import Study


@dataclass(frozen=True)
class StudyPlan:
    """Every run of a study by its cell, and what could not be planned."""

    items: list[WorkItem]
    """One for each cell, with all of its runs."""
    absent: dict[str, str]
    """Datasets whose files are not here, and what to do about it."""
    failed: list[Failure]
    """Cells without a partition."""

    @property
    def runs(self) -> list[RunSpec]:
        return list({run.key: run for item in self.items for run in item.runs}.values())

    def without(self, done: Collection[str]) -> list[WorkItem]:
        """The items with the runs that are not done; some have none."""
        return [item.without(set(done)) for item in self.items]


def plan_study(study: Study, observer: Observer, keep: Callable[[Cell], bool]) -> StudyPlan:
    """Load every dataset and partition it, but train nothing. ``keep`` tells which cells this process will train."""
    found, names, seen, said = StudyPlan([], {}, []), set[str](), set[str](), set[str]()
    for cell in make_cells(study.grid):
        try:
            name = cell.data.dataset.name
        except FedekdError as error:
            name = _absent(cell.first)
            if not name:
                raise
            if name not in found.absent:
                found.absent[name] = str(error)
                observer.observe(Note(f"{name} is left out: {error}"))
            continue
        try:
            cell = cell.with_clusters()
            federation = cell.federation()
        except FedekdError as error:
            found.failed.append(Failure("", "every run", name, cell.first.alpha, cell.seed, str(error)))
            continue
        runs = cell.runs(federation)
        for settings in cell.settings:
            lacking, alone = left_out(settings, federation), sending_nothing(runs)
            for line in (lacking, alone, bf16_warning(settings.precision, settings.device)):
                if line and line not in said:
                    said.add(line)
                    observer.observe(Note(line))
        names |= {name for r in runs for name in (r.name, r.label)}
        new = {r.key: r.local_key for r in runs if r.key not in seen and _chosen(study, r)}
        seen |= new.keys()
        specs = tuple(r.spec() for r in runs if r.key in new or r.key in new.values())
        found.items.append(WorkItem((cell,), specs, tuple(runs) if keep(cell) else ()))
    for method in study.methods:
        if names and method not in names:
            raise unknown("method in --only", method, names)
    return found


def _chosen(study: Study, run: PlannedRun) -> bool:
    return not study.methods or run.name in study.methods or run.label in study.methods


def _absent(settings: Settings) -> str:
    """The name of a dataset that fedekd knows and whose files are not here; else nothing."""
    try:
        name = recipe(settings.dataset).name
    except FedekdError:
        return ""
    return name if any(entry.name == name and not entry.present for entry in catalogue(settings.data)) else ""
