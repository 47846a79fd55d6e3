"""Who watches a run: a live display on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from fedekd.runs.eta import QUIET_SECONDS, WorkCounter
from fedekd.runs.observers import (
    ClientTrained,
    Note,
    Observer,
    ObserverGroup,
    RunFinished,
    RunsPlanned,
    RunStarted,
    is_of,
    outcome,
    planned,
)
from fedekd.runs.records import Record

MANY_RUNS, BUSY_SECONDS = 20, 5.0  # of so many runs no more than one plain line in so long


@contextmanager
def watch(progress: bool | None = None, also: Sequence[Observer] = (), doing: str = "starting") -> Iterator[Observer]:
    """An observer for ``runner.run``; False means that nothing is shown. Those in ``also`` see the same.

    ``doing`` is shown at once, until the runs are planned.
    """
    observers = [_display(progress, doing), *also]
    with ExitStack() as stack:
        for each in observers:
            if isinstance(each, AbstractContextManager):
                stack.enter_context(each)
        yield ObserverGroup(observers) if also else observers[0]


def _display(progress: bool | None, doing: str) -> Observer:
    if progress is False:
        return Watcher()
    if in_notebook():
        from fedekd.report.notebook import Notebook

        return Notebook(doing)
    console = Console(stderr=True, highlight=False)
    return Live(console, doing) if console.is_terminal and not console.is_dumb_terminal else Lines(doing)


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this code, not a terminal's IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class Watcher(WorkCounter):
    """Keeps count of the work and of what is being trained; how that is shown is up to the subclass."""

    def __init__(self, doing: str = "starting") -> None:
        super().__init__()
        self.finished, self.kept, self.now = 0, 0, doing
        self.label, self.seed, self.rounds = "", 0, 0
        self.running: list[tuple[str, int]] = []
        self.goal: int | None = None  # what `eta.done` must be when the current run ends, where it is the only one

    def show(self, urgent: bool = True) -> None:
        """Something has changed; what is not urgent may wait until more has."""

    def show_line(self, line: str) -> None:
        """A line that stays."""

    def on_runs_planned(self, event: RunsPlanned) -> None:
        super().on_runs_planned(event)
        self.kept = event.kept
        self.show_line(planned(self.runs, self.kept))
        self.show()

    def on_run_started(self, event: RunStarted) -> None:
        self.label, self.seed, self.rounds = event.label, event.seed, event.rounds
        self.running.append((event.label, event.seed))
        self.goal = self.eta.done + event.work if len(self.running) == 1 else None
        super().on_run_started(event)
        self.now = self._current(f"round {min(event.resumed + 1, event.rounds)}/{event.rounds}")
        self.show()

    def on_client_trained(self, event: ClientTrained) -> None:
        super().on_client_trained(event)
        self.now = self._current(f"round {event.round + 1}/{self.rounds}, client {event.client}")
        self.show(urgent=False)

    def on_run_finished(self, event: RunFinished) -> None:
        if not event.cached:
            self.finished += 1
            if self.goal is not None:
                self.eta.done = self.goal
            own = event.record["label"], event.record["seed"]
            if ended := next((run for run in self.running if is_of(run, *own)), None):
                self.running.remove(ended)
            self.show_finished(event.record)
        self.show(urgent=False)

    def on_note(self, event: Note) -> None:
        self.show_line(event.line)

    def show_finished(self, record: Record) -> None:
        self.show_line(outcome(record))

    def _current(self, where: str) -> str:
        if len(self.running) > 1:  # whose round it is, nobody says
            return f"{self.finished}/{self.runs} {self._together()}"
        return f"{self.finished + 1}/{self.runs} {self.label}, seed {self.seed}, {where}"

    def _together(self) -> str:
        return "; ".join(f"{label}, seed {seed}" for label, seed in self.running)


class Lines(Watcher):
    """A line when a run ends, and one a minute while a long one lasts; of very many runs only some."""

    wrote = 0.0

    def __enter__(self) -> Lines:
        self.show_line(self.now)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show_line(self, line: str) -> None:
        self.wrote = time.monotonic()
        print(line, file=sys.stderr, flush=True)

    def on_run_started(self, event: RunStarted) -> None:
        super().on_run_started(event)
        if event.resumed:
            self.show_line(f"{self.label}, seed {self.seed}: goes on after round {event.resumed} of {self.rounds}")

    def on_client_trained(self, event: ClientTrained) -> None:
        super().on_client_trained(event)
        if time.monotonic() - self.wrote > QUIET_SECONDS:
            one = f"{self.label}, seed {self.seed}: round {event.round + 1} of {self.rounds}"
            self.show_line(f"{self._together() if len(self.running) > 1 else one}{self._then()}")

    def show_finished(self, record: Record) -> None:
        busy = self.runs > MANY_RUNS and time.monotonic() - self.wrote < BUSY_SECONDS
        if not busy or self.finished == self.runs:
            self.show_line(f"{self.finished}/{self.runs} {outcome(record)}{self._then()}")

    def _then(self) -> str:
        left = self.left()
        return f" ({left})" if left else ""


class Bar(Progress):
    """The bar with its task's description on a line of its own above it."""

    def get_renderables(self) -> Iterator[RenderableType]:
        for task in self.tasks:
            yield Text(task.description, no_wrap=True, overflow="ellipsis")
        yield self.make_tasks_table(self.tasks)


class Live(Watcher):
    """One bar over all runs and, above it, what is being trained now."""

    def __init__(self, console: Console, doing: str = "starting") -> None:
        super().__init__(doing)
        self.progress = Bar(
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False, style="cyan"),
            console=console,
            refresh_per_second=5,
            transient=True,
            expand=True,
        )
        self.task = self.progress.add_task(doing, total=None, left="")

    def __enter__(self) -> Live:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, urgent: bool = True) -> None:
        done, total = self.eta.done, self.eta.total
        self.progress.update(self.task, completed=done, total=total, description=self.now, left=self.left())

    def show_line(self, line: str) -> None:
        self.progress.console.print(Text(line, "dim"), soft_wrap=True)
