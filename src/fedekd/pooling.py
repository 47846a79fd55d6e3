"""What a client makes of several opinions: a head in closed form, and weights for experts that its own rows choose.

Everything is done with rows' weights in place of choosing rows, so that it can be mapped over clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

NEWTON = 8  # steps; each goes the best of these shares of the way
SHARES = (1.0, 0.5, 0.2, 0.05, 0.0)
ABSENT = -30.0  # log-odds of a class that a client has never seen


def lda_heads(
    features: Tensor, y: Tensor, real: Tensor, classes: int, shrinkages: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Weights [S, C, D] and biases [S, C] of linear discriminant analysis with a covariance shrunken S times."""
    real = real.to(features.dtype)
    own = F.one_hot(y, classes).to(features.dtype) * real.unsqueeze(-1)
    counts, rows = own.sum(0), real.sum().clamp(min=1)
    means = own.T @ features / counts.clamp(min=1).unsqueeze(-1)
    within = (features - own @ means) * real.unsqueeze(-1)
    seen = counts > 0
    weight = _solved(_covariances(within, rows, shrinkages), means.T).mT
    weight = torch.where(seen.unsqueeze(-1), weight, 0.0)
    bias = torch.where(seen, (counts.clamp(min=1) / rows).log() - (weight * means).sum(-1) / 2, ABSENT)
    return weight, bias


def ridge_heads(features: Tensor, y: Tensor, real: Tensor, shrinkages: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Weights [S, 1, D] and biases [S, 1] of ridge regression, which leaves the mean alone."""
    real = real.to(features.dtype)
    rows = real.sum().clamp(min=1)
    centre, level = (real @ features) / rows, (real * y).sum() / rows
    centred = (features - centre) * real.unsqueeze(-1)
    weight = _solved(_covariances(centred, rows, shrinkages), (centred.T @ (y - level) / rows).unsqueeze(-1)).mT
    return weight, level - weight @ centre


def near_heads(
    features: Tensor, given: Tensor, y: Tensor, real: Tensor, shrinkages: Sequence[float], steps: int = 60
) -> tuple[Tensor, Tensor]:
    """Weights [S, C, D] and biases [S, C] whose logits are added to ``given`` [B, C]: logistic regression drawn to no
    change, S times.

    Each step minimises a parabola that lies above the loss everywhere (Böhning, 1992), so that none goes too far.
    """
    wide, level, pull = _widened(features, real, shrinkages)
    own = F.one_hot(y, given.shape[-1]).to(wide.dtype)
    matrices = wide.T @ wide / 2 + pull
    inverse = _solved(matrices, torch.eye(wide.shape[-1], dtype=wide.dtype, device=wide.device))
    change = wide.new_zeros(len(shrinkages), given.shape[-1], wide.shape[-1])
    for _ in range(steps):
        off = torch.softmax(given + wide @ change.mT, -1) - own
        change = change - (off.mT @ wide + change @ pull) @ inverse
    return change[..., :-1], change[..., -1] * level


def near_ridges(
    features: Tensor, given: Tensor, y: Tensor, real: Tensor, shrinkages: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Weights [S, 1, D] and biases [S, 1] of values added to ``given`` [B]: ridge regression drawn to no change."""
    wide, level, pull = _widened(features, real, shrinkages)
    change = _solved(wide.T @ wide + pull, (wide.T @ (y - given)).unsqueeze(-1)).mT
    return change[..., :-1], change[..., -1] * level


def _widened(features: Tensor, real: Tensor, shrinkages: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Features with a constant of their own size beside them (0 in padding), that constant, and the ridges [S, ...]."""
    real = real.to(features.dtype).unsqueeze(-1)
    level = ((features * real).square().mean(-1).sum() / real.sum().clamp(min=1) + 1e-6).sqrt()
    wide = torch.cat([features, level.expand(features.shape[0], 1)], -1) * real
    identity = torch.eye(wide.shape[-1], dtype=wide.dtype, device=wide.device)
    size = level.square() * real.sum().clamp(min=1)
    return wide, level, torch.stack([shrinkage * size * identity for shrinkage in shrinkages])


def _covariances(centred: Tensor, rows: Tensor, shrinkages: Sequence[float]) -> Tensor:
    """Drawn towards a sphere of the mean variance, and a little even without shrinkage, so that it can be inverted."""
    covariance = centred.T @ centred / rows
    scale = covariance.diagonal().mean() + 1e-6
    identity = torch.eye(len(covariance), dtype=centred.dtype, device=centred.device)
    return torch.stack([(1 - s) * covariance + (s + 1e-4) * scale * identity for s in shrinkages])


def _solved(matrices: Tensor, right: Tensor) -> Tensor:
    """For symmetric matrices above zero, so that nobody waits for the device to say whether they can be inverted.

    Not by LU: of several matrices of 180 columns or more at once, with two threads on a CPU, torch 2.13 and MKL make
    wrong pivots, which is an error or, worse, NaN.
    """
    lower = torch.linalg.cholesky_ex(matrices).L
    half = torch.linalg.solve_triangular(lower, right.expand(len(matrices), *right.shape), upper=False)
    return torch.linalg.solve_triangular(lower.mT, half, upper=True)


def pooled(weights: Tensor, opinions: Tensor) -> Tensor:
    """[K, S, B, ...]: what S panels of experts [S, E, B, ...] say with each of K weights [K, S, E]."""
    return torch.einsum("kse,seb...->ksb...", weights, opinions)


def losses(out: Tensor, y: Tensor) -> Tensor:
    """Of each row: cross-entropy for log-probabilities [K, S, B, C], squared error for values [K, S, B]."""
    if out.dim() == 3:
        return (out - y).square()
    right = out.gather(-1, y.view(1, 1, -1, 1).expand(*out.shape[:3], 1)).squeeze(-1)
    return torch.logsumexp(out, -1) - right


def clearly_positive(values: Tensor, real: Tensor, groups: Tensor) -> Tensor:
    """Whether their mean is above zero by more than one standard error, where the rows of a group count as one."""
    sizes = torch.zeros_like(values).index_add(0, groups, real.to(values.dtype))
    means = torch.zeros_like(values).index_add(0, groups, values * real) / sizes.clamp(min=1)
    count = (sizes > 0).sum().clamp(min=1)
    mean, square = means.sum() / count, means.square().sum() / count
    return mean > ((square - mean.square()).clamp(min=0) / count).sqrt()


def weigh(
    opinions: Tensor, y: Tensor, rows: Tensor, caution: float, drawn_to: Sequence[float] | None = None
) -> tuple[Tensor, Tensor]:
    """Weights [K, S, E] that fit best, and their losses [K, S], for each of K weightings of the rows [K, B].

    As strongly as ``caution`` rows would, they are drawn to those that are given, which sum to 1, or to the first
    expert alone. Newton's method with a line search, which ends where no share of the way is better than none. The
    weights of values are shares.
    """
    panels, experts = opinions.shape[:2]
    identity = torch.eye(experts, dtype=opinions.dtype, device=opinions.device)
    centre = identity[0] if drawn_to is None else identity.new_tensor(drawn_to)
    weights = centre.expand(len(rows), panels, experts)

    def fit(weights: Tensor) -> Tensor:
        """Of weights [..., K, S, E]."""
        flat = losses(pooled(weights.flatten(0, -3), opinions), y).unflatten(0, weights.shape[:-2])
        return (rows.unsqueeze(1) * flat).sum(-1)

    def cost(weights: Tensor) -> Tensor:
        found = fit(weights) + caution * (weights - centre).square().sum(-1) / 2
        return torch.where(found.isfinite(), found, torch.inf)

    if opinions.dim() == 3:
        weights = _shares(opinions, y, rows, caution, centre)
        return weights, fit(weights)
    for _ in range(NEWTON):
        slope, bend = _derivatives(weights, opinions, y, rows)
        pull = (slope + caution * (weights - centre)).unsqueeze(-1)
        way = torch.linalg.solve_ex(bend + (caution + 1e-6) * identity, pull).result.squeeze(-1)
        tries = torch.stack([weights - share * way for share in SHARES])
        best = cost(tries).argmin(0)
        weights = tries.gather(0, best[None, ..., None].expand(1, *weights.shape))[0]
    return weights, fit(weights)


def _shares(opinions: Tensor, y: Tensor, rows: Tensor, caution: float, centre: Tensor) -> Tensor:
    """The same for values: weights that are not negative and sum to 1, by what the others add to the first."""
    first, more = opinions[:, 0], opinions[:, 1:] - opinions[:, :1]
    identity = torch.eye(more.shape[1], dtype=more.dtype, device=more.device)
    pull = caution * (identity + 1)
    bend = 2 * torch.einsum("seb,sfb,kb->ksef", more, more, rows) + pull + 1e-6 * identity
    slope = 2 * torch.einsum("seb,sb,kb->kse", more, y - first, rows) + pull @ centre[1:]
    shares = torch.linalg.solve_ex(bend, slope.unsqueeze(-1)).result.squeeze(-1).clamp(min=0)
    shares = shares / shares.sum(-1, keepdim=True).clamp(min=1)
    return torch.cat([1 - shares.sum(-1, keepdim=True), shares], -1)


def _derivatives(weights: Tensor, opinions: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient [K, S, E] and Hessian [K, S, E, E] of the rows' cross-entropy."""
    out = pooled(weights, opinions)
    shares = torch.softmax(out, -1)
    off = shares - F.one_hot(y, out.shape[-1]).to(out.dtype)
    slope = torch.einsum("sebc,ksbc,kb->kse", opinions, off, rows)
    mean = torch.einsum("sebc,ksbc->kseb", opinions, shares)
    spread = opinions.unsqueeze(0) - mean.unsqueeze(-1)  # of the log-probabilities about their expectation
    return slope, torch.einsum("ksebc,ksfbc,ksbc,kb->ksef", spread, spread, shares, rows)
