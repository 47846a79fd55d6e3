"""Capturing CUDA graphs: the memory that they share, and what must not happen meanwhile."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

WORTH_CAPTURING = 4  # steps of one size under which a CUDA graph does not pay
_pools: dict[torch.device, tuple[Any, torch.cuda.CUDAGraph]] = {}


def graph_pool(device: torch.device) -> tuple[Any, torch.cuda.CUDAGraph]:
    """Memory that graphs share which are replayed one after another, and a graph that keeps it alive between them."""
    pool, keeper = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    with capturing(keeper, pool):
        torch.zeros(1, device=device)
    return pool, keeper


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Capture a graph on the current stream, or on one of its own where that is the default one.

    Nothing is collected meanwhile: an old graph that is destroyed then spoils the new one. What the GPU still has to do
    goes on, and other threads, such as a ``RowMover``'s, may use it meanwhile.
    """
    enabled, now = gc.isenabled(), torch.cuda.current_stream()
    gc.disable()
    try:
        _make_room()
        with torch.cuda.stream(now if now != torch.cuda.default_stream(now.device) else _capture_stream(now.device)):
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                yield
            except BaseException:
                with suppress(RuntimeError):  # the capture is spoilt; what spoilt it is the error to tell
                    graph.capture_end()
                raise
            graph.capture_end()
    finally:
        if enabled:
            gc.enable()


def _make_room() -> None:
    """A graph takes its memory from what nobody holds, not even to use it again: give that back where it may lack."""
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # about what a step needs, after one was done
    if torch.cuda.mem_get_info()[0] < cached:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Recorded:
    """Work that takes the host long and the device not: captured when it is done again, and replayed from then on.

    It may read and change nothing but tensors that stay where they are for as long as this does, and those that it is
    told of, which are watched. What it gives is overwritten the next time. Work that cannot be captured, or not in the
    memory that is left, goes on as it is.
    """

    def __init__(self, pool: Any = None) -> None:
        """``pool``: memory that other graphs use too; they overwrite whatever the work would give in it."""
        self.pool = pool
        self.graph: torch.cuda.CUDAGraph | None = None
        self.tried = False
        self.watched: list[Tensor] = []
        self.given: Any = None

    def do(self, work: Callable[[], T], watched: Sequence[Tensor], worth_capturing: bool) -> T:
        """``watched``: where another tensor has come in the place of one of them, a graph is no longer used."""
        alike = len(watched) == len(self.watched) and all(map(operator.is_, watched, self.watched))
        if not alike:
            self.graph, self.given, self.tried = None, None, False
            self.watched = list(watched) if worth_capturing else []  # or else it would only keep their memory
        elif worth_capturing and not self.tried:
            self.tried, graph = True, torch.cuda.CUDAGraph()
            with suppress(RuntimeError):
                with capturing(graph, self.pool):
                    given = work()
                self.graph, self.given = graph, given
        if self.graph is None:
            return work()
        self.graph.replay()
        return self.given


class GraphedStep:
    """A client's training step: done once as it is, then captured, and replayed on other inputs of the same shapes.

    One that cannot be captured, since it asks the host for a number, goes on as it is.
    """

    def __init__(self, step: Callable[..., None], device: torch.device) -> None:
        self.step, self.device, self.failed = step, device, False
        self.inputs: list[Tensor | None] = []
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor | None) -> None:
        if not self.inputs:
            self.step(*inputs)
            self.inputs = [None if t is None else t.clone() for t in inputs]
            return
        alike = all((a is None and b is None) or (a is not None and b is not None and a.shape == b.shape)
                    for a, b in zip(self.inputs, inputs, strict=True))  # fmt: skip
        if self.failed or not alike:
            self.step(*inputs)
            return
        for own, new in zip(self.inputs, inputs, strict=True):
            if own is not None and new is not None:
                own.copy_(new)
        if self.graph is None and not self._captured():
            self.step(*inputs)
            return
        assert self.graph is not None
        self.graph.replay()

    def _captured(self) -> bool:
        if self.device not in _pools:
            _pools[self.device] = graph_pool(self.device)
        graph = torch.cuda.CUDAGraph()
        try:
            with capturing(graph, _pools[self.device][0]):
                self.step(*self.inputs)
        except RuntimeError:
            self.failed = True
            return False
        self.graph = graph
        return True
