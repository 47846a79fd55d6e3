import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch.func import vmap

from fedekd import conformal

NAN, INF = math.nan, math.inf
PROXY, PRIVATE = (5, 0.5), (5, 1.0)  # FedType's k_reg and lam
PROBS = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])


def generator(seed):
    return torch.Generator().manual_seed(seed)


def drawn(n, classes, seed, scale=2.0):
    """Logits whose softmax is the true distribution of the labels, and uniform draws."""
    logits = torch.randn(n, classes, generator=generator(seed)) * scale
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator(seed + 1)).squeeze(-1)
    return logits, labels, torch.rand(n, generator=generator(seed + 2))


def literal_set(p, u, q, k_reg, lam):
    """RAPS for one sample, step by step: how many labels, then whether the last is dropped."""
    order = sorted(range(len(p)), key=lambda c: -p[c])
    ranked = [p[c] for c in order]
    cumulative = [sum(ranked[: j + 1]) for j in range(len(p))]
    past = [lam * max(0, j + 1 - k_reg) for j in range(len(p))]
    size = min(len(p), 1 + sum(c + o <= q for c, o in zip(cumulative, past, strict=True)))
    last = size - 1
    if u >= (q - sum(ranked[:last]) - past[last]) / ranked[last]:
        size -= 1
    return {order[j] for j in range(max(size, 1))}


# Scores and sets


def test_scores_by_hand():
    uniform = torch.tensor([0.5, 0.25])
    # Label 0 is third: .5 + .3 + .5 x .2, and ranks 2 and 3 are past k_reg = 1.
    score = conformal.scores(PROBS, torch.tensor([0, 2]), uniform, k_reg=1, lam=0.1)
    torch.testing.assert_close(score, torch.tensor([0.9 + 2 * 0.1, 0.25 * 0.8]))
    score = conformal.scores(PROBS, torch.tensor([1, 0]), uniform, k_reg=5, lam=0.1)
    torch.testing.assert_close(score, torch.tensor([0.25, 0.8 + 0.25 * 0.1]))


def test_sets_by_hand():
    uniform = torch.tensor([0.5, 0.5])

    def chosen(q, k_reg=5, lam=0.0):
        return [set(row.nonzero().flatten().tolist()) for row in conformal.sets(PROBS, uniform, q, k_reg, lam)]

    # Scores by rank: .25, .65, .9 and .4, .85, .95.
    assert chosen(0.6) == [{1}, {2}]
    assert chosen(0.7) == [{1, 2}, {2}]
    assert chosen(0.88) == [{1, 2}, {0, 2}]  # of the two labels at .1 the first comes first
    assert chosen(INF) == [{0, 1, 2}] * 2
    assert chosen(0.1) == [{1}, {2}]
    # With k_reg = 1 and lam = .2 they are .25, .85, 1.3 and .4, 1.05, 1.35.
    assert chosen(0.88, 1, 0.2) == [{1, 2}, {2}]
    assert chosen(1.31, 1, 0.2) == [{0, 1, 2}, {0, 2}]


def test_a_label_that_scores_exactly_the_threshold_is_in_the_set():
    probs = torch.tensor([[0.5, 0.25, 0.25]])  # scores 0, 1/2 and 3/4
    sizes = [conformal.sets(probs, torch.zeros(1), q, 5, 0.0).sum().item() for q in (0.49, 0.5, 0.74, 0.75)]
    assert sizes == [1, 2, 2, 3]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(0.01, 2.5), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_sets_follow_the_literal_procedure(seed, classes, q, lam):
    logits, _, uniform = drawn(8, classes, seed)
    probs, k_reg = logits.double().softmax(-1), conformal.regularisation_rank(classes)
    members = conformal.sets(probs, uniform.double(), q, k_reg, lam)
    for row, p, u in zip(members, probs.tolist(), uniform.double().tolist(), strict=True):
        assert set(row.nonzero().flatten().tolist()) == literal_set(p, u, q, k_reg, lam)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(-1, 3))
def test_sets_are_never_empty_and_hold_the_labels_that_score_below(seed, classes, q):
    logits, labels, uniform = drawn(8, classes, seed)
    probs = logits.softmax(-1)
    members = conformal.sets(probs, uniform, q, 1, 0.5)
    assert members.dtype == torch.bool
    assert members.gather(-1, probs.argmax(-1, keepdim=True)).all()
    covered = members.gather(-1, labels[:, None]).squeeze(-1)
    below = conformal.scores(probs, labels, uniform, 1, 0.5) <= q
    assert torch.equal(covered, below | (labels == probs.argmax(-1)))


@pytest.mark.parametrize(("classes", "rank"), [(2, 0), (3, 1), (4, 2), (7, 5), (10, 5), (100, 5), (1, 0)])
def test_regularisation_rank(classes, rank):
    assert conformal.regularisation_rank(classes) == rank


# Threshold


@pytest.mark.parametrize(
    ("n", "level", "rank"),
    [(1, 0.9, 1), (5, 0.9, 5), (9, 0.9, 9), (10, 0.9, 10), (19, 0.9, 18), (100, 0.9, 91), (99, 0.55, 55)],
)
def test_threshold_is_the_conformal_rank(n, level, rank):
    ordered = torch.arange(1.0, n + 1)  # 100 x .55 is a little above 55 in floating point
    shuffled = ordered[torch.randperm(n, generator=generator(0))]
    assert conformal.threshold(shuffled, level).item() == rank


def test_threshold_with_a_mask():
    values = torch.tensor([5.0, NAN, 1.0, -INF, 3.0])
    mask = torch.tensor([True, False, True, False, True])
    assert conformal.threshold(values, 0.5, mask).item() == 3
    assert conformal.threshold(values, 0.9, mask.float()).item() == 5
    assert conformal.threshold(values, 0.9, torch.zeros(5, dtype=torch.bool)).item() == INF


# Temperature


@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
def test_temperature_recovers_a_known_scale(scale):
    logits, labels, _ = drawn(6000, 5, seed=0)
    assert conformal.fit_temperature(logits * scale, labels).item() == pytest.approx(scale, rel=0.05)


def test_temperature_minimises_the_likelihood():
    logits, labels, _ = drawn(50, 4, seed=3)
    best = conformal.fit_temperature(logits, labels).double()

    def nll(t):
        return torch.nn.functional.cross_entropy(logits.double() / t, labels)

    assert all(nll(best) < nll(best * step) for step in (0.5, 0.98, 1.02, 2.0))


@pytest.mark.parametrize(("z", "right", "of"), [(1.0, 3, 4), (0.1, 2, 3), (6.0, 9, 10), (0.01, 501, 1000)])
def test_temperature_of_two_classes_in_closed_form(z, right, of):
    """Equal margins z, right in a share s of the samples: the likelihood is best where sigmoid(z / T) = s."""
    logits, labels = torch.tensor([[z, 0.0]]).repeat(of, 1), (torch.arange(of) >= right).long()
    expected = z / math.log(right / (of - right))
    assert conformal.fit_temperature(logits, labels).item() == pytest.approx(expected, rel=1e-6)


def test_temperature_is_bounded():
    low, high = conformal.TEMPERATURES
    assert (low, high) == (0.05, 20.0)
    logits = torch.tensor([[3.0, 0.0], [0.0, 3.0]])
    assert conformal.fit_temperature(logits, torch.tensor([0, 1])).item() == pytest.approx(low)
    assert conformal.fit_temperature(logits, torch.tensor([1, 0])).item() == pytest.approx(high)
    assert conformal.fit_temperature(logits[:1], torch.tensor([0])).item() == pytest.approx(low)
    assert conformal.fit_temperature(1e4 * logits, torch.tensor([0, 0])).isfinite()
    nothing = conformal.fit_temperature(logits, torch.tensor([0, 1]), torch.zeros(2))
    assert low * 0.999 <= nothing.item() <= high * 1.001


# Calibration as a whole


def padded(tensor, mask, junk):
    out = torch.full((len(mask), *tensor.shape[1:]), junk, dtype=tensor.dtype)
    out[mask] = tensor
    return out


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(0, 10), st.sampled_from([NAN, INF, 0.0]))
def test_a_mask_equals_the_unpadded_batch(seed, n, pads, junk):
    logits, labels, uniform = drawn(n, 4, seed)
    mask = (torch.arange(n + pads) < n)[torch.randperm(n + pads, generator=generator(seed))]
    whole = [padded(logits, mask, junk), padded(labels, mask, -1), padded(uniform, mask, junk)]
    left = conformal.calibrate(*whole, 2, 0.5, mask=mask)
    right = conformal.calibrate(logits, labels, uniform, 2, 0.5)
    torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-6)
    values = conformal.scores(logits.softmax(-1), labels, uniform, 2, 0.5)
    assert torch.equal(conformal.threshold(padded(values, mask, junk), 0.9, mask), conformal.threshold(values, 0.9))


def test_vmap_equals_a_loop():
    parts = [drawn(12, 5, seed) for seed in (0, 10, 20)]
    logits, labels, uniform = (torch.stack(part) for part in zip(*parts, strict=True))
    mask = torch.arange(12) < torch.tensor([12, 7, 1])[:, None]

    def step(z, y, u, m):
        calibration = conformal.calibrate(z, y, u, 3, 0.5, mask=m)
        members = conformal.predict_sets(z, u, calibration, 3, 0.5)
        narrow = conformal.sets(z.softmax(-1), u, 0.5, 3, 0.5)
        agreement = conformal.set_agreement(narrow, members)
        return calibration, members, agreement, conformal.ranking_loss(z, narrow)

    mapped = vmap(step)(logits, labels, uniform, mask)
    assert isinstance(mapped[0], conformal.Calibration)
    looped = [step(*args) for args in zip(logits, labels, uniform, mask, strict=True)]
    for i, client in enumerate(looped):
        torch.testing.assert_close(torch.utils._pytree.tree_map(lambda t, i=i: t[i], mapped), client)


def test_calibration_is_detached_and_takes_half_precision():
    logits, labels, uniform = drawn(40, 5, seed=0)
    live = logits.bfloat16().requires_grad_()
    calibration = conformal.calibrate(live, labels, uniform, *PROXY)
    assert not calibration.temperature.requires_grad
    assert not calibration.threshold.requires_grad
    assert calibration.threshold.dtype == torch.float32
    wide = conformal.calibrate(logits.bfloat16().float(), labels, uniform, *PROXY)
    torch.testing.assert_close(calibration, wide)


# Coverage


def coverage(logits, labels, k_reg, lam, calibration_size, repeats=100):
    """Mean share of held-out samples whose set holds their label, and mean set size, over random splits."""
    n = len(labels)
    order = torch.stack([torch.randperm(n, generator=generator(seed)) for seed in range(repeats)])
    uniform = torch.rand(repeats, n, generator=generator(repeats))

    def split(z, y, u):
        k = calibration_size
        calibration = conformal.calibrate(z[:k], y[:k], u[:k], k_reg, lam)
        members = conformal.predict_sets(z[k:], u[k:], calibration, k_reg, lam)
        return members.gather(-1, y[k:, None]).double().mean(), members.sum(-1).double().mean()

    shares, sizes = vmap(split)(logits[order], labels[order], uniform)
    return shares.mean().item(), sizes.mean().item()


@functools.cache
def digits():
    """Held-out logits of a softmax regression on a few pixels: right about six times in ten, and overconfident."""
    x, y = load_digits(return_X_y=True)
    x = x[:, [10, 21, 28, 34, 43, 53]] / 16
    model = LogisticRegression(C=10, max_iter=300).fit(x[:600], y[:600])
    return torch.from_numpy(3 * model.decision_function(x[600:1000])).float(), torch.from_numpy(y[600:1000])


@pytest.mark.parametrize(("k_reg", "lam"), [PROXY, PRIVATE, (2, 0.1)])
@pytest.mark.parametrize("source", ["synthetic", "digits"])
def test_sets_cover_held_out_labels_at_the_nominal_level(source, k_reg, lam):
    logits, labels = drawn(400, 10, seed=0)[:2] if source == "synthetic" else digits()
    share, size = coverage(logits, labels, k_reg, lam, calibration_size=120)
    assert 0.89 <= share <= 0.92  # 109 of 121 expected; the mean over the splits has a deviation of .003
    assert 1.5 < size < 8  # neither full nor forced to one label


@pytest.mark.parametrize(("size", "expected"), [(4, 4 / 5), (9, 0.9), (19, 0.9), (24, 23 / 25)])
def test_small_calibration_sets_cover_as_the_rank_says(size, expected):
    # Exact for scores without ties: the k-th of n scores covers k / (n + 1) of new ones.
    values = torch.rand(20_000, size + 1, generator=generator(size))
    q = vmap(conformal.threshold)(values[:, :size])
    assert (values[:, size] <= q).double().mean().item() == pytest.approx(expected, abs=0.01)


# What FedType does with sets


def test_set_agreement_by_hand():
    f = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1]]).bool()
    g = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    # Equal sizes: 1 of 3 in the union. Larger f: 2 of g's 2. Smaller f: 1 of 4. Nothing shared: 0.
    torch.testing.assert_close(conformal.set_agreement(f, g), torch.tensor([1 / 3, 1.0, 0.25, 0.0]))


def test_the_same_single_label_is_full_agreement():
    one = torch.tensor([[True, False, False]])
    assert conformal.set_agreement(one, one).item() == 1


def test_sets_without_a_label_agree_in_nothing():
    """A set of ours always holds one; a user's own may not."""
    none, some = torch.tensor([[False, False]]), torch.tensor([[True, False]])
    assert [conformal.set_agreement(*pair).item() for pair in ((none, none), (none, some), (some, none))] == [0, 0, 0]


def test_ranking_loss_by_hand():
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [1.0, 3.0, 2.0]], requires_grad=True)
    members = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
    # In the first row 3 and 2 outrank 1: (2 + 1) / 2. In the second only 2 outranks 1: 1 / 2.
    loss = conformal.ranking_loss(logits, members)
    torch.testing.assert_close(loss, torch.tensor([1.5, 0.5, 0.0]))
    loss.sum().backward()
    assert logits.grad.tolist() == [[-1, 0.5, 0.5], [-0.5, 0, 0.5], [0, 0, 0]]


def test_ranking_loss_of_a_single_pair_is_its_gap():
    assert conformal.ranking_loss(torch.tensor([[1.0, 3.0]]), torch.tensor([[True, False]])).item() == 2


def test_ranking_loss_is_zero_once_the_set_leads():
    logits = torch.tensor([[5.0, 4.0, -1.0], [0.0, 0.0, 0.0]], requires_grad=True)
    loss = conformal.ranking_loss(logits, torch.tensor([[True, True, False]] * 2))
    loss.sum().backward()
    assert loss.tolist() == [0, 0]
    assert logits.grad.abs().sum().item() == 0
