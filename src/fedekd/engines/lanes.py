"""Streams of the GPU on which chunks train side by side, so that one fills the GPU where another leaves it idle.

A chunk stays in its lane, where everything is done in order. Graphs keep their intermediate results in memory that they
share with the other graphs of their lane alone, and what a chunk takes and gives back while it trains is its lane's.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from fedekd.engines.cuda_graphs import graph_pool


class Lane:
    """One stream with the memory of its graphs; on a CPU there is nothing to it."""

    def __init__(self, device: torch.device, number: int, graphs: bool) -> None:
        self.stream = _stream(device, number) if device.type == "cuda" else None
        self.pool: Any = None
        if graphs:
            with torch.cuda.stream(self.stream):
                self.pool, self._keeper = graph_pool(device)
        self.work = Counter[Hashable]()
        """What its chunks have to do, by step."""


class Lanes:
    def __init__(self, device: torch.device, count: int, graphs: bool) -> None:
        self.device = device
        if graphs:
            gc.collect()  # an engine and its chunks point at each other, so earlier ones still hold their memory
        self.lanes = [Lane(device, k, graphs) for k in range(count if device.type == "cuda" else 1)]
        self.in_turn = False
        """Whether a lane waits until the one before has done what it was asked."""

    def __len__(self) -> int:
        return len(self.lanes)

    def least(self, step: Hashable, work: int) -> Lane:
        """The lane that has the least to do in this step, which gets so much more."""
        lane = min(self.lanes, key=lambda lane: lane.work[step])
        lane.work[step] += work
        return lane

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """What is asked for later waits for all lanes."""
        try:
            yield
        finally:
            self._join()

    @contextmanager
    def within(self, lane: Lane) -> Iterator[None]:
        """What is asked of the device meanwhile is done in the lane, after what was asked for outside of lanes."""
        if lane.stream is None:
            yield
            return
        lane.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(lane.stream):
            yield
        if self.in_turn or self._draws():
            self.in_turn = True
            self._join()

    def _draws(self) -> bool:
        """Whether something drew from torch's own generator since it was seeded: in torch 2.11 and 2.12 all of its
        graphs share one counter."""
        return len(self.lanes) > 1 and int(torch.cuda.get_rng_state(self.device).view(torch.int64)[1]) > 0

    def _join(self) -> None:
        for lane in self.lanes:
            if lane.stream is not None:
                torch.cuda.current_stream(self.device).wait_stream(lane.stream)


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """The same for all ``Lanes``: whoever waits for some waits for those that replace them too."""
    return torch.cuda.Stream(device)
