"""The tables of a chunk's batches, beside what a plain loop over models, epochs and rows writes down."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedekd.engines.augment import MIXES, MOVES
from fedekd.engines.batch_tables import BatchRows, BatchTables
from fedekd.engines.schedule import schedule

EPOCHS, SIZE = 2, 4
LENGTHS = (11, 8, 3, 0)


def plain(splits, plans, uniforms, augmented, mixed) -> BatchRows:
    longest = max(1, *map(len, splits))
    shape = (EPOCHS * -(-longest // SIZE) if any(map(len, splits)) else 0, len(splits), SIZE)
    rows, positions, lessons, partners = (np.zeros(shape, np.int32) for _ in range(4))
    real, uniform = np.zeros(shape, bool), np.zeros((*shape, uniforms), np.float32)
    moves = np.zeros((*shape, MIXES if mixed else MOVES if augmented else 0), np.float32)
    for k, (mine, plan) in enumerate(zip(splits, plans, strict=True)):
        for epoch, order in enumerate(plan.order):
            for j, position in enumerate(order):
                at = epoch * -(-len(order) // SIZE) + j // SIZE, k, j % SIZE
                rows[at], positions[at], real[at], uniform[at] = mine[position], position, True, plan.uniform[epoch, j]
                lessons[at] = position + longest * epoch if augmented else position
                moves[at] = plan.moves[epoch, position]
                partners[at] = mine[plan.partners[epoch, position]] if mixed else mine[position]
    return BatchRows(*map(torch.from_numpy, (rows, positions, lessons, real, uniform, moves, partners)))


@pytest.mark.parametrize(("uniforms", "augmented", "mixed"), [(0, False, False), (2, True, False), (1, True, True)])
@pytest.mark.parametrize("lengths", [LENGTHS, (SIZE,), (0,)])
def test_the_tables_hold_the_schedules(lengths, uniforms, augmented, mixed):
    numbers = np.random.default_rng(0)
    splits = [numbers.choice(100, n, replace=False) for n in lengths]
    tables = BatchTables(splits, EPOCHS, SIZE, uniforms, augmented, mixed, torch.device("cpu"))
    given = {"epochs": EPOCHS, "batch_size": SIZE, "draws": uniforms, "augment": augmented, "mixed": mixed}
    for round in range(2):  # the second over the first
        plans = [schedule(0, k, "private", round, n=len(mine), **given) for k, mine in enumerate(splits)]
        tables.load(plans)
        for name, ours, theirs in zip(
            BatchRows._fields, tables.whole, plain(splits, plans, uniforms, augmented, mixed), strict=True
        ):
            assert ours.dtype == theirs.dtype, name
            assert torch.equal(ours, theirs), name
