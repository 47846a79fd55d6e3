"""3x3 convolution + ReLU + 2x2 max-pooling of many models at once, each layer one GPU kernel.

A stack holds m models, each with its own weights and its own batch; maps are [m, batch, height, width, channels] with
the channels innermost. The kernels themselves are in `triton_kernels`; here they are launched and become a layer.
"""

from __future__ import annotations

import copy
import os
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from fedekd.engines import triton_kernels
from fedekd.engines.mapped_function import over_models
from fedekd.errors import FedekdError, unknown

# What a product reads, and how Triton multiplies float32. Sums, biases and weight gradients are float32 in all three.
PRECISIONS = {"fp32": (torch.float32, "ieee"), "tf32": (torch.float32, "tf32"), "bf16": (torch.bfloat16, "tf32")}
FEW = 4  # input channels up to which a layer counts as a first layer
WORKSPACE = 2**31  # bytes of full-resolution gradient held at once; larger stacks go backward in several parts
PROGRAMS = 4  # per multiprocessor: with fewer, a weight gradient's sum is split

# Rows, columns and depth of a product's tiles (never wider than the layer), warps, pipeline stages. TILES is for
# benchmarks/gpu_kernels.py: what wins its search, by (kernel, inputs, outputs, precision) of the layer, while it runs.
Tile = tuple[int, ...]
TILES: dict[tuple[str, int, int, str], Tile] = {}
DEFAULTS: dict[str, dict[str, Tile]] = {
    "forward": {"bf16": (128, 128, 64, 4, 3), "tf32": (128, 128, 32, 4, 3), "fp32": (64, 32, 16, 4, 2)},
    "dgrad": {"bf16": (128, 128, 64, 4, 3), "tf32": (128, 128, 32, 4, 3), "fp32": (64, 32, 16, 4, 2)},
    "wgrad": {"bf16": (128, 64, 64, 8, 2), "tf32": (64, 64, 32, 4, 3), "fp32": (32, 32, 16, 4, 2)},
    "first_wgrad": {"bf16": (64, 16, 32, 4, 3), "tf32": (64, 16, 32, 4, 2), "fp32": (32, 16, 16, 4, 2)},
}


def available(device: torch.device | str) -> bool:
    """Whether the kernels can run there: Triton, and an NVIDIA GPU with bf16 and tf32 (Ampere or later)."""
    usable = triton_kernels.INSTALLED and torch.device(device).type == "cuda" and torch.version.cuda is not None
    return usable and torch.cuda.is_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def runs(device: torch.device) -> bool:
    """There, or in Triton's interpreter, which takes CPU tensors."""
    return available(device) or (triton_kernels.INSTALLED and os.environ.get("TRITON_INTERPRET") == "1")


# --- launching -----------------------------------------------------------------------------------------------


def _power(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


def tile(kernel: str, inputs: int, outputs: int, precision: str) -> Tile:
    return TILES.get((kernel, inputs, outputs, precision)) or DEFAULTS[kernel][precision]


def _split(rows: int, block: int, programs: int, device: torch.device) -> tuple[int, int]:
    """Into how many parts a sum over rows is split so that the programs fill the chip, and the rows of each part."""
    chip = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
    blocks, parts = -(-rows // block), max(1, min(PROGRAMS * chip // programs, rows // (8 * block)))
    return -(-blocks // -(-blocks // parts)), -(-blocks // parts) * block


def packed(w: Tensor, precision: str, *order: int) -> Tensor:
    """Stacked weights in that order of the axes and in the type that the product reads."""
    view = w.permute(order)
    return torch.empty(view.shape, dtype=PRECISIONS[precision][0], device=w.device).copy_(view)


def convolve(x: Tensor, w: Tensor, b: Tensor, y: Tensor, code: Tensor | None, precision: str, tile: Tile) -> None:
    """y from x and packed weights: pooled where there is a code to fill; else x is a gradient, and y the input's."""
    (m, batch, height, width, n), (h, w_, c), (rows, columns, depth, warps, stages) = y.shape, x.shape[2:], tile
    pool, first, positions = code is not None, code is not None and c <= FEW, batch * height * width
    columns, depth = min(columns, _power(n)), _power(9 * c) if first else min(depth, _power(c))
    triton_kernels.conv[(m * -(-positions // (rows // 4 if pool else rows)) * -(-n // columns),)](
        x, w, b, y, code if pool else y, *x.stride(), positions, h, w_, height, width, c, n, first, pool,
        PRECISIONS[precision][1], rows, columns, depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def spread(dy: Tensor, code: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """The gradient at full resolution, and its sums [m, tiles, out]."""
    (m, batch, height, width, n), block, columns = dy.shape, 32, min(128, _power(dy.shape[-1]))
    d = dy.new_empty((m, batch, 2 * height, 2 * width, n), dtype=PRECISIONS[precision][0])
    sums = dy.new_empty((m, -(-batch * height * width // block), n), dtype=torch.float32)
    grid = (m * sums.shape[1], -(-n // columns))
    triton_kernels.unpool[grid](dy, code, d, sums, batch * height * width, width, n, block, columns, num_warps=8)
    return d, sums


def halved(x: Tensor) -> Tensor:
    """x [..., c] in float32 as [..., 2, c] in bf16, whose two parts sum up to it within 2^-17."""
    x, c = x.contiguous(), x.shape[-1]
    y = x.new_empty((*x.shape[:-1], 2, c), dtype=torch.bfloat16)
    triton_kernels.halve[(-(-x.numel() // 2048),)](x, y, x.numel() // c, c, 2048, num_warps=8)
    return y


def weight_gradient(x: Tensor, d: Tensor, dw: Tensor, precision: str, tile: Tile) -> None:
    """dw [m, out, in, 3, 3] from the input and the gradient at full resolution."""
    (m, batch, height, width, n), (h, w, c), (rows, columns, depth, warps, stages) = d.shape, x.shape[2:], tile
    rows, columns, positions = min(rows, _power(n)), min(columns, _power(c)), batch * height * width
    tiles = 3 * -(-n // rows) * -(-c // columns)
    splits, per = _split(positions, depth, m * tiles, x.device)
    ordered = dw.permute(0, 3, 4, 1, 2)  # as the kernel writes it, which is as it lies after `taps_first`
    at_once = splits == 1 and ordered.is_contiguous()
    parts = ordered.unsqueeze(1) if at_once else dw.new_empty((m, splits, 3, 3, n, c))
    # The matrix unit takes no transposed tf32: copies for it cost more than three products of bf16 halves.
    halves = 2 if precision == "tf32" and x.is_cuda else 1  # Triton's interpreter cannot multiply bf16
    if halves == 2:
        x, d = halved(x), halved(d)
    triton_kernels.wgrad[(m * splits * tiles,)](
        x, d, parts, *x.stride()[:4], x.stride(-1), positions, per, splits, h, w, height, width, c, n, halves,
        PRECISIONS[precision][1], rows, columns, depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if not at_once:
        torch.sum(parts, 1, out=ordered)


def first_gradient(x: Tensor, dy: Tensor, code: Tensor, precision: str, tile: Tile) -> tuple[Tensor, Tensor]:
    """dw [m, out, in, 3, 3] and db [m, out] of a first layer."""
    (m, batch, height, width, n), (h, w, c), (rows, _, depth, warps, stages) = dy.shape, x.shape[2:], tile
    rows, positions, (dtype, multiply) = min(rows, _power(n)), batch * height * width, PRECISIONS[precision]
    splits, per = _split(positions, depth, m * -(-n // rows), x.device)
    parts, sums = (dy.new_empty((m, splits, n, *k), dtype=torch.float32) for k in ((c, 3, 3), ()))
    triton_kernels.first_wgrad[(m * splits * -(-n // rows),)](
        x, dy, code, parts, sums, *x.stride(), positions, per, splits, h, w, height, width, c, n,
        dtype == torch.bfloat16, multiply, rows, _power(9 * c), _power(16 * c), depth,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return parts.sum(1), sums.sum(1)


# --- the layer -----------------------------------------------------------------------------------------------


class _Layer(torch.autograd.Function):
    """Stacked tensors to (y, code). Mapped over models, it is called again on the tensors that hold all of them."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor, precision: str) -> tuple[Tensor, Tensor]:
        (m, batch, h, width, c), n = x.shape, w.shape[1]
        y = x.new_empty((m, batch, h // 2, width // 2, n), dtype=PRECISIONS[precision][0])
        code = y.new_empty(y.shape, dtype=torch.uint8)
        weights = packed(w, precision, *((0, 1, 2, 3, 4) if c <= FEW else (0, 3, 4, 1, 2)))
        convolve(x, weights, b.contiguous(), y, code, precision, tile("forward", c, n, precision))
        return y, code

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, w, _, ctx.precision = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w, output[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (x, w, code), precision = ctx.saved_tensors, ctx.precision
        m, c, n, dy = x.shape[0], x.shape[4], w.shape[1], dy.contiguous()
        dx = x.new_empty(x.shape) if ctx.needs_input_grad[0] else None
        dw, db = torch.empty_like(w), w.new_empty((m, n))
        if c <= FEW:
            dw, db = first_gradient(x, dy, code, precision, tile("first_wgrad", c, n, precision))
            if dx is None:
                return None, dw, db, None
        weights = packed(w, precision, 0, 3, 4, 2, 1)
        step = max(1, WORKSPACE // (1 + 4 * dy[0].numel() * weights.element_size()))
        for part in (slice(start, start + step) for start in range(0, m, step)):
            d, sums = spread(dy[part], code[part], precision)
            if dx is not None:
                convolve(d, weights[part], sums, dx[part], None, precision, tile("dgrad", c, n, precision))
            if c > FEW:
                weight_gradient(x[part], d, dw[part], precision, tile("wgrad", c, n, precision))
                torch.sum(sums, 1, out=db[part])
        return dx, dw, db, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return over_models(_Layer, info, in_dims, inputs)


def conv_relu_pool(x: Tensor, w: Tensor, b: Tensor, precision: str) -> Tensor:
    """x [m, batch, H, W, in], w [m, out, in, 3, 3] and b [m, out], those in float32, to [m, batch, H//2, W//2, out].

    The result is bf16 in precision bf16, else float32. It may be differentiated once, and mapped over models.
    """
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if not runs(x.device):
        raise FedekdError(f"the GPU kernels need Triton and an NVIDIA GPU, and this is device {str(x.device)!r}")
    if x.shape[1:4].numel() * max(x.shape[4], w.shape[1]) >= 2**30:
        raise FedekdError(f"a batch of shape {tuple(x.shape[1:])} is too large for the GPU kernels; use a smaller one")
    if x.shape[-1] > FEW:
        x = x.to(PRECISIONS[precision][0])
        x = x if x.stride(-1) == 1 else x.contiguous()
    return _Layer.apply(x, w, b, precision)[0]


class ConvReluPool(nn.Module):
    """``Conv2d(3x3, padding 1)``, ``ReLU``, ``MaxPool2d(2)`` as one layer; as those three where no kernel can run."""

    def __init__(self, conv: nn.Conv2d, precision: str) -> None:
        super().__init__()
        assert conv.bias is not None
        self.weight, self.bias, self.precision = conv.weight, conv.bias, precision

    def forward(self, x: Tensor) -> Tensor:
        if not runs(x.device):
            return nn.functional.max_pool2d(nn.functional.conv2d(x, self.weight, self.bias, padding=1).relu(), 2)
        # In memory the channels are innermost. Like any convolution, it gives bf16 to the next layer in autocast only.
        y = conv_relu_pool(x.permute(0, 2, 3, 1)[None], self.weight[None], self.bias[None], self.precision).squeeze(0)
        return y.permute(0, 3, 1, 2).to(y.dtype if torch.is_autocast_enabled(x.device.type) else x.dtype)


def ordered_weights(module: nn.Module) -> frozenset[str]:
    """The weights of a lowered module that should lie as `taps_first` has them, so that nothing puts them in order."""
    layers = ((name, m) for name, m in module.named_modules() if isinstance(m, ConvReluPool))
    return frozenset(f"{name}.weight" for name, m in layers if m.weight.shape[1] > FEW)


def taps_first(w: Tensor) -> Tensor:
    """Room for such stacked weights [m, out, in, 3, 3], in memory [m, 3, 3, out, in]."""
    return torch.empty_like(w.permute(0, 3, 4, 1, 2), memory_format=torch.contiguous_format).permute(0, 3, 4, 1, 2)


def _fusible(conv: nn.Module, relu: nn.Module, pool: nn.Module) -> TypeGuard[nn.Conv2d]:
    if type(pool) is nn.ReLU:  # the two may stand in either order: it is the same function
        relu, pool = pool, relu
    if not (type(conv) is nn.Conv2d and type(relu) is nn.ReLU and type(pool) is nn.MaxPool2d):
        return False
    size = (conv.kernel_size, conv.stride, conv.padding, conv.dilation) == ((3, 3), (1, 1), (1, 1), (1, 1))
    kind = conv.groups == 1 and conv.padding_mode == "zeros" and conv.bias is not None
    half = all(v in (2, (2, 2)) for v in (pool.kernel_size, pool.stride)) and pool.padding in (0, (0, 0))
    return size and kind and half and pool.dilation in (1, (1, 1)) and not (pool.ceil_mode or pool.return_indices)


def lower(module: nn.Module, precision: str) -> nn.Module:
    """A copy in which each run of such a convolution, ReLU and pooling is a `ConvReluPool`; all names stay."""
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    module = copy.deepcopy(module)
    for inner in [m for m in module.modules() if isinstance(m, nn.Sequential)]:
        for i in range(len(inner) - 2):
            if _fusible(conv := inner[i], inner[i + 1], inner[i + 2]):
                inner[i], inner[i + 1], inner[i + 2] = ConvReluPool(conv, precision), nn.Identity(), nn.Identity()
    return module
