"""What settings ask for, to the last record: here, or side by side in processes of one thread each."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

from fedekd.dataset import Dataset
from fedekd.engines.job import bf16_warning, pick_device
from fedekd.engines.threads import WORTH_THREADS, step_work
from fedekd.errors import FedekdError
from fedekd.runs import choice_file, processes
from fedekd.runs.execution import Artifacts, Failure, Outcome, Started, announce, execute
from fedekd.runs.observers import Note, Observer, RunFinished
from fedekd.runs.plan import Cell, PlannedRun, left_out, make_cells, sending_nothing
from fedekd.runs.results import RunResults
from fedekd.runs.store import Store
from fedekd.runs.worker import WorkItem
from fedekd.settings import Settings

ENOUGH_PASSES = 300  # over the data, by all runs together: on a small table, as much work as starting processes


def run(
    settings: Settings, observer: Observer | None = None, dataset: Dataset | None = None, workers: int | None = 1
) -> RunResults:
    """Do what the settings say, skipping what their folder already holds. The first error ends it.

    ``workers``: processes side by side on a CPU; 1: this one alone; None: as many as cores, where that is faster.
    """
    if workers is not None and workers < 1:
        raise FedekdError(f"workers must be a whole number >= 1, got {workers}")
    observer = observer or Observer()
    crew = 1 if _in_stacks(settings) else workers or (processes.cores() if _passes(settings) >= ENOUGH_PASSES else 1)
    if crew > 1:
        processes.prepare()
    cells = [cell.with_clusters() for cell in make_cells([settings], dataset)]
    of_cells = [(cell, run) for cell in cells for run in cell.runs()]
    runs = [run for _, run in of_cells]
    store = Store(settings.out)
    choice_file.write(store.folder, settings.chosen_by)
    lacking = left_out(settings, runs[0].job.federation)
    for line in (lacking, sending_nothing(runs), bf16_warning(settings.precision, settings.device)):
        if line:
            observer.observe(Note(line))
    records = announce(runs, store, observer)
    for line in runs[0].job.federation.dataset.notes:
        observer.observe(Note(line))
    todo = [(cell, run) for cell, run in of_cells if run.key not in records]
    artifacts = Artifacts.of(settings)
    if len(todo) == 1 or (workers is None and not _worth_processes([run for _, run in todo], crew)):
        crew = 1
    outcomes: Generator[Outcome]
    if crew > 1:
        outcomes = _side_by_side(todo, store, observer, artifacts, crew)
    else:
        waiting = [run.key for _, run in todo]
        outcomes = execute(runs, waiting, store, observer, settings.engine, artifacts, strict=True)
    with closing(outcomes):
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                raise FedekdError(outcome.text())
            if not isinstance(outcome, Started):
                records[outcome["key"]] = outcome
                observer.observe(RunFinished(outcome, cached=False))
    return RunResults([choice_file.put_on(records[r.key], settings.chosen_by) for r in runs], store.folder)


def _in_stacks(settings: Settings) -> bool:
    return settings.engine == "stacked" or pick_device(settings.device).type == "cuda"


def _passes(settings: Settings) -> int:
    """Passes over the data, at least: a group of methods counts as one, and so does each seed's run of Local."""
    return len(settings.seeds) * (1 + len(settings.methods)) * (settings.rounds or 1) * (settings.epochs or 1)


def _worth_processes(runs: Sequence[PlannedRun], crew: int) -> bool:
    """Where there are fewer runs than cores, threads do more for steps that are large."""
    return len(runs) > crew or (len(runs) > 1 and step_work(runs[0].job) < WORTH_THREADS)


def _side_by_side(
    todo: Sequence[tuple[Cell, PlannedRun]], store: Store, observer: Observer, artifacts: Artifacts, crew: int
) -> Generator[Outcome]:
    items = [WorkItem((cell,), (run.spec(),), part=run.key, artifacts=artifacts, strict=True) for cell, run in todo]
    yield from processes.over_processes(items, store, observer, crew)
