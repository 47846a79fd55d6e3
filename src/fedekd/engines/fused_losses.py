"""Losses and trust of many models at once, each function one kernel on the GPU: what ``fedekd.gate`` calls there.

In torch's own kernels the gate alone is forty, and its loss with the gradient another forty, each so small that the
GPU waits for it. All take float32; the kernels are in ``row_kernels``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedekd import gate
from fedekd.engines import fused_conv, row_kernels
from fedekd.engines.mapped_function import over_models

LONGEST = 8192  # classes of a row, or samples of a batch, that one program takes


def usable(*given: Tensor) -> bool:
    """Whether the kernels take these: float32 on the current GPU, or anywhere in Triton's interpreter.

    ``torch.func.grad`` and its kin cannot look into them.
    """
    if not row_kernels.INSTALLED:
        return False
    kinds = all(t.dtype == torch.float32 and not _differentiated(t) for t in given)
    return kinds and 0 < given[0].shape[-1] <= LONGEST and _here(given[0].device)


def _differentiated(t: Tensor) -> bool:
    """Whether one of the transforms around it is a derivative."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(t):
        if functorch.is_gradtrackingtensor(t):
            return True
        t = functorch.get_unwrapped(t)
    return False


def _here(device: torch.device) -> bool:
    """Triton launches on the current GPU."""
    return fused_conv.runs(device) and (device.type != "cuda" or device.index == torch.cuda.current_device())


def power(n: int) -> int:
    return 1 << (n - 1).bit_length()


class _Fused(torch.autograd.Function):
    """Of tensors [models, ...]; the last input is no tensor."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor]) -> None:
        ctx.save_for_backward(*inputs[:-1])

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        """Called again on the tensors that hold all models."""
        return over_models(cls, info, in_dims, inputs)


def _by_rows(kernel: Any, tensors: list[Tensor], *more: Any) -> None:
    """``tensors``: those that the kernel takes first, of which the first is logits [..., C]."""
    classes = tensors[0].shape[-1]
    width = power(classes)
    rows, at_once = tensors[0].numel() // classes, max(1, min(64, 4096 // width))
    if rows:
        kernel[(-(-rows // at_once),)](*tensors, rows, *more, classes, at_once, width)


class _CrossEntropy(_Fused):
    @staticmethod
    def forward(x: Tensor, y: Tensor, _: None) -> tuple[Tensor]:
        out = x.new_empty(x.shape[:-1])
        _by_rows(row_kernels.cross_entropy, [x.contiguous(), y.contiguous(), out])
        return (out,)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        dx = torch.empty_like(x, memory_format=torch.contiguous_format)
        _by_rows(row_kernels.cross_entropy_gradient, [x.contiguous(), y.contiguous(), g.contiguous(), dx])
        return dx, None, None


class _KL(_Fused):
    @staticmethod
    def forward(teacher: Tensor, student: Tensor, _: None) -> tuple[Tensor]:
        out = student.new_empty(student.shape[:-1])
        _by_rows(row_kernels.kl, [teacher.contiguous(), student.contiguous(), out])
        return (out,)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        t, s = (one.contiguous() for one in ctx.saved_tensors)
        wanted = ctx.needs_input_grad[:2]
        found = [torch.empty_like(t) if wants else None for wants in wanted]
        room = [g if one is None else one for one in found]  # not written to where no gradient is wanted
        _by_rows(row_kernels.kl_gradient, [t, s, g.contiguous(), *room], *wanted)
        return *found, None


class _Energy(_Fused):
    @staticmethod
    def forward(p: Tensor, q: Tensor, eps: float) -> tuple[Tensor]:
        out = p.new_empty(p.shape[:-1])
        _by_rows(row_kernels.energy, [p.contiguous(), q.contiguous(), out], eps)
        return (out,)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """By torch's own kernels: the gate takes no gradient of it."""
        with torch.enable_grad():
            p, q = (one.detach().requires_grad_() for one in ctx.saved_tensors)
            return *torch.autograd.grad(gate.energy_kl(p, q), (p, q), g), None


class _Trust(_Fused):
    @staticmethod
    def forward(energy: Tensor, beta: Tensor, real: Tensor, eps: float) -> tuple[Tensor]:
        out = torch.empty_like(energy, memory_format=torch.contiguous_format)
        size = energy.shape[-1]
        row_kernels.trust[(len(energy),)](
            energy.contiguous(), beta.contiguous(), real.contiguous(), out, size, eps, power(size)
        )
        return (out,)


class _Mean(_Fused):
    @staticmethod
    def forward(values: Tensor, real: Tensor, _: None) -> tuple[Tensor]:
        out, size = values.new_empty(len(values)), values.shape[-1]
        row_kernels.mean[(len(values),)](values.contiguous(), real.contiguous(), out, size, power(size))
        return (out,)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        values, real = ctx.saved_tensors
        dv, size = torch.empty_like(values, memory_format=torch.contiguous_format), values.shape[-1]
        row_kernels.mean_gradient[(len(values),)](g.contiguous(), real.contiguous(), dv, size, power(size))
        return dv, None, None


def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    return _CrossEntropy.apply(x[None], y[None], None)[0].squeeze(0)


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    return _KL.apply(teacher[None], student[None], None)[0].squeeze(0)


def energy(private: Tensor, proxy: Tensor, eps: float) -> Tensor:
    return _Energy.apply(private[None], proxy[None], eps)[0].squeeze(0)


def trust(energy: Tensor, beta: float | Tensor, real: Tensor, eps: float) -> Tensor:
    """Without a gradient."""
    sharpness = (energy.new_ones((), dtype=torch.float64) * beta).detach()
    return _Trust.apply(energy.detach()[None], sharpness[None], real[None], eps)[0].squeeze(0)


def mean(values: Tensor, real: Tensor) -> Tensor:
    return _Mean.apply(values[None], real[None], None)[0].squeeze(0)
