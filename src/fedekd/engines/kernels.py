"""3x3 convolution + ReLU + 2x2 max-pooling of many models at once, each layer one GPU kernel (Triton).

A stack holds m models, each with its own weights and its own batch; maps are [m, batch, height, width, channels] with
the channels innermost. The forward kernel is a matrix product whose left rows are gathered from the image on the way
(implicit GEMM); bias, ReLU and pooling happen in registers, so the full-resolution maps never reach memory. Beside the
pooled map it writes a code per value: 0..3, the position in the 2x2 window that won (row by row), or 4, a ReLU zero,
through which no gradient flows. Backward, ``_unpool`` spreads the gradient to full resolution by that code. Two more
matrix products follow: the convolution with mirrored weights gives the input's gradient, ``_wgrad`` the weights'.
First layers (up to 4 input channels) are bound by memory, not arithmetic: their taps and channels form the depth of a
single product, and ``_first_wgrad`` never writes the spread gradient. No atomics: equal stacks give equal bits.
"""

from __future__ import annotations

import copy
import os
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from fedekd.errors import FedekdError, unknown

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr
except ImportError:  # CPU installations have no Triton, and need none
    triton = None

# What a product reads, and how Triton multiplies float32. Sums, biases and weight gradients are float32 in all three.
PRECISIONS = {"fp32": (torch.float32, "ieee"), "tf32": (torch.float32, "tf32"), "bf16": (torch.bfloat16, "tf32")}
FEW = 4  # input channels up to which a layer counts as a first layer
WORKSPACE = 2**31  # bytes of full-resolution gradient held at once; larger stacks go backward in several parts
PROGRAMS = 4  # per multiprocessor: with fewer, a weight gradient's sum is split

# Rows, columns and depth of a product's tiles (never wider than the layer), warps, pipeline stages. Those that won in
# benchmarks/gpu_kernels.py go into TILES, by (kernel, inputs, outputs, precision) of the layer.
Tile = tuple[int, ...]
TILES: dict[tuple[str, int, int, str], Tile] = {}
DEFAULTS: dict[str, dict[str, Tile]] = {
    "forward": {"bf16": (128, 128, 64, 4, 3), "tf32": (128, 128, 32, 4, 3), "fp32": (64, 32, 16, 4, 2)},
    "dgrad": {"bf16": (128, 128, 64, 4, 3), "tf32": (128, 128, 32, 4, 3), "fp32": (64, 32, 16, 4, 2)},
    "wgrad": {"bf16": (128, 64, 64, 8, 2), "tf32": (128, 64, 32, 8, 3), "fp32": (32, 32, 16, 4, 2)},
    "first_wgrad": {"bf16": (64, 16, 32, 4, 2), "tf32": (64, 16, 32, 4, 2), "fp32": (32, 16, 16, 4, 2)},
}


def available(device: torch.device | str) -> bool:
    """Whether the kernels can run there: Triton, and an NVIDIA GPU with bf16 and tf32 (Ampere or later)."""
    usable = triton is not None and torch.device(device).type == "cuda" and torch.version.cuda is not None
    return usable and torch.cuda.is_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def _runs(device: torch.device) -> bool:
    return available(device) or (triton is not None and os.environ.get("TRITON_INTERPRET") == "1")


# --- kernels -------------------------------------------------------------------------------------------------
# One program per (model, tile). The model's offset is 64-bit, offsets within a model are 32-bit.


def _jit(fn: Any) -> Any:
    # Batch sizes and splits vary from step to step; a compilation for each would cost more than it gains.
    return triton.jit(fn, do_not_specialize=("rows", "per", "splits")) if triton else fn


@_jit
def _pool(acc, BM: constexpr, BN: constexpr):  # type: ignore[no-untyped-def]
    """Each window's maximum and its position. Ties go to the first, and NaN stays, as in PyTorch."""
    upper, lower = tl.split(acc.reshape(2, BM // 32, 2, 8, BN).permute(1, 2, 3, 4, 0))
    v0, v1 = tl.split(upper.permute(0, 2, 3, 1))
    v2, v3 = tl.split(lower.permute(0, 2, 3, 1))
    arg, best = tl.where(v1 > v0, 1, 0), tl.maximum(v0, v1, propagate_nan=tl.PropagateNan.ALL)
    arg, best = tl.where(v2 > best, 2, arg), tl.maximum(best, v2, propagate_nan=tl.PropagateNan.ALL)
    arg, best = tl.where(v3 > best, 3, arg), tl.maximum(best, v3, propagate_nan=tl.PropagateNan.ALL)
    return best.reshape(BM // 4, BN), arg.reshape(BM // 4, BN)


@_jit
def _taps(x, top, left, corner, live, k, x_h, x_w, x_c, H: constexpr, W: constexpr, C: constexpr):  # type: ignore[no-untyped-def]
    """What the 3x3 kernels of some positions see: [positions, k], where k counts channel and tap as the weights do."""
    y, z = top[:, None] + k[None, :] % 9 // 3, left[:, None] + k[None, :] % 3
    inside = live[:, None] & (k < 9 * C)[None, :] & (y >= 0) & (y < H) & (z >= 0) & (z < W)
    at = corner[:, None] + (k // 9 * x_c + k % 9 // 3 * x_h + k % 3 * x_w)[None, :]
    return tl.load(x + at, mask=inside, other=0.0)


@_jit
def _conv(  # type: ignore[no-untyped-def]
    x, w, b, y, code, x_m, x_b, x_h, x_w, x_c, rows, H: constexpr, W: constexpr, QH: constexpr, QW: constexpr,
    C: constexpr, N: constexpr, FIRST: constexpr, POOL: constexpr, PRECISION: constexpr,
    BM: constexpr, BN: constexpr, BK: constexpr,
):  # fmt: skip
    """x [m, batch, H, W, C] to y [m, batch, QH, QW, N]: pooled, or else not pooled and w mirrored.

    The weights are [m, 9, N, C], or [m, N, C * 9] for a first layer: the depth is innermost, as wgmma wants it in tf32.
    """
    TN: constexpr = (N + BN - 1) // BN
    KB: constexpr = (C + BK - 1) // BK
    BP: constexpr = BM // 4 if POOL else BM
    pid, tiles = tl.program_id(0), tl.cdiv(rows, BP)
    n, start = pid % TN * BN + tl.arange(0, BN), pid // TN % tiles * BP
    model, r = (pid // TN // tiles).to(tl.int64), tl.arange(0, BM)
    if POOL:
        # The four positions of a window lie 8 and BM/2 rows apart: just those rows of the accumulator (wgmma, at least
        # 32 rows per warp) are held by one thread, so that pooling below moves no data.
        p = start + r % (BM // 2) // 16 * 8 + r % 8
        top, left = p // QW % QH * 2 + r // (BM // 2) - 1, p % QW * 2 + r // 8 % 2 - 1
    else:
        p = start + r
        top, left = p // QW % QH - 1, p % QW - 1
    x += model * x_m
    w += model * (9 * N * C)
    live, corner = p < rows, p // (QH * QW) * x_b + top * x_h + left * x_w
    acc = tl.zeros((BM, BN), tl.float32)
    if FIRST:
        k = tl.arange(0, BK)
        at = w + n[None, :] * (9 * C) + k[:, None]
        weights = tl.load(at, mask=(k < 9 * C)[:, None] & (n < N)[None, :], other=0.0)
        image = _taps(x, top, left, corner, live, k, x_h, x_w, x_c, H, W, C).to(weights.dtype)
        acc = tl.dot(image, weights, acc, input_precision=PRECISION)
    else:
        for i in range(9 * KB):
            tap, c = i // KB, i % KB * BK + tl.arange(0, BK)
            dy, dx = tap // 3, tap % 3
            inside = live & (top + dy >= 0) & (top + dy < H) & (left + dx >= 0) & (left + dx < W)
            at = x + (corner + dy * x_h + dx * x_w)[:, None] + c[None, :] * x_c
            image = tl.load(at, mask=inside[:, None] & (c < C)[None, :], other=0.0)
            at = w + (tap if POOL else 8 - tap) * (N * C) + n[None, :] * C + c[:, None]
            weights = tl.load(at, mask=(c < C)[:, None] & (n < N)[None, :], other=0.0)
            acc = tl.dot(image, weights, acc, input_precision=PRECISION)
    p, at = start + tl.arange(0, BP), model * rows * N + n[None, :]
    mask = (p < rows)[:, None] & (n < N)[None, :]
    if POOL:
        best, arg = _pool(acc, BM, BN)
        best += tl.load(b + model * N + n, mask=n < N, other=0.0)[None, :]
        tl.store(code + at + p[:, None] * N, tl.where(best <= 0, 4, arg).to(tl.uint8), mask=mask)
        acc = tl.where(best <= 0, 0.0, best)
    tl.store(y + at + p[:, None] * N, acc.to(y.dtype.element_ty), mask=mask)


@_jit
def _unpool(dy, code, d, db, rows, QW: constexpr, N: constexpr, BP: constexpr, BN: constexpr):  # type: ignore[no-untyped-def]
    """Pooled gradients dy to full resolution d [m, batch, 2 QH, 2 QW, N], and their sums per tile for the bias."""
    tile, tiles = tl.program_id(0), tl.cdiv(rows, BP)
    model, n = (tile // tiles).to(tl.int64), tl.program_id(1) * BN + tl.arange(0, BN)
    p = tile % tiles * BP + tl.arange(0, BP)
    mask, at = (p < rows)[:, None] & (n < N)[None, :], model * rows * N + p[:, None] * N + n[None, :]
    grad, position = tl.load(dy + at, mask=mask, other=0.0), tl.load(code + at, mask=mask, other=4)
    d += model * rows * (4 * N) + (p // QW * (4 * QW) + p % QW * 2)[:, None] * N + n[None, :]
    for q in tl.static_range(4):
        value = tl.where(position == q, grad, 0.0).to(d.dtype.element_ty)
        tl.store(d + (q // 2 * 2 * QW + q % 2) * N, value, mask=mask)
    total = tl.sum(tl.where(position < 4, grad, 0.0).to(tl.float32), axis=0)
    tl.store(db + tile.to(tl.int64) * N + n, total, mask=n < N)


@_jit
def _wgrad(  # type: ignore[no-untyped-def]
    x, d, dw, x_m, x_b, x_h, x_w, x_c, rows, per, splits, H: constexpr, W: constexpr, GH: constexpr, GW: constexpr,
    C: constexpr, N: constexpr, PRECISION: constexpr, BN: constexpr, BC: constexpr, BR: constexpr,
):  # fmt: skip
    """dw [m, splits, 9, N, C] from d [m, batch, GH, GW, N]. A program does one row of three taps, which share d."""
    TN: constexpr = (N + BN - 1) // BN
    TC: constexpr = (C + BC - 1) // BC
    pid = tl.program_id(0)
    n, c = pid % TN * BN + tl.arange(0, BN), pid // TN % TC * BC + tl.arange(0, BC)
    dy, part = pid // (TN * TC) % 3, pid // (TN * TC * 3)
    model, begin = (part // splits).to(tl.int64), part % splits * per
    x += model * x_m
    d += model * rows * N
    acc0 = tl.zeros((BN, BC), tl.float32)
    acc1, acc2 = acc0, acc0
    for i in range(begin, min(begin + per, rows), BR):
        r = i + tl.arange(0, BR)
        y, left = r // GW % GH + dy - 1, r % GW
        grad = tl.load(d + r[:, None] * N + n[None, :], mask=(r < rows)[:, None] & (n < N)[None, :], other=0.0)
        at = x + (r // (GH * GW) * x_b + y * x_h + left * x_w)[:, None] + c[None, :] * x_c
        inside = ((r < rows) & (y >= 0) & (y < H))[:, None] & (c < C)[None, :]
        image = tl.load(at - x_w, mask=inside & (left > 0)[:, None], other=0.0)
        acc0 = tl.dot(tl.trans(grad), image, acc0, input_precision=PRECISION)
        image = tl.load(at, mask=inside, other=0.0)
        acc1 = tl.dot(tl.trans(grad), image, acc1, input_precision=PRECISION)
        image = tl.load(at + x_w, mask=inside & (left + 1 < W)[:, None], other=0.0)
        acc2 = tl.dot(tl.trans(grad), image, acc2, input_precision=PRECISION)
    dw += (part.to(tl.int64) * 9 + dy * 3) * (N * C) + n[:, None] * C + c[None, :]
    mask = (n < N)[:, None] & (c < C)[None, :]
    tl.store(dw, acc0, mask=mask)
    tl.store(dw + N * C, acc1, mask=mask)
    tl.store(dw + 2 * N * C, acc2, mask=mask)


@_jit
def _first_wgrad(  # type: ignore[no-untyped-def]
    x, dy, code, dw, db, x_m, x_b, x_h, x_w, x_c, rows, per, splits,
    H: constexpr, W: constexpr, QH: constexpr, QW: constexpr, C: constexpr, N: constexpr,
    HALF: constexpr, PRECISION: constexpr, BN: constexpr, BK: constexpr, BP: constexpr,
):  # fmt: skip
    """dw [m, splits, N, C * 9] and db [m, splits, N] of a first layer, from the pooled gradient and its code."""
    TN: constexpr = (N + BN - 1) // BN
    kind: constexpr = tl.bfloat16 if HALF else tl.float32
    pid, k = tl.program_id(0), tl.arange(0, BK)
    n, part = pid % TN * BN + tl.arange(0, BN), (pid // TN).to(tl.int64)
    model, begin = part // splits, pid // TN % splits * per
    x += model * x_m
    acc, total = tl.zeros((BN, BK), tl.float32), tl.zeros((BP, BN), tl.float32)
    for i in range(begin, min(begin + per, rows), BP):
        p = i + tl.arange(0, BP)
        mask, at = (p < rows)[:, None] & (n < N)[None, :], model * rows * N + p[:, None] * N + n[None, :]
        grad, position = tl.load(dy + at, mask=mask, other=0.0), tl.load(code + at, mask=mask, other=4)
        total += tl.where(position < 4, grad, 0.0).to(tl.float32)
        for q in tl.static_range(4):
            top, left = p // QW % QH * 2 + q // 2 - 1, p % QW * 2 + q % 2 - 1
            corner = p // (QH * QW) * x_b + top * x_h + left * x_w
            image = _taps(x, top, left, corner, p < rows, k, x_h, x_w, x_c, H, W, C).to(kind)
            routed = tl.where(position == q, grad, 0.0).to(kind)
            acc = tl.dot(tl.trans(routed), image, acc, input_precision=PRECISION)
    tl.store(db + part * N + n, tl.sum(total, axis=0), mask=n < N)
    at = dw + part * (9 * N * C) + n[:, None] * (9 * C) + k[None, :]
    tl.store(at, acc, mask=(n < N)[:, None] & (k < 9 * C)[None, :])


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
    _conv[(m * -(-positions // (rows // 4 if pool else rows)) * -(-n // columns),)](
        x, w, b, y, code if pool else y, *x.stride(), positions, h, w_, height, width, c, n, first, pool,
        PRECISIONS[precision][1], rows, columns, depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def spread(dy: Tensor, code: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """The gradient at full resolution, and its sums [m, tiles, out]."""
    (m, batch, height, width, n), block, columns = dy.shape, 32, min(128, _power(dy.shape[-1]))
    d = dy.new_empty((m, batch, 2 * height, 2 * width, n), dtype=PRECISIONS[precision][0])
    sums = dy.new_empty((m, -(-batch * height * width // block), n), dtype=torch.float32)
    grid = (m * sums.shape[1], -(-n // columns))
    _unpool[grid](dy, code, d, sums, batch * height * width, width, n, block, columns, num_warps=8)
    return d, sums


def weight_gradient(x: Tensor, d: Tensor, dw: Tensor, precision: str, tile: Tile) -> None:
    """dw [m, out, in, 3, 3] from the input and the gradient at full resolution."""
    (m, batch, height, width, n), (h, w, c), (rows, columns, depth, warps, stages) = d.shape, x.shape[2:], tile
    rows, columns, positions = min(rows, _power(n)), min(columns, _power(c)), batch * height * width
    tiles = 3 * -(-n // rows) * -(-c // columns)
    splits, per = _split(positions, depth, m * tiles, x.device)
    parts = dw.new_empty((m, splits, 3, 3, n, c))  # summed below and put into the order of the weights
    _wgrad[(m * splits * tiles,)](
        x, d, parts, *x.stride(), positions, per, splits, h, w, height, width, c, n,
        PRECISIONS[precision][1], rows, columns, depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    torch.sum(parts.permute(0, 1, 4, 5, 2, 3), 1, out=dw)


def first_gradient(x: Tensor, dy: Tensor, code: Tensor, precision: str, tile: Tile) -> tuple[Tensor, Tensor]:
    """dw [m, out, in, 3, 3] and db [m, out] of a first layer."""
    (m, batch, height, width, n), (h, w, c), (rows, _, depth, warps, stages) = dy.shape, x.shape[2:], tile
    rows, positions, (dtype, multiply) = min(rows, _power(n)), batch * height * width, PRECISIONS[precision]
    splits, per = _split(positions, depth, m * -(-n // rows), x.device)
    parts, sums = (dy.new_empty((m, splits, n, *k), dtype=torch.float32) for k in ((c, 3, 3), ()))
    _first_wgrad[(m * splits * -(-n // rows),)](
        x, dy, code, parts, sums, *x.stride(), positions, per, splits, h, w, height, width, c, n,
        dtype == torch.bfloat16, multiply, rows, _power(9 * c), depth, num_warps=warps, num_stages=stages,
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
        dw, db = w.new_empty(w.shape), w.new_empty((m, n))
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
        size, dims = info.batch_size, zip(inputs[:3], in_dims[:3], strict=True)
        whole = [t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0) for t, dim in dims]
        outputs = _Layer.apply(*(t.flatten(0, 1) for t in whole), inputs[3])
        return tuple(t.unflatten(0, (size, -1)) for t in outputs), (0, 0)


def conv_relu_pool(x: Tensor, w: Tensor, b: Tensor, precision: str) -> Tensor:
    """x [m, batch, H, W, in], w [m, out, in, 3, 3] and b [m, out], those in float32, to [m, batch, H//2, W//2, out].

    The result is bf16 in precision bf16, else float32. It may be differentiated once, and mapped over models.
    """
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if not _runs(x.device):
        raise FedekdError(f"the GPU kernels need Triton and an NVIDIA GPU, and this is device {str(x.device)!r}")
    if x.shape[1:4].numel() * max(x.shape[4], w.shape[1]) >= 2**31:
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
        if not _runs(x.device):
            return nn.functional.max_pool2d(nn.functional.conv2d(x, self.weight, self.bias, padding=1).relu(), 2)
        # In memory the channels are innermost. Like any convolution, it gives bf16 to the next layer in autocast only.
        y = conv_relu_pool(x.permute(0, 2, 3, 1)[None], self.weight[None], self.bias[None], self.precision)[0]
        return y.permute(0, 3, 1, 2).to(y.dtype if torch.is_autocast_enabled(x.device.type) else x.dtype)


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
