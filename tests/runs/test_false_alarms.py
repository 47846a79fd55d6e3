"""Local against Local with another training seed, by real training: no more false alarms than promised.

The rows are those of real patients, and what differs between two models is what differs between two trainings.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedekd import verdicts
from fedekd.engines.stacked import Stacked
from fedekd.runs.plan import plan
from fedekd.runs.row_results import compared
from fedekd.settings import make_settings

SPLITS, SEEDS, ROUNDS = 2, 40, 5


@pytest.fixture(scope="module")
def right() -> list[list[list[np.ndarray]]]:
    """By split, training seed and hospital: which test rows Local has right."""
    found = []
    for split in range(SPLITS):
        given = {"dataset": "heart", "methods": ["local"], "split_seed": split, "rounds": ROUNDS, "lr": 3e-3}
        (run,) = plan(make_settings(given))
        engine = Stacked([replace(run.job, seed=seed) for seed in range(SEEDS)])
        for _ in range(ROUNDS):
            engine.round()
        found.append([[(one.errors == 0).astype(float) for one in own] for own in engine.measure()])
    return found


def families(right, size: int):
    """So many seeds against as many others, for every hospital; every seed in one family."""
    for runs in right:
        for start in range(0, SEEDS - 2 * size + 1, 2 * size):
            one, other = runs[start : start + size], runs[start + size : start + 2 * size]
            yield [
                compared([run[k] for run in one], [run[k] for run in other], "accuracy") for k in range(len(runs[0]))
            ]


@pytest.mark.parametrize(("size", "count"), [(1, 40), (3, 12)])
def test_local_against_local_is_rarely_anything(right, size, count):
    alarms, signs = [], []
    for family in families(right, size):
        judged = verdicts.judge(family)
        alarms.append(any(verdict.state in (verdicts.HELPED, verdicts.HARMED) for verdict in judged))
        signs.append(any(verdict.difference < 0 for verdict in judged))
    assert len(alarms) == count
    assert np.mean(alarms) <= 0.05
    assert np.mean(signs) > 0.7  # by sign alone, most federations would have a client that is harmed
