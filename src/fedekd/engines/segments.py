"""A chunk's steps in segments: in each, the same models are active, on views of the chunk's first weights."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedekd.engines.job import make_optimizer
from fedekd.engines.stacked_adam import Moments, StackedAdam

if TYPE_CHECKING:
    from fedekd.engines.chunk import Chunk


@dataclass
class Segment:
    """Steps in which the same models are active."""

    first: int
    last: int
    active: int
    leaves: dict[str, dict[str, Tensor]]
    optimizer: torch.optim.Optimizer | StackedAdam
    warm: bool = False  # whether a step was done: a CUDA graph cannot be captured from the first
    graph: torch.cuda.CUDAGraph | None = None


def segments_of(chunk: Chunk) -> list[Segment]:
    """Models leave from the end of the stack when they are done, on a GPU several at a time.

    Leaving together keeps the number of distinct sizes small. A model that waits for others goes on with
    empty batches, but its weights were taken when it was done.
    """
    whole, stages, steps = len(chunk.indices), chunk.engine.shrink_stages, chunk.steps
    together = max(1, whole // stages) if stages else 1
    sizes = [min(whole, -(-int((steps > t).sum()) // together) * together) for t in range(steps.max())]
    if not sizes:
        return []
    edges = [0, *(t for t in range(1, len(sizes)) if sizes[t] != sizes[t - 1]), len(sizes)]
    return [_segment(chunk, a, b, sizes[a]) for a, b in itertools.pairwise(edges)]


def _segment(chunk: Chunk, first: int, last: int, active: int) -> Segment:
    trees = chunk.weights.items()
    leaves = {r: {n: w[:active].detach().requires_grad_() for n, w in tree.items()} for r, tree in trees}
    return Segment(first, last, active, leaves, _optimizer(chunk, leaves, active))


def _optimizer(chunk: Chunk, leaves: dict[str, dict[str, Tensor]], active: int) -> torch.optim.Optimizer | StackedAdam:
    """It works on views of the first weights and moments, which the chunk sets to zero; the chunk sets its step."""
    device, every = chunk.engine.device, [w for tree in leaves.values() for w in tree.values()]
    if chunk.rate is not None:
        kept = [
            Moments(w, chunk.moment[role][n][:active], chunk.square[role][n][:active])
            for role, tree in leaves.items()
            for n, w in tree.items()
        ]
        return StackedAdam(kept, chunk.rate, chunk.clock, chunk.corrections, chunk.training.weight_decay)
    made = make_optimizer(chunk.training, every, lr=chunk.lr, capturable=device.type == "cuda")
    for role, tree in chunk.moment.items():
        for n, moment in tree.items():
            state = made.state[leaves[role][n]]
            if chunk.square:
                state["step"] = torch.zeros((), device=device)
                state["exp_avg"], state["exp_avg_sq"] = moment[:active], chunk.square[role][n][:active]
            else:
                state["momentum_buffer"] = moment[:active]
    return made
