"""The batches of a chunk's round: what each model sees in each step, in tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedekd.engines import augment
from fedekd.engines.on_device import fill
from fedekd.engines.schedule import Schedule


class BatchRows(NamedTuple):
    """One step, [models, batch, ...]."""

    rows: Tensor  # of the dataset
    positions: Tensor  # their places in the split
    lessons: Tensor
    """Their places in the frozen roles' outputs, which are other ones in every epoch where rows are altered."""
    real: Tensor  # which are no padding
    uniform: Tensor
    moves: Tensor  # how they are altered: see ``augment``
    partners: Tensor  # rows of the dataset that they are mixed with


class BatchTables:
    """For models with these rows of a split each; ``epochs`` over them in batches of ``size``."""

    def __init__(
        self,
        splits: Sequence[np.ndarray],
        epochs: int,
        size: int,
        uniforms: int,
        augmented: bool,
        mixed: bool,
        device: torch.device,
    ) -> None:
        self.splits, self.size, self.augmented, self.mixed = splits, size, augmented, mixed
        lengths = np.array([len(rows) for rows in splits])
        self.steps = epochs * -(-lengths // size)
        """Of each model."""
        self.longest = max(1, int(lengths.max()))
        shape = (int(self.steps.max()), len(splits), size)
        width = augment.MIXES if mixed else augment.MOVES if augmented else 0
        positions, rows = (torch.zeros(shape, dtype=torch.int32, device=device) for _ in range(2))
        self.whole = BatchRows(
            rows,
            positions,
            torch.zeros_like(positions) if augmented else positions,
            torch.zeros(shape, dtype=torch.bool, device=device),
            torch.zeros((*shape, uniforms), device=device),
            torch.zeros((*shape, width), device=device),
            torch.zeros_like(rows) if mixed else rows,
        )
        """Of all steps, [steps, models, batch, ...]."""

    def load(self, plans: Sequence[Schedule]) -> None:
        """Fill the tables with another round's batches."""
        shape = self.whole.rows.shape
        positions, rows, lessons, partners = (np.zeros(shape, np.int32) for _ in range(4))
        real = np.zeros(shape, bool)
        uniform, moves = (np.zeros(table.shape, np.float32) for table in (self.whole.uniform, self.whole.moves))
        for at, (mine, plan) in enumerate(zip(self.splits, plans, strict=True)):
            epochs, n = plan.order.shape
            full = -(-n // self.size) * self.size
            for table, part in (
                (positions, plan.order),
                (rows, mine[plan.order]),
                (real, np.True_),
                (uniform, plan.uniform),
                (moves, np.take_along_axis(plan.moves, plan.order[:, :, None], axis=1)),
                (lessons, plan.order + self.longest * np.arange(epochs)[:, None]),
                (partners, mine[np.take_along_axis(plan.partners, plan.order, axis=1)] if self.mixed else 0),
            ):
                padded = np.zeros((epochs, full, *table.shape[3:]), table.dtype)
                padded[:, :n] = part
                table[: self.steps[at], at] = padded.reshape(self.steps[at], *table.shape[2:])
        fill(self.whole.positions, positions)
        fill(self.whole.rows, rows)
        fill(self.whole.real, real)
        fill(self.whole.uniform, uniform)
        if self.augmented:
            fill(self.whole.moves, moves)
            fill(self.whole.lessons, lessons)
        if self.mixed:
            fill(self.whole.partners, partners)

    def at(self, step: Tensor, active: int) -> BatchRows:
        """That step's batches of the first models; ``step`` is on the device, where a CUDA graph reads it."""
        return BatchRows(*(table.index_select(0, step)[0, :active] for table in self.whole))
