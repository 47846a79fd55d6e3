"""Chance that only its key foretells, and what an optimiser with it does to gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")
pytest.importorskip("opacus", reason="pip install 'fedekd[dp]'")

from scipy import stats

from fedekd.flower.site.dp_sgd import KeyedRandom, NoisyOptimizer

KEY = bytes(range(32))


def flipped(place):
    return bytes(b ^ (k == place) for k, b in enumerate(KEY))


def test_every_byte_of_the_key_counts():
    """A torch generator on a CPU takes 32 bits of its seed, which can all be tried."""
    first = KeyedRandom(KEY).normal(4)
    assert np.array_equal(first, KeyedRandom(KEY).normal(4))
    assert all(not np.isclose(first, KeyedRandom(flipped(place)).normal(4)).any() for place in range(32))


def test_the_numbers_are_uniform_and_normal():
    chance = KeyedRandom(KEY)
    uniform, normal = chance.uniform(300, 100), chance.normal(300, 100)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 0.01
    assert stats.kstest(normal.ravel(), "norm").pvalue > 0.01
    for numbers in (uniform, normal):
        assert abs(np.corrcoef(numbers.ravel()[1:], numbers.ravel()[:-1])[0, 1]) < 0.02


def moved(of_rows, rest=(), noise=0.0, clip=1.0, expected=4):
    """How one step of plain descent changes weights of the shapes that ``of_rows`` has."""
    weights = [torch.zeros(g.shape[1:], requires_grad=True) for g in of_rows]
    optimizer = NoisyOptimizer(
        torch.optim.SGD(weights, lr=1.0), KeyedRandom(KEY),
        noise_multiplier=noise, max_grad_norm=clip, expected_batch_size=expected,
    )  # fmt: skip
    optimizer.take(of_rows, rest)
    return [-w.detach() for w in weights]


def test_a_batch_without_rows_moves_by_noise_alone():
    (only,) = moved([torch.zeros(0, 200, 100)], noise=3.0, clip=0.5, expected=4)
    assert float(only.std()) == pytest.approx(3.0 * 0.5 / 4, rel=0.02)
    assert abs(float(only.mean())) < 0.01


def test_each_row_is_clipped_over_all_weights_together():
    long, short = torch.tensor([3.0, 4.0]), torch.tensor([0.03, 0.04])
    a, b = moved([torch.stack([long, short]), torch.zeros(2, 3)], clip=1.0, expected=1)
    assert torch.allclose(a, long / 5 + short, atol=1e-5)
    half = moved([long[None], long[None]], clip=1.0, expected=1)
    assert float(torch.cat(half).norm()) == pytest.approx(1.0, abs=1e-5)
    assert float(b.norm()) == 0


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38])
def test_a_row_without_a_finite_gradient_counts_as_none(value):
    bad, good = torch.full((2, 3), value), torch.full((2, 3), 0.1)
    a, b = moved([torch.stack([bad, good]), torch.stack([good, good])], clip=1.0, expected=1)
    assert torch.allclose(a, good, atol=1e-6)
    assert torch.isfinite(b).all()


def test_what_no_row_enters_is_neither_clipped_nor_divided():
    rest = torch.full((5,), 100.0)
    (only,) = moved([torch.zeros(0, 5)], [rest])
    assert torch.equal(only, rest)
