"""Adam and AdamW for stacked weights on a GPU: a kernel for each tensor, which reads and writes everything once.

torch's fused Adam hands out a stack's weights in pieces so large that much of the GPU has none. All models of a chunk
have done as many steps, so that one clock counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

BETAS, EPS = (0.9, 0.999), 1e-8
BLOCK = 2048


def usable(weights: Iterable[Tensor], device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    from fedekd.engines import fused_conv

    return fused_conv.available(device) and all(w.dtype == torch.float32 for w in weights)


def corrections(steps: int, device: torch.device) -> Tensor:
    """By step: what its rate and the root of the squares' mean are multiplied by, [steps, 2]."""
    t = torch.arange(1, steps + 1, dtype=torch.float64)
    rate, root = ((1 - beta**t) ** -power for beta, power in zip(BETAS, (1, 0.5), strict=True))
    return torch.stack([rate, root], 1).float().to(device)


@dataclass
class Moments:
    """A weight with the running means of its gradient and of the gradient's square; all lie alike in memory."""

    weight: Tensor
    mean: Tensor
    square: Tensor


class StackedAdam:
    """As ``torch.optim.Adam``, or ``AdamW`` where weights decay; ``rate``, ``clock`` and corrections are read anew."""

    param_groups: ClassVar[tuple[dict[str, Any], ...]] = ()  # what torch's optimisers keep in these lies elsewhere
    state: ClassVar[dict[Tensor, dict[str, Any]]] = {}

    def __init__(self, every: Sequence[Moments], rate: Tensor, clock: Tensor, table: Tensor, decay: float) -> None:
        self.every, self.rate, self.clock, self.table, self.decay = every, rate, clock, table, decay

    def zero_grad(self) -> None:
        for one in self.every:
            one.weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """A weight without a gradient stays as it is."""
        from fedekd.engines import triton_kernels

        for one in self.every:
            if (gradient := one.weight.grad) is None:
                continue
            if gradient.stride() != one.weight.stride():
                gradient = torch.empty_like(one.weight).copy_(gradient)
            n = one.weight.numel()
            triton_kernels.adam[(-(-n // BLOCK),)](
                one.weight, gradient, one.mean, one.square, self.rate, self.clock, self.table,
                n, self.decay, *BETAS, EPS, BLOCK, num_warps=8,
            )  # fmt: skip
