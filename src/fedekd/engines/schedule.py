"""Which samples make up which batch, and which clients take part: the same for both engines and every method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedekd import rng
from fedekd.engines.augment import MIXES, MOVES
from fedekd.methods.base import Step, Train


@dataclass(frozen=True)
class Schedule:
    """The batches of one client's training step, as positions in the split."""

    order: np.ndarray  # int64 [epochs, n]
    uniform: np.ndarray  # float32 [epochs, n, draws], one row for each entry of `order`
    moves: np.ndarray  # float32 [epochs, n, MOVES, MIXES or 0], one row for each position: see ``engines.augment``
    partners: np.ndarray  # int64 [epochs, n], the position that each is mixed with; of no columns where none is
    batch_size: int

    @property
    def steps(self) -> int:
        epochs, n = self.order.shape
        return epochs * -(-n // self.batch_size)


def schedule(
    seed: int,
    client: int,
    role: str,
    round: int,
    *,
    n: int,
    epochs: int,
    batch_size: int,
    draws: int,
    split: str = "train",
    again: int = 0,
    augment: bool = False,
    mixed: bool = False,
) -> Schedule:
    """Batches are keyed by the first trained role, so that a private model sees what it sees in Local.

    A role that is trained again in a round, or on another split, sees other batches.
    """
    if split != "train":
        role = f"{role} on {split}"
    more = ("again", again) if again else ()
    order = np.empty((epochs, n), np.int64)
    for epoch in range(epochs):
        order[epoch] = rng.stream(seed, "batches", role, client, round, epoch, *more).permutation(n)
    width = MIXES if mixed else MOVES if augment else 0
    uniform, moves = (np.empty((epochs, n, wide), np.float32) for wide in (draws, width))
    partners = np.empty((epochs, 0), np.int64)
    if draws:  # making a stream takes longer than drawing from it
        uniform = rng.stream(seed, "uniform", role, client, round, *more).random((epochs, n, draws), dtype=np.float32)
    if width:
        drawn = rng.stream(seed, "mixed" if mixed else "augment", role, client, round, *more)
        moves = drawn.random((epochs, n, width), dtype=np.float32)
        partners = drawn.integers(0, n, (epochs, n)) if mixed and n else partners
    return Schedule(order, uniform, moves, partners, batch_size)


def numbered(steps: Iterable[Step]) -> list[tuple[Step, int]]:
    """Each step, and how often its first role was trained before in the round."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for step in steps:
        key = (step.roles[0], step.split) if isinstance(step, Train) else ("", "")
        found.append((step, seen[key] if isinstance(step, Train) else 0))
        seen[key] += 1
    return found


def participants(seed: int, round: int, clients: int, share: float) -> list[int]:
    """Which of the clients take part in a round: at least one, drawn anew each time."""
    if share >= 1:
        return list(range(clients))
    count = max(1, round_half_up(share * clients))
    return sorted(rng.stream(seed, "participation", round).permutation(clients)[:count].tolist())


def round_half_up(value: float) -> int:
    return int(value + 0.5)
