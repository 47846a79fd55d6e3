"""What the fused losses run on the GPU, in Triton: distributions row by row, and batches model by model.

Rows are float32 logits [rows, C], which lie in memory one after another; batches are [models, B].
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


def _jit(fn: Any) -> Any:
    return triton.jit(fn, do_not_specialize=("rows", "size")) if triton else fn


@_jit
def _log_softmax(x, C: constexpr, R: constexpr, CP: constexpr, row, rows):  # type: ignore[no-untyped-def]
    """Of these rows [R, CP]; what lies behind the classes is minus infinity."""
    c = tl.arange(0, CP)[None, :]
    inside = (row < rows)[:, None] & (c < C)
    logits = tl.load(x + row[:, None].to(tl.int64) * C + c, mask=inside, other=0.0)
    logits = tl.where(c < C, logits, float("-inf"))
    shifted = logits - tl.max(logits, 1)[:, None]
    return shifted - tl.log(tl.sum(tl.exp(shifted), 1))[:, None]


@_jit
def cross_entropy(x, y, out, rows, C: constexpr, R: constexpr, CP: constexpr):  # type: ignore[no-untyped-def]
    row, c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, CP)[None, :]
    right = c == tl.load(y + row, mask=row < rows, other=0)[:, None]
    tl.store(out + row, -tl.sum(tl.where(right, _log_softmax(x, C, R, CP, row, rows), 0.0), 1), mask=row < rows)


@_jit
def cross_entropy_gradient(x, y, g, dx, rows, C: constexpr, R: constexpr, CP: constexpr):  # type: ignore[no-untyped-def]
    row, c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, CP)[None, :]
    y = tl.load(y + row, mask=row < rows, other=0)[:, None]
    slope = tl.exp(_log_softmax(x, C, R, CP, row, rows)) - tl.where(c == y, 1.0, 0.0)
    slope = tl.where(y >= 0, slope, 0.0)  # -100 is torch's word for a row without a target
    g = tl.load(g + row, mask=row < rows, other=0.0)[:, None]
    tl.store(dx + row[:, None].to(tl.int64) * C + c, g * slope, mask=(row < rows)[:, None] & (c < C))


@_jit
def kl(t, s, out, rows, C: constexpr, R: constexpr, CP: constexpr):  # type: ignore[no-untyped-def]
    row, c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, CP)[None, :]
    t, s = _log_softmax(t, C, R, CP, row, rows), _log_softmax(s, C, R, CP, row, rows)
    tl.store(out + row, tl.sum(tl.where(c < C, tl.exp(t) * (t - s), 0.0), 1), mask=row < rows)


@_jit
def kl_gradient(  # type: ignore[no-untyped-def]
    t, s, g, dt, ds, rows, TEACHER: constexpr, STUDENT: constexpr, C: constexpr, R: constexpr, CP: constexpr
):  # fmt: skip
    row, c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, CP)[None, :]
    at, inside = row[:, None].to(tl.int64) * C + c, (row < rows)[:, None] & (c < C)
    t, s = _log_softmax(t, C, R, CP, row, rows), _log_softmax(s, C, R, CP, row, rows)
    p, g = tl.exp(t), tl.load(g + row, mask=row < rows, other=0.0)[:, None]
    if STUDENT:
        tl.store(ds + at, g * (tl.exp(s) - p), mask=inside)
    if TEACHER:
        apart = tl.where(c < C, t - s, 0.0)
        tl.store(dt + at, g * p * (apart - tl.sum(p * apart, 1)[:, None]), mask=inside)


@_jit
def energy(p, q, out, rows, EPS: constexpr, C: constexpr, R: constexpr, CP: constexpr):  # type: ignore[no-untyped-def]
    """The symmetric KL over the summed entropies."""
    row, c = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, CP)[None, :]
    lp, lq = _log_softmax(p, C, R, CP, row, rows), _log_softmax(q, C, R, CP, row, rows)
    p, q = tl.exp(lp), tl.exp(lq)
    symmetric = 0.5 * tl.sum(tl.where(c < C, (p - q) * (lp - lq), 0.0), 1)
    entropies = -tl.sum(tl.where(c < C, p * lp + q * lq, 0.0), 1)
    tl.store(out + row, symmetric / (EPS + entropies), mask=row < rows)


@_jit
def _exact_sum(unit):  # type: ignore[no-untyped-def]
    """Of float64 in [0, 1], each rounded to a multiple of 2^-40, so that no order makes a difference."""
    nearest = (unit * 1099511627776.0 + 6755399441055744.0) - 6755399441055744.0
    return tl.sum(nearest, 0) / 1099511627776.0


@_jit
def trust(e, beta, real, out, size, EPS: constexpr, P: constexpr):  # type: ignore[no-untyped-def]
    """The weights of one model's batch."""
    k, base = tl.arange(0, P), tl.program_id(0).to(tl.int64) * size
    valid = tl.load(real + base + k, mask=k < size, other=0) != 0
    e = tl.load(e + base + k, mask=k < size, other=0.0).to(tl.float64)
    excess = tl.where(valid, e - tl.min(tl.where(valid, e, float("inf")), 0), 0.0)
    span = tl.max(excess, 0)
    span = tl.where(span == 0, 1.0, span)
    unit, count = excess / span, tl.maximum(tl.sum(valid.to(tl.int32), 0), 1)
    offset = tl.where(valid, unit - _exact_sum(unit) / count, 0.0)
    deviation = tl.sqrt(_exact_sum(offset * offset) / count)
    weights = 1 / (1 + tl.exp(tl.load(beta + tl.program_id(0)) * offset / (deviation + EPS / span)))
    tl.store(out + base + k, tl.where(valid, weights, 0.0).to(tl.float32), mask=k < size)


@_jit
def mean(v, real, out, size, P: constexpr):  # type: ignore[no-untyped-def]
    k, base = tl.arange(0, P), tl.program_id(0).to(tl.int64) * size
    valid = tl.load(real + base + k, mask=k < size, other=0) != 0
    total = tl.sum(tl.where(valid, tl.load(v + base + k, mask=k < size, other=0.0), 0.0), 0)
    tl.store(out + tl.program_id(0), total / tl.maximum(tl.sum(valid.to(tl.int32), 0), 1))


@_jit
def mean_gradient(g, real, dv, size, P: constexpr):  # type: ignore[no-untyped-def]
    k, base = tl.arange(0, P), tl.program_id(0).to(tl.int64) * size
    valid = tl.load(real + base + k, mask=k < size, other=0) != 0
    share = tl.load(g + tl.program_id(0)) / tl.maximum(tl.sum(valid.to(tl.int32), 0), 1)
    tl.store(dv + base + k, tl.where(valid, share, 0.0), mask=k < size)
