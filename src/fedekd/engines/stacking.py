"""Small tools of the stacked engine: ragged rows as tables, trees as stacks, memory for CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def padded(rows: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ragged row lists as a table [models, longest] and the mask of its real entries."""
    table = np.zeros((len(rows), max(1, max(len(r) for r in rows))), np.int64)
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


def put(old: dict[str, Any], new: dict[str, Any], at: Tensor, rows: int) -> dict[str, Any]:
    """A tree of [rows, ...] with the rows ``at`` of some of its tensors replaced; what is new to it is zero elsewhere.

    The old tree is left as it was.
    """
    found = dict(old)
    for key, value in new.items():
        if isinstance(value, dict):
            found[key] = put(old.get(key, {}), value, at, rows)
            continue
        whole = old.get(key)
        same = whole is not None and whole.shape[1:] == value.shape[1:] and whole.dtype == value.dtype
        found[key] = whole.clone() if whole is not None and same else value.new_zeros(rows, *value.shape[1:])
        found[key][at] = value
    return found


def rows_of(tree: dict[str, Tensor], indices: Sequence[int]) -> dict[str, Tensor]:
    """Rows of every tensor; views where they lie together."""
    together = list(indices) == list(range(indices[0], indices[0] + len(indices)))
    at: Any = slice(indices[0], indices[0] + len(indices)) if together else list(indices)
    return {name: t[at] for name, t in tree.items()}


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
