"""Linear layers of many models at once, whose weights' gradients come in float32 and in the weights' own order.

``nn.Linear`` mapped over models gives them transposed, and in bf16 where products are: to bring them into order takes
longer than to find them.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fedekd.engines.mapped_function import over_models


class _Product(torch.autograd.Function):
    """x [m, batch, in], w [m, out, in] and b [m, out] to y [m, batch, out] and w as the product read it."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
        read = w.to(kind)
        y = torch.baddbmm(b.to(kind).unsqueeze(1), x.to(kind), read.mT)
        return y, read if read is not w else w.new_empty(len(w), 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, w, _, ctx.kind = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, output[1] if output[1].numel() else w)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        wants_x, wants_w, wants_b, _ = ctx.needs_input_grad
        dx = torch.bmm(dy, w).to(x.dtype) if wants_x else None
        dw = _in_float32(dy.mT, x.to(ctx.kind)) if wants_w else None
        return dx, dw, dy.sum(1, dtype=torch.float32) if wants_b else None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return over_models(_Product, info, in_dims, inputs)


def _in_float32(a: Tensor, b: Tensor) -> Tensor:
    if a.is_cuda and a.dtype != torch.float32:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a, b).float()


class StackedLinear(nn.Linear):
    """An ``nn.Linear`` that may be mapped over models, and differentiated once.

    Of what is no plain batch of rows, and without a bias, it is that layer itself.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or self.bias is None:
            return super().forward(x)
        device = x.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        return _Product.apply(x[None], self.weight[None], self.bias[None], kind)[0].squeeze(0)


def lower(module: nn.Module) -> nn.Module:
    """A copy with such linear layers; all names stay."""
    module = copy.deepcopy(module)
    for inner in module.modules():
        if type(inner) is nn.Linear and inner.weight.dtype == torch.float32:
            inner.__class__ = StackedLinear
    return module
