"""Capturing CUDA graphs: the memory that they share, and what must not happen meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def graph_pool(device: torch.device) -> tuple[Any, torch.cuda.CUDAGraph]:
    """Memory that all graphs share, and a graph that keeps it alive between them."""
    gc.collect()  # an engine and its chunks point at each other, so earlier ones still hold their memory
    pool, keeper = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    with capturing(keeper, pool):
        torch.zeros(1, device=device)
    return pool, keeper


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Capture a graph. Nothing is collected meanwhile: an old graph that is destroyed then spoils the new one."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool):
            yield
    finally:
        if enabled:
            gc.enable()
