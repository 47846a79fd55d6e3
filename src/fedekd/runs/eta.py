"""How long the work that is left will take."""

from __future__ import annotations

import time


class Eta:
    """Counts work and estimates the time left, at the pace since the first of it: what came before was no training."""

    def __init__(self) -> None:
        self.total = self.done = 0
        self._fresh = 0
        self._began: float | None = None

    def skip(self, work: int) -> None:
        """Work that an earlier process did."""
        self.done += work

    def advance(self, work: int) -> None:
        self.done += work
        if self._began is None:
            self._began = time.monotonic()
        else:
            self._fresh += work

    def seconds(self) -> float | None:
        """None before there is a pace, and when nothing is left."""
        rest = self.total - self.done
        if self._began is None or not self._fresh or rest <= 0:
            return None
        return (time.monotonic() - self._began) / self._fresh * rest
