"""A study from its grid to its records: what is there already, what is to do, and who does it."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from fedekd.engines.job import pick_device
from fedekd.errors import FedekdError
from fedekd.runs import choice_file
from fedekd.runs.choosing import choice_of
from fedekd.runs.execution import Failure, Outcome, Started, announce
from fedekd.runs.findings import findings, told
from fedekd.runs.observers import ClientTrained, Observer, ObserverGroup, RunFailed, RunFinished
from fedekd.runs.plan import Cell
from fedekd.runs.processes import cores, over_processes
from fedekd.runs.progress_file import ProgressFile
from fedekd.runs.records import Record
from fedekd.runs.store import Store
from fedekd.runs.verdict_text import chosen
from fedekd.runs.worker import WorkItem, in_process
from fedekd.studies.grid import Study
from fedekd.studies.over_ray import over_ray
from fedekd.studies.study_plan import plan_study
from fedekd.studies.tally import Tally


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
        found = findings(self.records, folder=self.folder)
        lines += told(found)
        if (by := choice_of(self.records)) != "metric" and any("gain" in one.parts for one in found):
            lines.append(f"each client's best alone is chosen {chosen(by)}")
        return "\n".join(lines)


def run_study(
    study: Study,
    folder: str | Path | None = None,
    observer: Observer | None = None,
    workers: int | None = None,
    ray: str | None = None,
) -> StudyOutcome:
    """Do every run that the folder lacks.

    On a GPU all runs of a dataset train in stacks, in this process. On a CPU they spread over ``workers`` processes of
    one thread each (by default one for each core; 1: this process), or over the Ray cluster at ``ray``. The observer
    hears of runs that are under way at the same time.
    """
    if workers is not None and workers < 1:
        raise FedekdError(f"workers must be a whole number >= 1, got {workers}")
    workers = workers or cores()
    store = Store(folder or study.out)
    failures = Store(store.folder, "failures.jsonl")  # a log, which a later success does not change
    observer = observer or Tally()
    plan = plan_study(study, observer, keep=lambda cell: not ray and (workers == 1 or _shares_gpu(cell)))
    if plan.absent and not (plan.items or plan.failed):
        raise FedekdError(f"nothing of study {study.name} can run: {next(iter(plan.absent.values()))}")
    runs = {run.key: run for run in plan.runs}
    failed, fresh = list(plan.failed), set[str]()
    absent = [Failure("", "every run", name, None, None, reason) for name, reason in plan.absent.items()]
    for failure in (*absent, *failed):
        failures.add(asdict(failure))
    choice_file.write(store.folder, study.chosen_by)
    with ProgressFile(store.folder) as progress:
        both = ObserverGroup([observer, progress])
        earlier = announce(runs.values(), store, both)
        with closing(_spread(plan.without(earlier), store, both, workers, ray)) as outcomes:
            for outcome in outcomes:
                if isinstance(outcome, Failure):
                    failures.add(asdict(outcome))
                    failed.append(outcome)
                    work = runs[outcome.key].cost
                    both.observe(RunFailed(outcome.label, outcome.seed, work, outcome.text()))
                elif not isinstance(outcome, Started) and outcome["key"] not in fresh:
                    fresh.add(outcome["key"])
                    if ray:  # which tells of nothing in between
                        both.observe(ClientTrained(0, "", runs[outcome["key"]].cost))
                    both.observe(RunFinished(outcome, cached=False))
    return StudyOutcome(store.folder, len(runs), list(store.among(runs).values()), len(fresh), failed, plan.absent)


def _spread(
    items: Sequence[WorkItem], store: Store, observer: Observer, workers: int, ray: str | None
) -> Generator[Outcome]:
    if ray:
        waiting = [item for item in items if item.runs]
        yield from over_ray(waiting, store, ray, workers) if waiting else ()
        return
    alone = [item for item in items if item.runs and not _shares_gpu(item.cells[0])]
    yield from over_processes(alone, store, observer, workers) if workers > 1 else in_process(alone, store, observer)
    yield from in_process(_by_dataset([i for i in items if _shares_gpu(i.cells[0])]), store, observer)


def _shares_gpu(cell: Cell) -> bool:
    """Whether the cell's runs share stacks with other cells', or at least a GPU."""
    return cell.first.engine == "stacked" or pick_device(cell.first.device).type == "cuda"


def _by_dataset(items: Sequence[WorkItem]) -> list[WorkItem]:
    """The cells of a dataset as one item. Finished cells stay in it, so that a resumed stack is the same stack."""

    def alike(item: WorkItem) -> tuple[object, ...]:
        first = item.cells[0]
        return (*first.source, first.first.engine, first.first.device)

    joined = []
    for _, group in itertools.groupby(items, alike):
        several = list(group)
        parts = ([x for item in several for x in getattr(item, name)] for name in ("cells", "runs", "planned"))
        cells, runs, planned = map(tuple, parts)
        joined.append(WorkItem(cells, runs, planned))
    return [item for item in joined if item.runs]
