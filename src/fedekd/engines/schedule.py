"""Which samples make up which batch: the same for both engines and every method on a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedekd import rng


@dataclass(frozen=True)
class Schedule:
    """The batches of one client's training step, as positions in its training split."""

    order: np.ndarray  # int64 [epochs, n]
    uniform: np.ndarray  # float32 [epochs, n, draws], one row for each entry of `order`
    batch_size: int

    @property
    def steps(self) -> int:
        epochs, n = self.order.shape
        return epochs * -(-n // self.batch_size)


def schedule(
    seed: int, client: int, role: str, round: int, *, n: int, epochs: int, batch_size: int, draws: int
) -> Schedule:
    """Batches are keyed by the first trained role, so that a private model sees what it sees in Local."""
    order = np.stack(
        [rng.stream(seed, "batches", role, client, round, epoch).permutation(n) for epoch in range(epochs)]
    )
    uniform = rng.stream(seed, "uniform", role, client, round).random((epochs, n, draws), dtype=np.float32)
    return Schedule(order, uniform, batch_size)
