"""Ctrl-C in the middle of a run, for the tests."""

from __future__ import annotations

from fedekd.runs.observers import Observer


class Stop(Observer):
    """Interrupts the run as Ctrl-C would, after some training steps."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_client_trained(self, event) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
