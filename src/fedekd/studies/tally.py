"""Progress of a study in plain lines: what has ended, how much is left, and how long that takes. Needs no rich."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta

from fedekd.runs.observers import Nobody
from fedekd.runs.store import Record

QUIET_SECONDS = 60.0  # at most, while there is nothing to tell but the time


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Tally(Nobody):
    """An observer of runs that may go on at the same time: it counts work, and work alone."""

    def __init__(self, say: Callable[[str], None] = to_stderr) -> None:
        self.tell = say
        self.runs = self.ended = 0
        self.total = self.done = self.fresh = 0
        self.began = self.spoke = time.monotonic()

    def plan(self, jobs: list[tuple[str, int, int]]) -> None:
        self.runs, self.total = len(jobs), sum(work for *_, work in jobs)
        self.began = time.monotonic()
        self.say(f"{self.runs:,} runs to do" if jobs else "nothing to do: every run is in the results")

    def begin(self, label: str, seed: int, work: int, rounds: int, resumed: int) -> None:
        self.done += work * resumed // max(rounds, 1)

    def advance(self, round: int, client: str, samples: int) -> None:
        self.done += samples
        self.fresh += samples
        if time.monotonic() - self.spoke > QUIET_SECONDS:
            self.say(f"{self.ended:,}/{self.runs:,} training")

    def finish(self, record: Record, cached: bool) -> None:
        if cached:
            return
        self.ended += 1
        alpha = "" if record["alpha"] is None else f" α={record['alpha']:g}"
        alone = record["method"] == "local"
        result = f"mean {record['mean']:.4f}" if alone else f"Avg Δ {record['avg_delta']:+.4f}"
        self.say(
            f"{self.ended:,}/{self.runs:,} {record['dataset']}{alpha} seed {record['seed']} {record['label']}: "
            f"{result}, {record['seconds']:.1f} s"
        )

    def fail(self, line: str, work: int) -> None:
        self.ended += 1
        self.total -= work
        self.say(f"{self.ended:,}/{self.runs:,} FAILED {line}")

    def note(self, line: str) -> None:
        self.say(line)

    def say(self, line: str) -> None:
        self.spoke = time.monotonic()
        left = self.left()
        self.tell(f"{line} ({left} left)" if left else line)

    def left(self) -> str:
        """The time left at the pace so far, as hours, minutes and seconds; nothing before there is a pace."""
        rest = self.total - self.done
        if not self.fresh or rest <= 0:
            return ""
        return str(timedelta(seconds=round((time.monotonic() - self.began) / self.fresh * rest)))
