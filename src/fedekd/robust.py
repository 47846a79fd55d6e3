"""How uploads become one: the mean, or a combination that a few bad clients cannot bend.

Simulations and real servers use the same functions. All but the mean treat clients alike, whatever their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedekd.errors import FedekdError, unknown

Mean = Callable[[Mapping[str, Tensor], Tensor], dict[str, Tensor]]  # of a tree [K, ...] and weights [K] whose sum is 1
LEAST = 3  # clients, of which a combination can tell which one is wrong


def average(stack: Mapping[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """The weighted mean of every tensor of a tree [K, ...]; counters (integer buffers) are taken from the first."""
    return {
        key: torch.tensordot(weights.to(t.dtype), t, 1) if t.is_floating_point() else t[0].clone()
        for key, t in stack.items()
    }


def median(stack: Mapping[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """Number by number the middle one, or the mean of the two in the middle (Yin et al., ICML 2018)."""
    return _by_number(stack, lambda t: t[(len(t) - 1) // 2 : len(t) // 2 + 1].mean(0))


def trimmed(stack: Mapping[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """Number by number the mean without the largest and the smallest fifth, or at least one of each where there are
    three (Yin et al., ICML 2018)."""
    cut = max(1, len(weights) // 5) if len(weights) >= LEAST else 0
    return _by_number(stack, lambda t: t[cut : len(t) - cut].mean(0))


def krum(stack: Mapping[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """The one upload that is nearest to its neighbours (Blanchard et al., NeurIPS 2017).

    It takes as many to be bad as Krum can bear, fewer than half less one.
    """
    floating = [t.flatten(1).double() for t in stack.values() if t.is_floating_point()]
    chosen = 0
    if floating and (count := len(weights)) >= LEAST:
        every = torch.cat(floating, 1)
        distances = torch.cdist(every, every, compute_mode="donot_use_mm_for_euclid_dist").square()
        near = count - (count - 3) // 2 - 2
        chosen = int(distances.sort(1).values[:, 1 : near + 1].sum(1).argmin())
    return {key: t[chosen if t.is_floating_point() else 0].clone() for key, t in stack.items()}


def _by_number(stack: Mapping[str, Tensor], middle: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    return {key: middle(t.sort(0).values) if t.is_floating_point() else t[0].clone() for key, t in stack.items()}


COMBINATIONS: dict[str, Mean] = {"mean": average, "median": median, "trimmed": trimmed, "krum": krum}


def check_enough(name: str, clients: int, share: float) -> None:
    """Raise if too few clients take part in a round, which is this ``share`` of all."""
    taking_part = int(share * clients + 0.5)
    if name != "mean" and taking_part < LEAST:
        raise FedekdError(
            f"combine = {name!r} cannot tell which of {taking_part} clients is wrong; have at least {LEAST} of them in "
            "each round, or set combine to mean"
        )


def combination(name: str) -> Mean:
    if name not in COMBINATIONS:
        raise unknown("combine", name, COMBINATIONS)
    return COMBINATIONS[name]
