"""A limit for what runs in the test's own process and might never end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class TooLong(BaseException):
    """Which no handler of the product's catches."""


@contextlib.contextmanager
def in_time(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLong(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
