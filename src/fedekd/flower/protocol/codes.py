"""What a site tells the server when something goes wrong: a number, never a text."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class StatusCode(IntEnum):
    """The texts stay at the site, in its log: they may name files, columns or values."""

    DONE = 0
    DATA = 1
    MODEL = 2
    STATE = 3
    TRAINING = 4
    REFUSED = 5
    UNKNOWN = 6
    BEHIND = 7
    FAULT = 8
    BUDGET = 9
    UNREADABLE = 10
    VERSION = 11

    @property
    def meaning(self) -> str:
        return MEANINGS[self]


MEANINGS = {
    StatusCode.DONE: "done",
    StatusCode.DATA: "its data cannot be read or does not fit the schema",
    StatusCode.MODEL: "its model cannot be built or does not fit",
    StatusCode.STATE: "its state cannot be read or written",
    StatusCode.TRAINING: "training failed or diverged",
    StatusCode.REFUSED: "it refuses; its own log says why",
    StatusCode.UNKNOWN: "it has not joined this federation",
    StatusCode.BEHIND: "it lacks the model that a difference was made to",
    StatusCode.BUDGET: "its privacy budget does not allow it",
    StatusCode.FAULT: "an unforeseen fault; its own log says which",
    StatusCode.VERSION: "its version of fedekd does not understand this one",
    StatusCode.UNREADABLE: "its answer cannot be read",
}


class Failed(Exception):
    """A step at a site that failed, with the code that may leave; the text must not."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def failing(code: StatusCode) -> Iterator[None]:
    """Whatever goes wrong inside the block gets this code."""
    try:
        yield
    except Failed:
        raise
    except Exception as error:
        raise Failed(code, f"{error}" or type(error).__name__) from error


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Break off what takes longer, in the main thread of a process: a server may ask for any number of epochs."""

    def end(*_: object) -> None:
        raise Failed(StatusCode.TRAINING, f"the work took longer than {seconds:g} s, which `longest` allows")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
