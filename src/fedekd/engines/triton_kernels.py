"""What runs on the GPU, in Triton: the programs of the stacked convolution, which `fused_conv` launches, and Adam.

The forward program is a matrix product whose left rows are gathered from the image on the way (implicit GEMM); bias,
ReLU and pooling happen in registers, so the full-resolution maps never reach memory. Beside the pooled map it writes a
code per value: 0..3, the position in the 2x2 window that won (row by row), or 4, a ReLU zero, through which no gradient
flows. Backward, ``unpool`` spreads the gradient to full resolution by that code. Two more matrix products follow: the
convolution with mirrored weights gives the input's gradient, ``wgrad`` the weights'. First layers (up to 4 input
channels) are bound by memory, not arithmetic: their taps and channels form the depth of a single product, and
``first_wgrad`` routes the pooled gradient in registers and never writes the spread one. No atomics: equal stacks give
equal bits.
"""

from __future__ import annotations

from typing import Any

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr
except ImportError:  # CPU installations have no Triton, and need none
    triton = None
INSTALLED = triton is not None


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
def _taps(  # type: ignore[no-untyped-def]
    x, top, left, corner, live, k, x_h, x_w, x_c, H: constexpr, W: constexpr, C: constexpr, SIDE: constexpr
):  # fmt: skip
    """Squares of the image from some corners on: [corners, k], where k counts channel and pixel as the weights do."""
    dy, dx, c = k % (SIDE * SIDE) // SIDE, k % SIDE, k // (SIDE * SIDE)
    y, z = top[:, None] + dy[None, :], left[:, None] + dx[None, :]
    inside = live[:, None] & (c < C)[None, :] & (y >= 0) & (y < H) & (z >= 0) & (z < W)
    return tl.load(x + corner[:, None] + (c * x_c + dy * x_h + dx * x_w)[None, :], mask=inside, other=0.0)


@_jit
def conv(  # type: ignore[no-untyped-def]
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
        image = _taps(x, top, left, corner, live, k, x_h, x_w, x_c, H, W, C, 3).to(weights.dtype)
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
def unpool(dy, code, d, db, rows, QW: constexpr, N: constexpr, BP: constexpr, BN: constexpr):  # type: ignore[no-untyped-def]
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
def halve(x, y, rows, C: constexpr, B: constexpr):  # type: ignore[no-untyped-def]
    """float32 x [rows, C] as the sum of two bf16: y [rows, 2, C] holds the nearest bf16 and what is left to x."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live, at = i // C < rows, y + i // C * (2 * C) + i % C
    value = tl.load(x + i, mask=live, other=0.0)
    high = value.to(tl.bfloat16)
    tl.store(at, high, mask=live)
    tl.store(at + C, (value - high.to(tl.float32)).to(tl.bfloat16), mask=live)


@_jit
def _tap(acc, grad, low, at, mask, C: constexpr, HALVES: constexpr, PRECISION: constexpr):  # type: ignore[no-untyped-def]
    """The sum goes on by one tap. Of halves, the product of both lower ones is too small to matter."""
    image = tl.load(at, mask=mask, other=0.0)
    if HALVES == 2:
        acc = tl.dot(tl.trans(low), image, acc)
        acc = tl.dot(tl.trans(grad), tl.load(at + C, mask=mask, other=0.0), acc)
    return tl.dot(tl.trans(grad), image, acc, input_precision=PRECISION)


@_jit
def wgrad(  # type: ignore[no-untyped-def]
    x, d, dw, x_m, x_b, x_h, x_w, x_c, rows, per, splits, H: constexpr, W: constexpr, GH: constexpr, GW: constexpr,
    C: constexpr, N: constexpr, HALVES: constexpr, PRECISION: constexpr, BN: constexpr, BC: constexpr, BR: constexpr,
):  # fmt: skip
    """dw [m, splits, 9, N, C] from d [m, batch, GH, GW, N]. A program does one row of three taps, which share d.

    With HALVES of 2, x and d are those of ``halve``, and their lower halves lie C and N further on.
    """
    TN: constexpr = (N + BN - 1) // BN
    TC: constexpr = (C + BC - 1) // BC
    pid = tl.program_id(0)
    n, c = pid % TN * BN + tl.arange(0, BN), pid // TN % TC * BC + tl.arange(0, BC)
    dy, part = pid // (TN * TC) % 3, pid // (TN * TC * 3)
    model, begin = (part // splits).to(tl.int64), part % splits * per
    x += model * x_m
    d += model * rows * (HALVES * N)
    acc0 = tl.zeros((BN, BC), tl.float32)
    acc1, acc2 = acc0, acc0
    for i in range(begin, min(begin + per, rows), BR):
        r = i + tl.arange(0, BR)
        y, left = r // GW % GH + dy - 1, r % GW
        there, live = d + r[:, None] * (HALVES * N) + n[None, :], (r < rows)[:, None] & (n < N)[None, :]
        grad = tl.load(there, mask=live, other=0.0)
        low = tl.load(there + N, mask=live, other=0.0) if HALVES == 2 else grad
        at = x + (r // (GH * GW) * x_b + y * x_h + left * x_w)[:, None] + c[None, :] * x_c
        inside = ((r < rows) & (y >= 0) & (y < H))[:, None] & (c < C)[None, :]
        acc0 = _tap(acc0, grad, low, at - x_w, inside & (left > 0)[:, None], C, HALVES, PRECISION)
        acc1 = _tap(acc1, grad, low, at, inside, C, HALVES, PRECISION)
        acc2 = _tap(acc2, grad, low, at + x_w, inside & (left + 1 < W)[:, None], C, HALVES, PRECISION)
    dw += (part.to(tl.int64) * 9 + dy * 3) * (N * C) + n[:, None] * C + c[None, :]
    mask = (n < N)[:, None] & (c < C)[None, :]
    tl.store(dw, acc0, mask=mask)
    tl.store(dw + N * C, acc1, mask=mask)
    tl.store(dw + 2 * N * C, acc2, mask=mask)


@_jit
def _route(acc, patch, grad, position, q: constexpr, PRECISION: constexpr):  # type: ignore[no-untyped-def]
    """The sum goes on by the gradients whose position in the window won."""
    return tl.dot(patch, tl.where(position == q, grad, 0.0).to(patch.dtype), acc, input_precision=PRECISION)


@_jit
def first_wgrad(  # type: ignore[no-untyped-def]
    x, dy, code, dw, db, x_m, x_b, x_h, x_w, x_c, rows, per, splits,
    H: constexpr, W: constexpr, QH: constexpr, QW: constexpr, C: constexpr, N: constexpr,
    HALF: constexpr, PRECISION: constexpr, BN: constexpr, BT: constexpr, BK: constexpr, BP: constexpr,
):  # fmt: skip
    """dw [m, splits, N, C * 9] and db [m, splits, N] of a first layer, from the pooled gradient and its code.

    What the four positions of a window see lies in one patch of 4x4 pixels, which is read once. Each position has a
    sum over whole patches; in the end its 9 taps are picked out of the 16 pixels, from its own corner on.
    """
    TN: constexpr = (N + BN - 1) // BN
    kind: constexpr = tl.bfloat16 if HALF else tl.float32
    pid, k = tl.program_id(0), tl.arange(0, BK)
    n, part = pid % TN * BN + tl.arange(0, BN), (pid // TN).to(tl.int64)
    model, begin = part // splits, pid // TN % splits * per
    x += model * x_m
    acc0, total = tl.zeros((BK, BN), tl.float32), tl.zeros((BP, BN), tl.float32)
    acc1, acc2, acc3 = acc0, acc0, acc0
    for i in range(begin, min(begin + per, rows), BP):
        p = i + tl.arange(0, BP)
        mask, at = (p < rows)[:, None] & (n < N)[None, :], model * rows * N + p[:, None] * N + n[None, :]
        grad, position = tl.load(dy + at, mask=mask, other=0.0), tl.load(code + at, mask=mask, other=0)
        total += tl.where(position < 4, grad, 0.0).to(tl.float32)
        top, left = p // QW % QH * 2 - 1, p % QW * 2 - 1
        corner = p // (QH * QW) * x_b + top * x_h + left * x_w
        patch = tl.trans(_taps(x, top, left, corner, p < rows, k, x_h, x_w, x_c, H, W, C, 4).to(kind))
        acc0 = _route(acc0, patch, grad, position, 0, PRECISION)
        acc1 = _route(acc1, patch, grad, position, 1, PRECISION)
        acc2 = _route(acc2, patch, grad, position, 2, PRECISION)
        acc3 = _route(acc3, patch, grad, position, 3, PRECISION)
    tl.store(db + part * N + n, tl.sum(total, axis=0), mask=n < N)
    t = tl.arange(0, BT)
    tap = tl.minimum(t, 9 * C - 1)
    pixel = (tap // 9 * 16 + tap % 9 // 3 * 4 + tap % 3)[:, None] + tl.zeros((BT, BN), tl.int32)
    acc = tl.gather(acc0, pixel, 0) + tl.gather(acc1, pixel + 1, 0)
    acc += tl.gather(acc2, pixel + 4, 0) + tl.gather(acc3, pixel + 5, 0)
    at = dw + part * (9 * N * C) + n[None, :] * (9 * C) + t[:, None]
    tl.store(at, acc, mask=(n < N)[None, :] & (t < 9 * C)[:, None])


@_jit
def adam(  # type: ignore[no-untyped-def]
    w, g, m, v, rate, clock, table, size,
    DECAY: constexpr, BETA1: constexpr, BETA2: constexpr, EPS: constexpr, B: constexpr,
):  # fmt: skip
    """One step for weights w with gradients g, in place: m and v are the running means, in the order of memory."""
    lr, step = tl.load(rate), tl.load(clock)
    scale, root = lr * tl.load(table + 2 * step), tl.load(table + 2 * step + 1)
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = i < size
    grad, mean = tl.load(g + i, mask=there, other=0.0), tl.load(m + i, mask=there, other=0.0)
    square, weight = tl.load(v + i, mask=there, other=0.0), tl.load(w + i, mask=there, other=0.0)
    mean += (1 - BETA1) * (grad - mean)
    square += (1 - BETA2) * (grad * grad - square)
    weight -= lr * DECAY * weight
    tl.store(m + i, mean, mask=there)
    tl.store(v + i, square, mask=there)
    tl.store(w + i, weight - scale * mean / (tl.sqrt(square) * root + EPS), mask=there)
