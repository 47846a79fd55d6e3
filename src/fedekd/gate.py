"""The energy gate: how much a private model trusts its proxy teacher, sample by sample.

Pure functions on tensors, for any training loop; nothing but torch is needed. One step on one batch:

    private, proxy = private_model(x), proxy_model(x).detach()
    weights = gate.trust(gate.energy_kl(private, proxy), beta=1.0)
    transfer = gate.gated_distillation(gate.kl(teacher=proxy, student=private), weights)
    loss = torch.nn.functional.cross_entropy(private, y) + lambda_kd * transfer
    optimizer.zero_grad(); loss.backward()
    optimizer.step()

For regression take ``energy_squared`` and ``squared_error`` in place of ``energy_kl`` and ``kl``.

Logits are [B, C], regression outputs [B] or [B, D], and every result is per sample, [B]. A ``mask`` [B],
boolean or 0/1, marks the valid samples of a padded batch: what the others hold, even NaN, changes no result.
All functions can be mapped with ``torch.func.vmap``, and half-precision inputs are computed in float32. Mapped over
models on an NVIDIA GPU, ``kl``, ``energy_kl``, ``trust`` and ``masked_mean`` are one kernel each, without a second
derivative.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

EPS_H = 1e-8
"""Added to the summed entropies under the classification energy."""
EPS_B = 1e-8
"""Added to the batch deviation of the energies."""

_QUANTUM = 2.0**-40


def _wide(x: Tensor) -> Tensor:
    """At least float32; float64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _valid(values: Tensor, mask: Tensor | None) -> Tensor:
    return torch.ones_like(values, dtype=torch.bool) if mask is None else mask.bool()


def kernels(*given: Tensor) -> Any:
    """What does the same as one kernel, where there is one for such tensors."""
    if not any(torch._C._functorch.is_batchedtensor(t) for t in given):
        return None
    if given[0].device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return None  # known without importing Triton
    from fedekd.engines import fused_losses

    return fused_losses if fused_losses.usable(*given) else None


# Distillation distances


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher ‖ student) of two batches of logits. Nothing is detached: that is the caller's choice."""
    if teacher.shape == student.shape and (fused := kernels(teacher, student)):
        return fused.kl(teacher, student)
    t, s = log_softmax(_wide(teacher), -1), log_softmax(_wide(student), -1)
    return (t.exp() * (t - s)).sum(-1)


def squared_error(teacher: Tensor, student: Tensor) -> Tensor:
    """Squared difference, summed over the output dimensions (not averaged)."""
    if teacher.shape != student.shape:  # [B] against [B, 1] would broadcast to [B, B] without a word
        raise ValueError(f"outputs differ in shape: {tuple(teacher.shape)} and {tuple(student.shape)}")
    squares = (_wide(teacher) - _wide(student)).square()
    return squares if squares.ndim == 1 else squares.flatten(1).sum(-1)


# Energies: the higher, the less the proxy is trusted


def energy_kl(private: Tensor, proxy: Tensor) -> Tensor:
    """Symmetric KL over the summed entropies: a confident contradiction scores high, a diffuse one low.

    It spans many orders of magnitude, from 0 to 1e12 and more for one-hot predictions of different classes.
    """
    if private.shape == proxy.shape and (fused := kernels(private, proxy)):
        return fused.energy(private, proxy, EPS_H)
    lp, lq = log_softmax(_wide(private), -1), log_softmax(_wide(proxy), -1)
    p, q = lp.exp(), lq.exp()
    symmetric = 0.5 * ((p - q) * (lp - lq)).sum(-1)  # no term is negative, so nothing cancels
    return symmetric / (EPS_H - (p * lp + q * lq).sum(-1))


def energy_squared(private: Tensor, proxy: Tensor) -> Tensor:
    """Half the squared distance of two regression outputs."""
    return 0.5 * squared_error(private, proxy)


def energy_entropy(proxy: Tensor) -> Tensor:
    """Entropy of the proxy's prediction; in log space it needs no constant inside the logarithm."""
    log_p = log_softmax(_wide(proxy), -1)
    return -(log_p.exp() * log_p).sum(-1)


def energy_margin(proxy: Tensor) -> Tensor:
    """Minus the gap between the proxy's two largest logits."""
    top = _wide(proxy).topk(2, dim=-1).values
    return top[..., 1] - top[..., 0]


def energy_lse(proxy: Tensor) -> Tensor:
    """Minus the log-sum-exp of the proxy's logits. It alone moves when all logits shift together."""
    return -_wide(proxy).logsumexp(-1)


def energy_feature(private_features: Tensor, proxy_features: Tensor, projection: Tensor) -> Tensor:
    """Euclidean distance of the proxy's features to the private ones sent through ``projection``."""
    private = _wide(private_features).flatten(1)
    projected = private @ projection.to(private.dtype)
    return torch.linalg.vector_norm(_wide(proxy_features).flatten(1) - projected, dim=-1)


def projection(d_private: int, d_proxy: int, seed: int) -> Tensor:
    """A fixed random [d_private, d_proxy] matrix for ``energy_feature``. Draw it once, outside of vmap."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(d_private, d_proxy, generator=generator) / math.sqrt(d_private)


# Weights


def trust(energy: Tensor, beta: float | Tensor = 1.0, mask: Tensor | None = None) -> Tensor:
    """Logistic trust weights of energies normalised within the batch, detached and in float32.

    A sample at the batch's mean energy gets 1/2, a batch of one and equal energies exactly so; padding gets
    0. A padded batch, alone or under vmap, gives the weights of the unpadded one (for up to 8192 samples).
    """
    valid = _valid(energy, mask)
    one_batch = energy.ndim == 1 and valid.shape == energy.shape and not (isinstance(beta, Tensor) and beta.ndim)
    if one_batch and (fused := kernels(energy)):
        return fused.trust(energy, beta, valid, EPS_B)
    energy = energy.double()
    # From the smallest energy, in units of the range: equal energies are exactly 0, no square overflows.
    low = torch.where(valid, energy, math.inf).amin(-1, keepdim=True)
    excess = torch.where(valid, energy - low, 0.0)
    span = excess.amax(-1, keepdim=True)
    span = torch.where(span == 0, 1.0, span)
    unit = excess / span
    count = valid.sum(-1, keepdim=True).clamp(min=1)
    offset = torch.where(valid, unit - _exact_sum(unit) / count, 0.0)
    deviation = (_exact_sum(offset.square()) / count).sqrt()
    # Not torch.sigmoid, whose last bit on a CPU depends on a sample's place in the batch.
    weights = 1 / (1 + (beta * offset / (deviation + EPS_B / span)).exp())
    return torch.where(valid, weights, 0.0).float().detach()


def _exact_sum(unit: Tensor) -> Tensor:
    """Sum of float64 values in [0, 1], each rounded to a grid on which float64 addition has no error.

    Without an error the order cannot matter, nor can zeros in between: padding leaves every bit as it was.
    """
    return (unit / _QUANTUM).round().sum(-1, keepdim=True) * _QUANTUM


def constant(energy: Tensor, value: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """Control: the same weight for all, 1 for no gate, 1/2 for the gate's usual mean without its choice."""
    return torch.where(_valid(energy, mask), value, 0.0).float()


def permute(weights: Tensor, uniform: Tensor, mask: Tensor | None = None) -> Tensor:
    """Control: the gate's own weights, dealt to the wrong samples.

    The k-th valid sample gets the weight of the valid one whose ``uniform`` draw is the k-th smallest, so a
    padded batch deals as the unpadded one does.
    """
    valid = _valid(weights, mask)
    source = torch.where(valid, uniform, math.inf).argsort(dim=-1, stable=True)
    target = (~valid).int().argsort(dim=-1, stable=True)
    dealt = torch.zeros_like(weights).scatter(-1, target, weights.gather(-1, source))
    return torch.where(valid, dealt, 0.0)


# Losses


def masked_mean(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over the valid samples, 0 when there are none. Padded ``values``, even NaN, get a gradient of 0.

    Where they came from NaN inputs, their own backward pass may still make that 0 a NaN: pad inputs with 0.
    """
    valid = _valid(values, mask)
    if values.ndim == 1 and valid.shape == values.shape and (fused := kernels(values)):
        return fused.mean(values, valid)
    return torch.where(valid, _wide(values), 0.0).sum(-1) / valid.sum(-1).clamp(min=1)


def gated_distillation(distance: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean of the weighted distances over the valid samples; no gradient passes through the weights.

    The divisor is the number of samples, not the sum of weights: a distrusted batch counts for less.
    """
    weights = torch.where(_valid(weights, mask), weights.detach(), 0.0)
    return masked_mean(weights * distance, mask)
