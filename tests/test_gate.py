import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from fedekd import gate

NAN, INF = math.nan, math.inf
# Probabilities (3/4, 1/4) and (1/4, 3/4).
P, Q = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([[0.0, math.log(3.0)]])

PROJECTIONS = {d: gate.projection(d, d, seed=0) for d in (3, 5, 10)}
ENERGIES = {
    "kl": gate.energy_kl,
    "entropy": lambda f, g: gate.energy_entropy(g),
    "margin": lambda f, g: gate.energy_margin(g),
    "lse": lambda f, g: gate.energy_lse(g),
    "squared": gate.energy_squared,
    "feature": lambda f, g: gate.energy_feature(f, g, PROJECTIONS[f.shape[-1]]),
}
DISTANCES = {"kl": gate.kl, "squared": gate.squared_error}
FUNCTIONS = ENERGIES | {f"distance_{name}": distance for name, distance in DISTANCES.items()}

floats32 = st.floats(-1e6, 1e6, width=32)


def logits(*shape, seed=0, scale=3.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def reference_trust(energy, beta=1.0):
    e = np.asarray(energy, dtype=np.float64)
    return 1 / (1 + np.exp(beta * (e - e.mean()) / (e.std() + 1e-8)))


# Distances and energies


def test_kl_by_hand():
    # .75 log 3 - .25 log 3
    torch.testing.assert_close(gate.kl(P, Q), torch.tensor([0.5 * math.log(3)]))
    torch.testing.assert_close(gate.kl(P, P), torch.zeros(1))


def test_kl_puts_the_teacher_first():
    teacher, student = logits(5, 4).double(), logits(5, 4, seed=1).double()
    p, q = teacher.softmax(-1), student.softmax(-1)
    torch.testing.assert_close(gate.kl(teacher, student), (p * (p / q).log()).sum(-1))
    assert not torch.allclose(gate.kl(teacher, student), gate.kl(student, teacher))


def test_squared_error_and_its_energy_by_hand():
    a, b = torch.tensor([[1.0, 2.0], [0.0, 5.0]]), torch.tensor([[0.0, 4.0], [0.0, 5.0]])
    assert gate.squared_error(a, b).tolist() == [5.0, 0.0]
    assert gate.energy_squared(a, b).tolist() == [2.5, 0.0]
    assert gate.squared_error(a[:, 1], b[:, 1]).tolist() == [4.0, 0.0]


def test_squared_error_refuses_to_broadcast():
    with pytest.raises(ValueError, match=r"\(4,\) and \(4, 1\)"):
        gate.squared_error(torch.zeros(4), torch.zeros(4, 1))


def test_energy_kl_by_hand():
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    expected = 0.5 * math.log(3) / (2 * entropy)
    torch.testing.assert_close(gate.energy_kl(P, Q), torch.tensor([expected]))
    assert gate.energy_kl(P, P).item() == 0


def test_the_energy_of_a_certain_contradiction_is_what_the_small_constant_leaves():
    certain = torch.tensor([[1e4, 0.0]], dtype=torch.float64)  # both entropies are exactly 0, the divergence is 1e4
    assert gate.energy_kl(certain, certain.flip(-1)).item() == pytest.approx(1e4 / 1e-8)


def test_energy_kl_is_symmetric_and_weighs_confidence():
    f, g = logits(6, 5).double(), logits(6, 5, seed=1).double()
    torch.testing.assert_close(gate.energy_kl(f, g), gate.energy_kl(g, f))
    # Per unit of symmetric KL, a contradiction between sharp predictions costs more than one between diffuse.
    p = torch.tensor([[0.98, 0.01, 0.01], [0.36, 0.33, 0.31]]).double().log()
    q = p.roll(1, dims=-1)
    symmetric = 0.5 * (gate.kl(p, q) + gate.kl(q, p))
    relative = gate.energy_kl(p, q) / symmetric
    assert relative[0] > 5 * relative[1]


def test_energies_of_the_proxy_by_hand():
    z = torch.tensor([[2.0, 0.0, 1.5], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(gate.energy_margin(z), torch.tensor([-0.5, 0.0]))
    torch.testing.assert_close(gate.energy_entropy(z)[1], torch.tensor(math.log(3)))
    lse = [-math.log(math.exp(2) + 1 + math.exp(1.5)), -math.log(3)]
    torch.testing.assert_close(gate.energy_lse(z), torch.tensor(lse))
    p = z.softmax(-1)
    torch.testing.assert_close(gate.energy_entropy(z), -(p * p.log()).sum(-1))


def test_two_classes_have_a_margin():
    assert gate.energy_margin(torch.tensor([[0.5, 2.0], [3.0, 3.0]])).tolist() == [-1.5, 0.0]


@pytest.mark.parametrize("name", ["kl", "entropy", "margin", "lse", "distance_kl"])
def test_axes_before_the_batch_are_carried_along(name):
    f, g = logits(2, 3, 5), logits(2, 3, 5, seed=1)
    torch.testing.assert_close(
        FUNCTIONS[name](f, g), torch.stack([FUNCTIONS[name](*fg) for fg in zip(f, g, strict=True)])
    )


def test_weights_and_means_of_several_batches_at_once_are_those_of_each():
    energy, mask = logits(3, 7).double().exp(), torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    uniform = torch.rand(3, 7, generator=torch.Generator().manual_seed(0))
    functions = (
        lambda e, u, m: gate.trust(e, 2.0, m),
        lambda e, u, m: gate.permute(e, u, m),
        lambda e, u, m: gate.constant(e, 0.5, m),
        lambda e, u, m: gate.masked_mean(e, m),
        lambda e, u, m: gate.gated_distillation(e, u, m),
    )
    for function in functions:
        each = [function(*one) for one in zip(energy, uniform, mask, strict=True)]
        torch.testing.assert_close(function(energy, uniform, mask), torch.stack(each))


def test_energy_feature_by_hand():
    matrix = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    energy = gate.energy_feature(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[5.0, -1.0]]), matrix)
    assert energy.tolist() == [5.0]  # (5, -1) against (2, 3)


def test_projection_is_fixed_scaled_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    a, b, c = gate.projection(400, 300, 7), gate.projection(400, 300, 7), gate.projection(400, 300, 8)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert a.shape == (400, 300)
    assert a.std().item() == pytest.approx(1 / math.sqrt(400), rel=0.02)


@pytest.mark.parametrize("name", ENERGIES)
def test_energies_agree_with_float64(name):
    f, g = logits(64, 10), logits(64, 10, seed=1)
    energy, exact = ENERGIES[name](f, g), ENERGIES[name](f.double(), g.double())
    torch.testing.assert_close(energy.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_extreme_logits_stay_finite(function):
    f = 1e4 * torch.tensor([[1.0, -1, -1], [1, 1, 1], [-1, 1, -1], [1, -1, 0]])
    g = 1e4 * torch.tensor([[-1.0, 1, -1], [1, 1, 1], [-1, 1, -1], [1, 1, 0]])
    f.requires_grad_()
    g.requires_grad_()
    out = function(f, g)
    assert out.shape == (4,)
    assert out.isfinite().all()
    for gradient in torch.autograd.grad(out.sum(), (f, g), allow_unused=True):
        assert gradient is None or gradient.isfinite().all()
    assert gate.trust(out).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_half_precision_is_computed_in_float32(function, dtype):
    f, g = logits(8, 10).to(dtype), logits(8, 10, seed=1).to(dtype)
    assert function(f, g).dtype == torch.float32
    assert torch.equal(function(f, g), function(f.float(), g.float()))
    assert function(f.double(), g.double()).dtype == torch.float64


# Trust


@pytest.mark.parametrize("beta", [0.25, 1.0, 8.0])
@pytest.mark.parametrize("kind", ["skewed", "negative", "far from zero"])
def test_trust_by_reference(beta, kind):
    z = logits(50, seed=3).double()
    energy = {"skewed": z.exp(), "negative": z - 20, "far from zero": 1e6 + 1e-4 * z}[kind]
    expected = torch.from_numpy(reference_trust(energy, beta)).float()
    torch.testing.assert_close(gate.trust(energy, beta), expected, rtol=2e-6, atol=1e-8)


def test_trust_by_hand():
    # mean 2, population deviation 1: rho(+-1); with the sample deviation it would be rho(+-.71)
    rho = 1 / (1 + math.exp(-1))
    torch.testing.assert_close(gate.trust(torch.tensor([1.0, 3.0])), torch.tensor([rho, 1 - rho]))


def test_the_small_constant_keeps_tiny_differences_from_counting():
    # Deviation 1e-8 as well, so the normalised energies are +-1/2 instead of +-1.
    weights = gate.trust(torch.tensor([0.0, 2e-8], dtype=torch.float64))
    rho = 1 / (1 + math.exp(-0.5))
    torch.testing.assert_close(weights, torch.tensor([rho, 1 - rho]))


@pytest.mark.parametrize("value", [0.0, 1e5 + 0.1, 1e-30, -3.7, 1e12, 1e30, 3e38])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_energies_give_exactly_one_half(value, n, dtype):
    assert gate.trust(torch.full((n,), value, dtype=dtype), beta=4.0).tolist() == [0.5] * n


@pytest.mark.parametrize("scale", [1e12, 1e20, 1e30])
def test_huge_energies_do_not_overflow(scale):
    energy = torch.tensor([0.1, 3.0, 5.0, 4.0, 1.0])
    torch.testing.assert_close(gate.trust(energy * scale), gate.trust(energy), rtol=1e-6, atol=1e-7)
    outlier = gate.trust(torch.tensor([0.1, 0.2, 0.3, 0.4, scale]))
    torch.testing.assert_close(outlier[4], torch.sigmoid(torch.tensor(-2.0)))
    torch.testing.assert_close(outlier[:4], torch.sigmoid(torch.full((4,), 0.5)))


def test_beta_may_be_a_tensor():
    energy = logits(9)
    assert torch.equal(gate.trust(energy, torch.tensor(2.0)), gate.trust(energy, 2.0))
    assert gate.trust(energy, torch.tensor(2.0, requires_grad=True)).requires_grad is False
    betas = torch.tensor([0.5, 1.0, 4.0])
    mapped = vmap(lambda b: gate.trust(energy, b))(betas)
    assert torch.equal(mapped, torch.stack([gate.trust(energy, b) for b in betas]))


def test_trust_is_detached_and_float32():
    energy = logits(4).double().requires_grad_()
    weights = gate.trust(energy)
    assert weights.dtype == torch.float32
    assert not weights.requires_grad
    gradient = torch.func.grad(lambda e: (gate.trust(e) * e).sum())(energy.detach())
    torch.testing.assert_close(gradient, weights.double())


@st.composite
def padded_batches(draw):
    """Energies, where they lie in a longer batch, and what fills the rest."""
    n = draw(st.integers(1, 40))
    energy = draw(st.lists(st.one_of(floats32, st.floats(0, 2**30, width=32)), min_size=n, max_size=n))
    pads = draw(st.integers(0, 30))
    mask = draw(st.permutations([True] * n + [False] * pads))
    junk = draw(st.lists(st.sampled_from([NAN, INF, -INF, 0.0, 1e38]), min_size=pads, max_size=pads))
    mask = torch.tensor(mask)
    padded = torch.empty(n + pads)
    padded[mask], padded[~mask] = torch.tensor(energy), torch.tensor(junk)
    return torch.tensor(energy), padded, mask


@settings(deadline=None, max_examples=60)
@given(padded_batches(), st.floats(0.1, 8))
def test_padding_changes_no_bit_of_the_weights(batch, beta):
    energy, padded, mask = batch
    weights = gate.trust(padded, beta, mask)
    assert torch.equal(weights[mask], gate.trust(energy, beta))
    assert (weights[~mask] == 0).all()
    assert torch.equal(gate.trust(padded, beta, mask.float()), weights)


@settings(deadline=None, max_examples=60)
@given(padded_batches(), st.integers(0, 1000))
def test_padding_changes_no_bit_of_permuted_weights(batch, seed):
    energy, padded, mask = batch
    uniform = torch.rand(len(mask), generator=torch.Generator().manual_seed(seed))
    dealt = gate.permute(padded, uniform, mask)
    assert torch.equal(dealt[mask], gate.permute(energy, uniform[mask]))
    assert (dealt[~mask] == 0).all()


@pytest.mark.parametrize("n", [3, 100, 8192])
def test_batch_sums_have_no_order(n):
    unit = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total = gate._exact_sum(unit)
    assert total.item() == pytest.approx(math.fsum(unit.tolist()), abs=n * 2**-41)
    for seed in range(5):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(gate._exact_sum(unit[order]), total)


def test_a_full_batch_near_its_range_is_summed_without_an_error():
    """8192 values of nearly 1 need 53 bits on the grid, all that float64 has: a finer grid would round."""
    assert gate._QUANTUM == 2**-40
    steps = 2**40 - 2 * torch.arange(8192, dtype=torch.float64) - 1
    assert gate._exact_sum(steps * 2**-40).item() == sum(int(n) for n in steps) / 2**40


@pytest.mark.parametrize("fill", [NAN, INF, 0.0])
def test_a_batch_without_valid_samples_is_all_zero(fill):
    values, mask = torch.full((3,), fill, requires_grad=True), torch.zeros(3, dtype=torch.bool)
    assert gate.trust(values, 1.0, mask).tolist() == [0, 0, 0]
    assert gate.permute(values.detach(), torch.rand(3), mask).tolist() == [0, 0, 0]
    assert gate.constant(values, 0.5, mask).tolist() == [0, 0, 0]
    loss = gate.masked_mean(values, mask)
    loss.backward()
    assert loss.item() == 0
    assert values.grad.tolist() == [0, 0, 0]


def test_a_nan_among_the_valid_is_not_hidden():
    assert gate.trust(torch.tensor([1.0, NAN])).isnan().all()


# Controls


def test_constant():
    energy, mask = torch.tensor([NAN, 1e9, -1.0]), torch.tensor([True, True, False])
    assert gate.constant(energy, 1.0).tolist() == [1, 1, 1]
    assert gate.constant(energy, 0.5, mask).tolist() == [0.5, 0.5, 0]
    assert gate.constant(energy.double(), torch.tensor(0.5), mask.float()).tolist() == [0.5, 0.5, 0]
    assert gate.constant(energy.double(), 1.0).dtype == torch.float32


def test_permute_by_hand():
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    uniform = torch.tensor([0.9, 0.1, 0.5, 0.3])
    torch.testing.assert_close(gate.permute(weights, uniform), torch.tensor([0.2, 0.4, 0.3, 0.1]))
    mask = torch.tensor([True, False, True, True])
    torch.testing.assert_close(gate.permute(weights, uniform, mask), torch.tensor([0.4, 0.0, 0.3, 0.1]))


@settings(deadline=None, max_examples=60)
@given(padded_batches(), st.integers(0, 1000))
def test_permute_keeps_the_multiset(batch, seed):
    _, padded, mask = batch
    weights = gate.trust(padded, 1.0, mask)
    uniform = torch.rand(len(mask), generator=torch.Generator().manual_seed(seed))
    dealt = gate.permute(weights, uniform, mask)
    assert torch.equal(dealt.sort().values, weights.sort().values)
    assert torch.equal(dealt == 0, weights == 0)


def test_permute_reaches_every_order_evenly():
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(6000, 3, generator=generator)
    dealt = vmap(lambda u: gate.permute(torch.tensor([1.0, 2.0, 3.0]), u))(uniform)
    _, counts = dealt.unique(dim=0, return_counts=True)
    assert len(counts) == 6
    assert ((counts - 1000).abs() < 150).all()


# Losses


def test_masked_mean_by_hand():
    values, mask = torch.tensor([1.0, NAN, 4.0]), torch.tensor([True, False, True])
    assert gate.masked_mean(values, mask).item() == 2.5
    assert gate.masked_mean(values, mask.float()).item() == 2.5
    assert gate.masked_mean(values[::2]).item() == 2.5


def test_the_mean_of_one_sample_is_that_sample():
    assert gate.masked_mean(torch.tensor([3.0])).item() == 3
    assert gate.masked_mean(torch.tensor([3.0, NAN]), torch.tensor([True, False])).item() == 3


def test_padded_nan_reaches_no_gradient():
    values = torch.tensor([1.0, NAN, 4.0], requires_grad=True)
    mask = torch.tensor([True, False, True])
    gate.masked_mean(values, mask).backward()
    assert values.grad.tolist() == [0.5, 0, 0.5]
    values.grad = None
    gate.gated_distillation(values, torch.tensor([0.5, NAN, 1.0]), mask).backward()
    assert values.grad.tolist() == [0.25, 0, 0.5]


def test_gated_distillation_divides_by_the_samples_not_the_weights():
    distance, weights = torch.tensor([2.0, 4.0, 8.0, 100.0]), torch.tensor([0.5, 0.25, 0.25, 0.9])
    mask = torch.tensor([True, True, True, False])
    assert gate.gated_distillation(distance, weights, mask).item() == pytest.approx(4 / 3)
    assert gate.gated_distillation(distance[:3], weights[:3]).item() == pytest.approx(4 / 3)


def test_a_step_moves_the_private_logits_alone():
    private, proxy = logits(6, 4).requires_grad_(), logits(6, 4, seed=1).requires_grad_()
    weights = gate.trust(gate.energy_kl(private, proxy))
    loss = gate.gated_distillation(gate.kl(proxy.detach(), private), weights)
    loss.backward()
    assert proxy.grad is None
    # With the weights as plain numbers: nothing came through the energy.
    p, q = private.detach().softmax(-1), proxy.detach().softmax(-1)
    torch.testing.assert_close(private.grad, weights[:, None] * (p - q) / 6)
    # And weights that do carry a gradient are cut off by the loss itself.
    live = torch.full((6,), 0.5, requires_grad=True)
    gate.gated_distillation(gate.kl(proxy.detach(), private), live).backward()
    assert live.grad is None


# vmap


def padded_step(private, proxy, uniform, mask, beta, distance, energy):
    weights = gate.trust(energy(private, proxy), beta, mask)
    dealt = gate.permute(weights, uniform, mask)
    loss = gate.gated_distillation(distance(proxy, private), dealt, mask)
    return weights, dealt, gate.constant(weights, beta, mask), loss


@pytest.mark.parametrize("name", ENERGIES)
def test_vmap_equals_a_loop(name):
    clients, batch = 3, 7
    private, proxy = logits(clients, batch, 5), logits(clients, batch, 5, seed=1)
    uniform = torch.rand(clients, batch, generator=torch.Generator().manual_seed(2))
    mask = torch.arange(batch) < torch.tensor([7, 4, 1])[:, None]
    beta = torch.tensor([0.5, 1.0, 2.0])
    distance = DISTANCES.get(name, gate.kl)

    def step(*args):
        return padded_step(*args, distance, ENERGIES[name])

    mapped = vmap(step)(private, proxy, uniform, mask, beta)
    looped = [step(*args) for args in zip(private, proxy, uniform, mask, beta, strict=True)]
    for left, right in zip(mapped, zip(*looped, strict=True), strict=True):
        torch.testing.assert_close(left, torch.stack(right))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000))
def test_vmap_changes_no_bit_of_the_weights(seed):
    energy = logits(4, 33, seed=seed).exp()
    assert torch.equal(vmap(gate.trust)(energy), torch.stack([gate.trust(e) for e in energy]))


def test_vmapped_gradients():
    private, proxy = logits(3, 6, 4), logits(3, 6, 4, seed=1)

    def loss(f, g):
        return gate.gated_distillation(gate.kl(g, f), gate.trust(gate.energy_kl(f, g)))

    mapped = vmap(torch.func.grad(loss))(private, proxy)
    weights = torch.stack([gate.trust(gate.energy_kl(f, g)) for f, g in zip(private, proxy, strict=True)])
    expected = weights[..., None] * (private.softmax(-1) - proxy.softmax(-1)) / 6
    torch.testing.assert_close(mapped, expected)
