"""Who watches a run: a live display on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from fedekd.runs.observers import Nobody, Observer, Together
from fedekd.runs.records import Record
from fedekd.units import Unit, count, duration

QUIET_SECONDS = 60.0  # between plain lines about one long run


@contextmanager
def watch(progress: bool | None = None, also: Sequence[Observer] = ()) -> Iterator[Observer]:
    """An observer for ``runs.execute``; False means that nothing is shown. Those in ``also`` see the same."""
    observers = [_display(progress), *also]
    with ExitStack() as stack:
        for each in observers:
            if isinstance(each, AbstractContextManager):
                stack.enter_context(each)
        yield Together(observers) if also else observers[0]


def _display(progress: bool | None) -> Observer:
    if progress is False:
        return Watcher()
    if in_notebook():
        from fedekd.report.notebook import Notebook

        return Notebook()
    console = Console(stderr=True, highlight=False)
    return Live(console) if console.is_terminal and not console.is_dumb_terminal else Lines()


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this code, not a terminal's IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class Watcher(Nobody):
    """Keeps count of the work; what is shown is up to the subclass. Work is counted in samples trained on."""

    def __init__(self) -> None:
        self.runs = self.finished = self.kept = 0
        self.total = self.done = self.fresh = 0
        self.label, self.seed, self.rounds = "", 0, 0
        self.goal = 0  # what `done` must be when the current run ends
        self.began: float | None = None  # when the first client was done: what came before says nothing of the pace

    def plan(self, jobs: list[tuple[str, int, int]]) -> None:
        self.runs, self.total = len(jobs), sum(work for _, _, work in jobs)

    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None:
        self.label, self.seed, self.rounds = label, seed, rounds
        self.goal = self.done + work
        self.done += work * resumed // max(rounds, 1)

    def advance(self, round: int, client: str, samples: int) -> None:
        self.done += samples
        if self.began is None:
            self.began = time.monotonic()
        else:
            self.fresh += samples

    def finish(self, record: Record, cached: bool) -> None:
        if cached:
            self.kept += 1
        else:
            self.finished += 1
            self.done = self.goal

    def left(self) -> str:
        """The time left at the pace of this session so far; nothing before there is a pace."""
        if self.began is None or not self.fresh or self.done >= self.total:
            return ""
        pace = (time.monotonic() - self.began) / self.fresh
        return f"about {duration(pace * (self.total - self.done))} left"


class Lines(Watcher):
    """A line when a run ends, and one a minute while a long one lasts."""

    spoke = 0.0

    def say(self, text: str) -> None:
        self.spoke = time.monotonic()
        print(text, file=sys.stderr, flush=True)

    def plan(self, jobs: list[tuple[str, int, int]]) -> None:
        super().plan(jobs)
        self.say(f"training {count(len(jobs), 'run')}" if jobs else "nothing to train: every run is in the results")

    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None:
        super().begin(label, seed, work, rounds, resumed)
        if resumed:
            self.say(f"{label}, seed {seed}: goes on after round {resumed} of {rounds}")

    def advance(self, round: int, client: str, samples: int) -> None:
        super().advance(round, client, samples)
        if time.monotonic() - self.spoke > QUIET_SECONDS:
            self.say(f"{self.label}, seed {self.seed}: round {round + 1} of {self.rounds}{self._then()}")

    def finish(self, record: Record, cached: bool) -> None:
        super().finish(record, cached)
        if not cached:
            self.say(f"{self.finished}/{self.runs} {outcome(record)}{self._then()}")

    def note(self, line: str) -> None:
        self.say(line)

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

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.progress = Bar(
            BarColumn(bar_width=32),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False, style="cyan"),
            console=console,
            refresh_per_second=5,
            transient=True,
        )
        self.task = self.progress.add_task("starting", total=None, left="")

    def __enter__(self) -> Live:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def plan(self, jobs: list[tuple[str, int, int]]) -> None:
        super().plan(jobs)
        self._update(total=self.total)

    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None:
        super().begin(label, seed, work, rounds, resumed)
        self._update(description=self._current(f"round {min(resumed + 1, rounds)}/{rounds}"))

    def advance(self, round: int, client: str, samples: int) -> None:
        super().advance(round, client, samples)
        self._update(description=self._current(f"round {round + 1}/{self.rounds}, client {client}"))

    def finish(self, record: Record, cached: bool) -> None:
        super().finish(record, cached)
        if not cached:
            self.note(outcome(record))
        self._update()

    def note(self, line: str) -> None:
        self.progress.console.print(Text(line, "dim"), soft_wrap=True)

    def _current(self, where: str) -> str:
        return f"{self.finished + 1}/{self.runs} {self.label}, seed {self.seed}, {where}"

    def _update(self, **changes: Any) -> None:
        self.progress.update(self.task, completed=self.done, left=self.left(), **changes)


def outcome(record: Record) -> str:
    """A finished run in one line."""
    unit = Unit.of([record])
    result = (
        f"mean {unit.name} {unit.value(record['mean'])}{' %' if unit.higher_is_better else ''}"
        if record["method"] == "local"
        else f"Avg Δ {unit.delta(record['avg_delta'])}{' points' if unit.higher_is_better else ''}"
    )
    return f"{record['label']}, seed {record['seed']}: {result}, {duration(record['seconds'])}"
