"""The batches of a chunk's round: what each model sees in each step, in tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedekd.engines import augment
from fedekd.engines.on_device import on_device
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
        self.splits, self.augmented, self.mixed, self.device = splits, augmented, mixed, device
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
        """Of all steps, [steps, models, batch, ...]; what is padding stays zero."""
        places = [_places(len(mine), epochs, size, k, len(splits)) for k, mine in enumerate(splits)]
        self.places = on_device(np.concatenate(places), device)
        """Where in the tables' flat rows each entry of all schedules belongs, model by model and epoch by epoch."""
        self.rows = on_device(np.concatenate(splits).astype(np.int32), device)
        """All models' rows, one after another."""
        self.first = on_device(np.repeat(np.cumsum(lengths) - lengths, epochs * lengths), device)
        """For each entry, where its model's rows begin among these."""
        self.whole.real.view(-1)[self.places] = True
        if augmented:
            epoch = [np.repeat(np.arange(epochs), n) for n in lengths]
            self.before = on_device(self.longest * np.concatenate(epoch), device)

    def load(self, plans: Sequence[Schedule]) -> None:
        """Fill the tables with another round's batches."""
        order = on_device(_joined([plan.order for plan in plans], np.int32), self.device)
        self._put(self.whole.positions, order)
        self._put(self.whole.rows, self.rows[order + self.first])
        if self.whole.uniform.shape[-1]:
            self._put(self.whole.uniform, _joined([plan.uniform for plan in plans], np.float32))
        if self.augmented:
            moves = [np.take_along_axis(plan.moves, plan.order[:, :, None], axis=1) for plan in plans]
            self._put(self.whole.moves, _joined(moves, np.float32))
            self._put(self.whole.lessons, order + self.before)
        if self.mixed:
            partners = [np.take_along_axis(plan.partners, plan.order, axis=1) for plan in plans]
            others = on_device(_joined(partners, np.int32), self.device)
            self._put(self.whole.partners, self.rows[others + self.first])

    def _put(self, table: Tensor, entries: Any) -> None:
        table.view(-1, *table.shape[3:])[self.places] = on_device(entries, self.device).to(table.dtype)

    def at(self, step: Tensor, active: int) -> BatchRows:
        """That step's batches of the first models; ``step`` is on the device, where a CUDA graph reads it."""
        found: dict[int, Tensor] = {}  # some are one tensor
        for table in self.whole:
            if id(table) not in found:
                part = table.index_select(0, step)[0, :active]
                found[id(table)] = part.long() if part.dtype == torch.int32 else part  # as indices have to be
        return BatchRows(*(found[id(table)] for table in self.whole))


def _places(rows: int, epochs: int, size: int, model: int, models: int) -> np.ndarray:
    """Of a model's rows in all epochs: the place of each, where [steps, models, size] are flat."""
    row, epoch = np.arange(rows), np.arange(epochs)[:, None]
    step = epoch * -(-rows // size) + row // size
    return ((step * models + model) * size + row % size).ravel()


def _joined(each: Sequence[np.ndarray], kind: Any) -> np.ndarray:
    return np.concatenate([one.reshape(-1, *one.shape[2:]) for one in each], dtype=kind, casting="same_kind")
