"""How much a training step has to do, and how many of a CPU's threads that is worth."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fedekd import models
from fedekd.engines.job import Job, pick_device

WORTH_THREADS = 100_000_000
"""Multiply-adds of a batch's forward pass below which a second thread takes more than it gives: benchmarks/README.md"""
SET_BY_USER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@contextlib.contextmanager
def fitting_threads(job: Job) -> Iterator[None]:
    """One thread for a job of small steps. Otherwise, and where the environment names a number, all that there are."""
    before = torch.get_num_threads()
    if before == 1 or pick_device(job.training.device).type != "cpu" or any(name in os.environ for name in SET_BY_USER):
        yield
        return
    torch.set_num_threads(before if step_work(job) >= WORTH_THREADS else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step_work(job: Job) -> int:
    """Multiply-adds of the linear layers and convolutions of the job's larger model, forward, over a batch."""
    pairs = [(role, make) for role in ("private", "proxy") for make in models.every_factory(job.factory(role))]
    of = job.federation.dataset.x.shape[1:], job.federation.dataset.outputs
    return job.training.batch_size * max(_work(role, make, *of) for role, make in pairs)


@functools.lru_cache(maxsize=64)
@torch.no_grad()
def _work(role: str, make: models.Factory, shape: tuple[int, ...], outputs: int) -> int:
    """Multiply-adds for one row. In a module without such layers, each weight counts once."""
    rows, found = 2, 0  # some layers take no fewer
    module = models.build(role, make, shape, outputs, 0, 0).eval()

    def count(layer: nn.Module, _: Any, output: Any) -> None:
        nonlocal found
        weight = getattr(layer, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.ndim > 1 and isinstance(output, torch.Tensor):
            found += weight.numel() * output.numel() // weight.shape[0]

    for layer in module.modules():
        layer.register_forward_hook(count)
    module(torch.zeros(rows, *shape))
    return found // rows or sum(w.numel() for w in module.parameters())
