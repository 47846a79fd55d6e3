"""Conformal label sets (RAPS), which hold the true label with a chosen probability, as FedType uses them.

A sample's labels are taken in order of falling probability. The score of the label at rank r (from 1) is the
probability before it, plus a uniform draw's share of its own, plus ``lam`` for each rank past ``k_reg``. A
set holds the labels whose score is at most a threshold, found on data that the model was not trained on.

``logits`` and ``probs`` are [B, C]; ``labels``, ``uniform`` and ``mask`` are [B], and what a masked-out
sample holds, even a label that does not exist, changes no result. All functions work under vmap.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedekd.gate import _valid, _wide

TEMPERATURES = (0.05, 20.0)
"""Bounds of the fitted temperature; separable data would drive it to 0, wrong labels to infinity."""


class Calibration(NamedTuple):
    """What one model's sets need, both 0-d tensors (with a leading axis under vmap)."""

    temperature: Tensor
    threshold: Tensor


def calibrate(
    logits: Tensor,
    labels: Tensor,
    uniform: Tensor,
    k_reg: int,
    lam: float,
    level: float = 0.9,
    mask: Tensor | None = None,
) -> Calibration:
    """Temperature and threshold from the same samples, as RAPS has it.

    Only the threshold is exact: the one fitted temperature sees its labels too, which costs little coverage.
    """
    temperature = fit_temperature(logits, labels, mask)
    probs = (_wide(logits.detach()) / temperature).softmax(-1)
    return Calibration(temperature, threshold(scores(probs, labels, uniform, k_reg, lam), level, mask))


def predict_sets(logits: Tensor, uniform: Tensor, calibration: Calibration, k_reg: int, lam: float) -> Tensor:
    """Boolean [B, C] label sets of a calibrated model."""
    probs = (_wide(logits.detach()) / calibration.temperature).softmax(-1)
    return sets(probs, uniform, calibration.threshold, k_reg, lam)


def regularisation_rank(classes: int) -> int:
    """The rank up to which sets grow without penalty: 5, or less so that two ranks remain to be penalised.

    For two classes that leaves 0: rank 1 is penalised too, but a shift common to all scores changes no set.
    """
    return max(0, min(5, classes - 2))


def fit_temperature(logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """The temperature, within ``TEMPERATURES``, that minimises the negative log-likelihood.

    The likelihood is log-concave in 1/T, so bisection on its slope finds the one optimum, or a bound.
    """
    valid = _valid(labels, mask)
    z = torch.where(valid[:, None], logits.detach().double(), 0.0)
    own = z.gather(-1, torch.where(valid, labels, 0)[:, None])
    low, high = (torch.full((), -math.log(t), dtype=z.dtype, device=z.device) for t in reversed(TEMPERATURES))
    for _ in range(32):
        middle = (low + high) / 2
        # Derivative of the negative log-likelihood by 1/T: the mean logit it expects, less the label's.
        slope = ((z * middle.exp()).softmax(-1) * (z - own)).sum((-2, -1))
        low, high = torch.where(slope < 0, middle, low), torch.where(slope < 0, high, middle)
    return torch.exp(-(low + high) / 2).float()


def scores(probs: Tensor, labels: Tensor, uniform: Tensor, k_reg: int, lam: float) -> Tensor:
    """RAPS score of each sample's label."""
    order, ranked = _ranked_scores(probs, uniform, k_reg, lam)
    return torch.where(order == labels[:, None], ranked, 0.0).sum(-1)


def threshold(scores: Tensor, level: float = 0.9, mask: Tensor | None = None) -> Tensor:
    """The conformal quantile of n valid scores: the ceil((n + 1) level)-th smallest.

    The plain empirical quantile at ``level`` would cover too little on new data; one more sample in the count
    mends that. With n < level / (1 - level) samples no finite threshold can reach the level and the largest
    score is taken, which covers n / (n + 1). No samples at all give infinity: full sets.
    """
    valid = _valid(scores, mask)
    ordered = torch.where(valid, scores, math.inf).sort(-1).values
    count = valid.sum(-1, keepdim=True)
    rank = ((count + 1).double() * level - 1e-9).ceil().long()  # 1e-9: a whole number is not rounded up
    return ordered.gather(-1, (torch.minimum(rank, count) - 1).clamp(min=0)).squeeze(-1)


def sets(probs: Tensor, uniform: Tensor, q: float | Tensor, k_reg: int, lam: float) -> Tensor:
    """Boolean [B, C]: the labels whose score is at most ``q``, and always the most probable one.

    Scores never fall with rank, so this is RAPS's first ranks up to the randomised last one.
    """
    order, ranked = _ranked_scores(probs, uniform, k_reg, lam)
    first = torch.arange(probs.shape[-1], device=probs.device) == 0
    return ((ranked <= q) | first).gather(-1, order.argsort(-1))


def set_agreement(sf: Tensor, sg: Tensor) -> Tensor:
    """How far the private sets ``sf`` agree with the proxy's ``sg``, in [0, 1].

    The shared labels' part of the union, or of ``sg`` alone where the private set is the larger.
    """
    shared, nf, ng = (sf & sg).sum(-1), sf.sum(-1), sg.sum(-1)
    return shared / torch.where(nf <= ng, (sf | sg).sum(-1), ng).clamp(min=1)


def ranking_loss(logits: Tensor, members: Tensor) -> Tensor:
    """Per sample, by how much a label outside the set outranks one inside, averaged over all such pairs.

    A set of all labels has no pair and costs 0.
    """
    logits = _wide(logits)
    outranked = (logits[:, None, :] - logits[:, :, None]).relu()  # [B, inside, outside]
    pair = members[:, :, None] & ~members[:, None, :]
    return torch.where(pair, outranked, 0.0).sum((-2, -1)) / pair.sum((-2, -1)).clamp(min=1)


def _ranked_scores(probs: Tensor, uniform: Tensor, k_reg: int, lam: float) -> tuple[Tensor, Tensor]:
    """The labels by falling probability, and the score that each would have if it were the true one."""
    ranked, order = probs.sort(stable=True, dim=-1, descending=True)
    past = (torch.arange(1, probs.shape[-1] + 1, device=probs.device) - k_reg).clamp(min=0)
    before = ranked.cumsum(-1) - ranked
    return order, before + uniform[:, None] * ranked + lam * past
