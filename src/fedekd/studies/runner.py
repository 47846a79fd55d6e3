"""A study from its grid to its records: what is there already, what is to do, and who does it."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from fedekd.engines.job import pick_device
from fedekd.errors import FedekdError
from fedekd.runs.observers import Observer, Together
from fedekd.runs.progress_file import Beacon
from fedekd.runs.store import Record, Store
from fedekd.studies.carry import Failure, Item, Started, Task, here
from fedekd.studies.grid import Study
from fedekd.studies.over_ray import over_ray
from fedekd.studies.processes import cores, over_processes
from fedekd.studies.survey import survey
from fedekd.studies.tally import Tally


class Failures(Store):
    """The failed runs of a folder, as lines of ``failures.jsonl``: a log, which a later success does not change."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self.results = self.folder / "failures.jsonl"


@dataclass(frozen=True)
class StudyOutcome:
    folder: Path
    planned: int
    records: list[Record]
    """Of this study alone, finished now or earlier."""
    fresh: int
    failed: list[Failure]
    absent: dict[str, str]

    @property
    def complete(self) -> bool:
        return not self.failed and not self.absent

    def text(self) -> str:
        where = self.folder / "results.jsonl"
        lines = [f"{len(self.records):,} of {self.planned:,} runs are in {where}, {self.fresh:,} of them new"]
        lines += [f"{name} is left out: {reason}" for name, reason in self.absent.items()]
        if self.failed:
            first = self.failed[0]
            lines.append(
                f"{len(self.failed):,} failed, see {self.folder / 'failures.jsonl'}; the first: {first.text()}; "
                "the same command tries them again"
            )
        return "\n".join(lines)


def run_study(
    study: Study,
    folder: str | Path | None = None,
    observer: Observer | None = None,
    workers: int | None = None,
    ray: str | None = None,
) -> StudyOutcome:
    """Do every run that the folder lacks.

    On a GPU all runs of a dataset train in stacks, here. On a CPU they spread over ``workers`` processes of one thread
    each (as many as there are cores; 1: this process), or over the Ray cluster at ``ray``. The observer is told of
    runs that go on at the same time.
    """
    if workers is not None and workers < 1:
        raise FedekdError(f"workers must be a whole number >= 1, got {workers}")
    store = Store(folder or study.out)
    failures, observer = Failures(store.folder), observer or Tally()
    view = survey(study, observer.note)
    if view.absent and not (view.cells or view.failed):
        raise FedekdError(f"nothing of study {study.name} can run: {next(iter(view.absent.values()))}")
    cost = {run.key: run.cost for run in view.runs}
    earlier = {record["key"]: record for record in store.records() if record["key"] in cost}
    tasks = view.tasks(earlier)
    failed, fresh = list(view.failed), set[str]()
    absent = [Failure("", "every run", name, None, None, reason) for name, reason in view.absent.items()]
    for failure in (*absent, *failed):
        failures.add(asdict(failure))
    with Beacon(store.folder) as beacon:
        both = Together([observer, beacon])
        both.plan([(run.label, run.seed, run.cost) for task in tasks for run in task.runs])
        for key, record in earlier.items():
            store.discard(key)  # a process killed at its very end may have left a checkpoint
            both.finish(record, cached=True)
        with closing(_spread(tasks, store, both, workers or cores(), ray)) as items:
            for item in items:
                if isinstance(item, Failure):
                    failures.add(asdict(item))
                    failed.append(item)
                    _tell(observer, item, cost[item.key])
                    beacon.fail(item.label, item.seed, cost[item.key])
                elif not isinstance(item, Started) and item["key"] not in fresh:
                    fresh.add(item["key"])
                    if ray:  # which tells of nothing in between
                        both.advance(0, "", cost[item["key"]])
                    both.finish(item, cached=False)
    records = {record["key"]: record for record in store.records() if record["key"] in cost}
    return StudyOutcome(store.folder, len(cost), list(records.values()), len(fresh), failed, view.absent)


def _spread(tasks: Sequence[Task], store: Store, observer: Observer, workers: int, ray: str | None) -> Generator[Item]:
    if ray:
        waiting = [task for task in tasks if task.runs]
        yield from over_ray(waiting, store, ray, workers) if waiting else ()
        return
    alone = [task for task in tasks if task.runs and not _together(task)]
    yield from over_processes(alone, store, observer, workers) if workers > 1 else here(alone, store, observer)
    yield from here(_by_dataset([task for task in tasks if _together(task)]), store, observer)


def _together(task: Task) -> bool:
    """Whether the cell's runs share stacks with other cells', or at least a GPU."""
    first = task.cells[0].first
    return first.engine == "stacked" or pick_device(first.device).type == "cuda"


def _by_dataset(tasks: Sequence[Task]) -> list[Task]:
    """The cells of a dataset as one task. Finished cells stay in it, so that a resumed stack is the same stack."""

    def alike(task: Task) -> tuple[object, ...]:
        return (*task.cells[0].source, task.cells[0].first.engine, task.cells[0].first.device)

    groups = [list(group) for _, group in itertools.groupby(tasks, alike)]
    joined = [Task(tuple(c for t in g for c in t.cells), tuple(r for t in g for r in t.runs)) for g in groups]
    return [task for task in joined if task.runs]


def _tell(observer: Observer, failure: Failure, cost: int) -> None:
    if isinstance(observer, Tally):
        observer.fail(failure.text(), cost)
    else:
        observer.note(f"failed: {failure.text()}")
