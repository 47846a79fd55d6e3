"""Heads in closed form against scikit-learn's, and the weights of opinions against a general optimiser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from torch.func import vmap

from fedekd import pooling


@pytest.fixture
def rows():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(3, (60,), generator=g)
    return torch.randn(60, 7, generator=g).double() + 1.5 * torch.nn.functional.one_hot(y, 7), y


def test_a_head_is_linear_discriminant_analysis(rows):
    x, y = rows
    (weight,), (bias,) = pooling.lda_heads(x, y, torch.ones(60), 3, [0.3])
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3).fit(x.numpy(), y.numpy())
    torch.testing.assert_close(
        torch.log_softmax(x @ weight.T + bias, -1),
        torch.from_numpy(theirs.predict_log_proba(x.numpy())),
        atol=2e-3,
        rtol=2e-3,
    )


def test_padding_does_not_count_and_a_class_that_was_not_seen_is_not_guessed(rows):
    x, y = rows
    real = (torch.arange(60) < 40) & (y != 2)
    padded = pooling.lda_heads(x, y, real, 3, [0.1, 0.3])
    short = pooling.lda_heads(x[real], y[real], torch.ones(int(real.sum())), 3, [0.1, 0.3])
    torch.testing.assert_close(padded, short)
    assert not torch.allclose(*padded[0])
    for weight, bias in zip(*padded, strict=True):
        assert 2 not in (x @ weight.T + bias).argmax(-1)


def test_a_regressions_head_is_ridge_regression(rows):
    x, y = rows[0], rows[0] @ torch.arange(7.0).double() + 5
    (weight,), (bias,) = pooling.ridge_heads(x, y, torch.ones(60), [0.5])
    covariance = np.cov(x.numpy().T, bias=True)
    strength = 60 * np.diag(covariance).mean() * (0.5 + 1e-4) / 0.5
    theirs = Ridge(alpha=strength).fit(x.numpy(), y.numpy() / 0.5)  # half the covariance: twice the weights
    torch.testing.assert_close(weight[0], torch.from_numpy(theirs.coef_), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close((x @ weight[0] + bias).mean(), y.mean())


def test_a_near_head_is_logistic_regression_drawn_to_what_was_given(rows):
    x, y = rows
    given = torch.randn(60, 3, generator=torch.Generator().manual_seed(1)).double()
    real = torch.arange(60) < 50
    (weight,), (bias,) = pooling.near_heads(x, given, y, real, [0.1], steps=3000)
    level = float((x[:50].square().mean() + 1e-6).sqrt())
    wide = torch.cat([x, torch.full((60, 1), level).double()], 1)[real]

    def cost(flat):
        change = torch.from_numpy(flat).reshape(3, 8).requires_grad_()
        fit = torch.nn.functional.cross_entropy(given[real] + wide @ change.T, y[real], reduction="sum")
        found = fit + 0.1 * level**2 * 50 * change.square().sum() / 2
        found.backward()
        return found.item(), change.grad.numpy().ravel()

    best = minimize(cost, np.zeros(24), jac=True, options={"gtol": 1e-9}).x.reshape(3, 8)
    torch.testing.assert_close(weight, torch.from_numpy(best[:, :-1]), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(bias, torch.from_numpy(best[:, -1]) * level, atol=1e-6, rtol=1e-6)


def test_a_near_head_never_fits_worse_with_more_steps(rows):
    x, y = rows
    given, costs = torch.zeros(60, 3).double(), []
    for steps in (0, 1, 5, 20, 60):
        (weight,), (bias,) = pooling.near_heads(x, given, y, torch.ones(60), [1e-3], steps)
        costs.append(float(torch.nn.functional.cross_entropy(x @ weight.T + bias, y)))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.5 * costs[0]


def test_a_near_ridge_explains_what_is_left(rows):
    x = rows[0]
    given, y = x[:, 0], 3 * x[:, 0] + 5
    (weight,), (bias,) = pooling.near_ridges(x, given, y, torch.ones(60), [1e-9])
    torch.testing.assert_close(weight[0], 2.0 * torch.eye(7)[0].double(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(bias, torch.tensor([5.0]).double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fit", [pooling.near_heads, pooling.near_ridges])
def test_a_strong_pull_changes_nothing_and_padding_does_not_count(rows, fit):
    x, y = rows
    values = fit is pooling.near_ridges
    given, y = (x[:, 0], x[:, 1]) if values else (x[:, :3], y)
    for found in fit(x, given, y, torch.ones(60), [1e9]):
        assert found.abs().max() < 1e-6
    real = torch.arange(60) % 3 > 0
    padded = fit(x, given, y, real, [0.1, 0.5])
    torch.testing.assert_close(padded, fit(x[real], given[real], y[real], torch.ones(int(real.sum())), [0.1, 0.5]))
    mapped = vmap(lambda x, given, y: fit(x, given, y, real, [0.1, 0.5]))(
        *(torch.stack([one, one]) for one in (x, given, y))
    )
    for one, other in zip(mapped, padded, strict=True):
        torch.testing.assert_close(one[1], other)


def opinions(classification=True, panels=2, experts=3, rows=40, classes=4, seed=1):
    g = torch.Generator().manual_seed(seed)
    shape = (panels, experts, rows, classes) if classification else (panels, experts, rows)
    raw = 2 * torch.randn(shape, generator=g).double()
    y = torch.randint(classes, (rows,), generator=g)
    if not classification:
        return raw, torch.tensor([0.5, 0.3, 0.2]).double() @ raw[0] + 0.1 * torch.randn(rows, generator=g).double()
    raw[:, 1] += 2.0 * torch.nn.functional.one_hot(y, classes)
    return torch.log_softmax(raw, -1), y


@pytest.mark.parametrize("classification", [True, False])
@pytest.mark.parametrize("caution", [0.1, 3.0, 100.0])
def test_the_weights_are_the_minimum(classification, caution):
    given, y = opinions(classification)
    some = torch.stack([torch.ones(40), (torch.arange(40) % 3 > 0).double()]).double()
    weights, fits = pooling.weigh(given, y, some, caution)
    alone, checked = np.array([1.0, 0.0, 0.0]), 0

    def cost(w, k, s):
        out = pooling.pooled(torch.from_numpy(w)[None, None], given[s : s + 1])
        return float((some[k] * pooling.losses(out, y)[0, 0]).sum()) + caution * ((w - alone) ** 2).sum() / 2

    for k in range(2):
        for s in range(2):
            # values are averaged: their weights are shares
            whole = [] if classification else [{"type": "eq", "fun": lambda w: w.sum() - 1}]
            bounds = None if classification else [(0, None)] * 3
            found = minimize(cost, alone, args=(k, s), method="SLSQP", bounds=bounds, constraints=whole, tol=1e-12)
            if not classification and (found.x < 1e-6).any():
                continue  # at the edge shares are cut off, not the minimum: see below
            checked += 1
            assert np.allclose(weights[k, s], found.x, atol=1e-3)
            assert abs(cost(weights[k, s].numpy(), k, s) - found.fun) < 1e-3
            out = pooling.pooled(weights[k : k + 1, s : s + 1], given[s : s + 1])
            torch.testing.assert_close(fits[k, s], (some[k] * pooling.losses(out, y)[0, 0]).sum())
    assert checked >= 2


def test_weights_of_values_are_shares():
    """An expert that is always wrong gets nothing, not a negative weight."""
    given, y = opinions(classification=False)
    given[:, 2] = -y
    weights, _ = pooling.weigh(given, y, torch.ones(1, 40).double(), 0.1)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2).double())
    assert weights[0, 0, 2] < 0.1


def test_without_rows_and_with_much_caution_the_first_expert_answers_alone():
    given, y = opinions()
    alone = torch.tensor([1.0, 0.0, 0.0]).double().expand(1, 2, 3)
    assert torch.equal(pooling.weigh(given, y, torch.zeros(1, 40).double(), 3.0)[0], alone)
    torch.testing.assert_close(pooling.weigh(given, y, torch.ones(1, 40).double(), 1e9)[0], alone, atol=1e-6, rtol=0)


def test_weights_can_be_mapped_over_clients():
    several = [opinions(seed=s) for s in range(3)]
    some = torch.ones(3, 1, 40).double()
    mapped = vmap(lambda o, y, r: pooling.weigh(o, y, r, 3.0)[0])(
        torch.stack([o for o, _ in several]), torch.stack([y for _, y in several]), some
    )
    for one, (o, y) in zip(mapped, several, strict=True):
        torch.testing.assert_close(one, pooling.weigh(o, y, some[0], 3.0)[0])


def test_a_clearly_positive_mean_counts_each_group_once():
    values, real = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, 9.0]), torch.arange(7) < 6
    by_row, by_group = torch.arange(7), torch.tensor([2, 2, 2, 2, 0, 1, 6])
    assert pooling.clearly_positive(torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, -1.0, -9.0]), real, by_row)
    assert pooling.clearly_positive(values[:4], real[:4], by_row[:4])
    assert not pooling.clearly_positive(values, real, by_row), "1/3 with a standard error of 0.38"
    assert pooling.clearly_positive(values.abs(), real, by_group)
    assert not pooling.clearly_positive(values + 0.6, real, by_group), "0.27 with a standard error of 0.54"
    assert pooling.clearly_positive(values + 0.6, real, by_row), "0.93 with one of 0.38"
    assert not pooling.clearly_positive(values, real & False, by_group)
    whose = torch.stack([by_row, by_group])
    found = vmap(lambda groups: pooling.clearly_positive(values + 0.6, real, groups))(whose)
    assert found.tolist() == [True, False]


@pytest.mark.parametrize("width", [200, 257])
def test_heads_on_wide_features_are_solved_with_several_threads_too(width):
    """MKL's LU of several matrices of this size at once goes wrong there, once a number of threads was chosen."""
    rng, before = torch.Generator().manual_seed(0), torch.get_num_threads()
    spread = torch.randn(300, width, generator=rng)
    matrices = torch.stack([spread.T @ spread / 300 + s * torch.eye(width) for s in (0.1, 0.3, 0.9)])
    right = torch.randn(width, 11, generator=rng)
    torch.set_num_threads(2)
    try:
        found = pooling._solved(matrices, right)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(matrices @ found, right.expand(3, -1, -1), rtol=1e-3, atol=1e-3)
