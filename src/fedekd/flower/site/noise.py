"""Chance that only its key foretells, and Opacus's optimiser with noise from it.

Opacus takes noise from a torch generator. On a CPU that is seeded with 32 bits, few enough to try them all: whoever
did so could take the noise off again. Here a key of 32 bytes says all, and the same key says the same on any device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from opacus.optimizers import DPOptimizer
from torch import Tensor


class Chance:
    """Random numbers out of AES in counter mode."""

    def __init__(self, key: bytes) -> None:
        self.stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def uniform(self, *shape: int) -> np.ndarray:
        """In [0, 1), in steps of 2^-53."""
        words = np.frombuffer(self.stream.update(bytes(8 * math.prod(shape))), "<u8")
        return (words >> np.uint64(11)).astype(np.float64).reshape(shape) * 2.0**-53

    def normal(self, *shape: int) -> np.ndarray:
        """By Box and Muller."""
        radius = np.sqrt(-2 * np.log1p(-self.uniform(*shape)))
        return np.asarray(radius * np.cos(2 * np.pi * self.uniform(*shape)))


class NoisyOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus's clipping and scaling, with noise from ``chance``."""

    def __init__(self, optimizer: torch.optim.Optimizer, chance: Chance, **given: Any) -> None:
        super().__init__(optimizer, **given)
        self.chance = chance
        self.rest: list[Tensor] = []

    def take(self, of_rows: Sequence[Tensor], rest: Sequence[Tensor]) -> None:
        """One step along each row's clipped gradient and the noise, and along ``rest``, into which no row enters.

        A row whose gradient has no size to clip to counts as none: 0 times infinity would spoil the whole sum.
        """
        whole = torch.stack([g.flatten(1).isfinite().all(1) for g in of_rows]).all(0)
        for weight, gradients in zip(self.params, of_rows, strict=True):
            weight.grad_sample = gradients[whole]
        self.rest = list(rest)
        self.step()
        self.zero_grad()

    def add_noise(self) -> None:
        std = self.noise_multiplier * self.max_grad_norm
        for weight in self.params:
            noise = torch.from_numpy(std * self.chance.normal(*weight.shape)).to(weight)
            weight.grad = weight.summed_grad.view_as(weight) + noise

    def scale_grad(self) -> None:
        super().scale_grad()
        for weight, more in zip(self.params, self.rest, strict=False):
            weight.grad += more
