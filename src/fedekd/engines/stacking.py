"""Small tools of the stacked engine: ragged rows as tables, trees as stacks, memory for CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def padded(rows: Sequence[np.ndarray], device: torch.device, longest: int | None = None) -> tuple[Tensor, Tensor]:
    """Ragged row lists as a table [models, longest] and the mask of its real entries."""
    table = np.zeros((len(rows), max(1, *map(len, rows)) if longest is None else longest), np.int64)
    mask = np.zeros(table.shape, bool)
    for i, r in enumerate(rows):
        table[i, : len(r)], mask[i, : len(r)] = r, True
    return torch.from_numpy(table).to(device), torch.from_numpy(mask).to(device)


def stack_trees(trees: Sequence[Any], device: torch.device) -> Any:
    first = trees[0]
    if isinstance(first, dict):
        return {key: stack_trees([t[key] for t in trees], device) for key in first}
    return torch.stack([torch.as_tensor(t) for t in trees]).to(device)


def pick(tree: Any, at: Any) -> Any:
    """Rows ``at`` of every tensor of a tree."""
    return {key: pick(v, at) for key, v in tree.items()} if isinstance(tree, dict) else tree[at]


def graph_pool(device: torch.device) -> tuple[Any, torch.cuda.CUDAGraph]:
    """Memory that all graphs share, and a graph that keeps it alive between them."""
    gc.collect()  # an engine and its pieces point at each other, so earlier ones still hold their memory
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


def not_finite(weights: Tensor) -> list[int]:
    finite = torch.isfinite(weights.flatten(1)).all(1)
    return (~finite).nonzero().flatten().tolist()
