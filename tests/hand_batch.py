"""A batch with the numbers a test writes down, for losses without an engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedekd.methods.batch import Batch
from fedekd.tasks import Task


def hand_batch(task: Task, y: Tensor, outputs: dict[str, Tensor], **more: Any) -> Batch:
    """What is not given is empty; the one place that knows all the fields of a Batch."""
    given: dict[str, Any] = {
        "x": None,
        "features": {},
        "weights": {},
        "received": {},
        "memory": {},
        "gradients": {},
        "uniform": torch.zeros(len(y), 0),
        "rows": torch.arange(len(y)),
        "counts": torch.zeros(1),
        "lr": 0.1,
        "steps": torch.tensor(1),
    }
    given |= more
    return Batch(task=task, y=y, outputs=outputs, **{"groups": given["rows"], **given})


def two_models(samples: int = 6, classes: int = 4, seed: int = 0) -> dict[str, Tensor]:
    """Logits of a private model and a proxy, in float64, each a leaf that collects its gradient."""
    draw = torch.Generator().manual_seed(seed)
    shape = (samples, classes)
    return {r: (2 * torch.randn(shape, generator=draw).double()).requires_grad_() for r in ("private", "proxy")}


def gradients(loss: Tensor, outputs: dict[str, Tensor]) -> dict[str, Tensor | None]:
    found = torch.autograd.grad(loss, list(outputs.values()), allow_unused=True)
    return dict(zip(outputs, found, strict=True))
