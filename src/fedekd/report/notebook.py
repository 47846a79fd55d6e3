"""Progress in a notebook: one output that is updated in place. Needs no widgets."""

from __future__ import annotations

import time
from html import escape

from fedekd.report.progress import Watcher, outcome
from fedekd.runs.records import Record
from fedekd.units import count

EVERY = 0.5  # seconds at least between two updates
MOST_LINES = 20


class Notebook(Watcher):
    """A bar, what is being trained now, and the latest lines about what has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.now, self.handle, self.shown = "starting", None, 0.0

    def __enter__(self) -> Notebook:
        from IPython.display import display

        self.handle = display(self._bundle(), raw=True, display_id=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.now = "stopped" if kind else self._tally()
        self._show()

    def plan(self, jobs: list[tuple[str, int, int]]) -> None:
        super().plan(jobs)
        self._show()

    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None:
        super().begin(label, seed, work, rounds, resumed)
        self.now = f"{self.finished + 1}/{self.runs} {label}, seed {seed}, round {min(resumed + 1, rounds)}/{rounds}"
        self._show()

    def advance(self, round: int, client: str, samples: int) -> None:
        super().advance(round, client, samples)
        where = f"round {round + 1}/{self.rounds}, client {client}"
        self.now = f"{self.finished + 1}/{self.runs} {self.label}, seed {self.seed}, {where}"
        if time.monotonic() - self.shown > EVERY:
            self._show()

    def finish(self, record: Record, cached: bool) -> None:
        super().finish(record, cached)
        if not cached:
            self.note(outcome(record))

    def note(self, line: str) -> None:
        self.lines.append(line)
        if time.monotonic() - self.shown > EVERY:
            self._show()

    def _show(self) -> None:
        self.shown = time.monotonic()
        if self.handle is not None:
            self.handle.update(self._bundle(), raw=True)

    def _tally(self) -> str:
        kept = f", {count(self.kept, 'run')} kept from earlier" if self.kept else ""
        return f"{count(self.finished, 'run')} trained{kept}"

    def _bundle(self) -> dict[str, str]:
        hidden = len(self.lines) - MOST_LINES
        earlier = [f"… {count(hidden, 'earlier line')}"] if hidden > 0 else []
        lines, left = [*earlier, *self.lines[-MOST_LINES:]], self.left()
        now = f"{self.now} ({left})" if left else self.now
        share = f'value="{self.done}" max="{max(self.total, 1)}"' if self.total else 'value="1"' if self.runs else ""
        bar = f'<progress {share} style="width: 20em" aria-label="samples trained on"></progress>'
        text = f'<pre style="margin: 0">{escape(chr(10).join(lines))}</pre>' if lines else ""
        percent = f"{100 * self.done // self.total} % " if self.total else ""
        return {
            "text/html": f"{text}<div>{bar} {percent}{escape(now)}</div>",
            "text/plain": "\n".join([*lines, percent + now]),
        }
