"""Each proposition and corollary of the paper's appendix on the gate, as a property of the code."""

import math

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedekd import gate

energies = st.lists(
    st.one_of(st.floats(-(2**20), 2**20, width=32), st.floats(-1, 1, width=32), st.sampled_from([0.0, 1.0, 1e12])),
    min_size=1,
    max_size=24,
).map(lambda e: torch.tensor(e, dtype=torch.float32))
betas = st.floats(0.05, 10)
many = settings(deadline=None, max_examples=60)
few = settings(deadline=None, max_examples=10)
seeds = st.integers(0, 2**31)


def draw(seed, *shapes, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) * scale for shape in shapes]


def rho(t):
    return 1 / (1 + math.exp(-t))


@many
@given(energies, betas)
def test_batch_relative_monotonicity(energy, beta):
    order = energy.argsort()
    weights = gate.trust(energy, beta)[order]
    assert (weights.diff() <= 0).all()
    # Not vacuous: a gap that float32 can show is shown.
    if (gap := energy.max() - energy.min()) > 1e-3 * energy.abs().max() and gap > 1e-3:
        assert weights[0] > weights[-1]
        assert weights[0] > 0.5 > weights[-1]


@many
@given(energies, betas)
def test_bounded_and_non_degenerate_trust_weights(energy, beta):
    weights, n = gate.trust(energy, beta), len(energy)
    if n == 1:
        assert weights.item() == 0.5
    reach = beta * math.sqrt(n - 1)
    assert (weights >= rho(-reach) * (1 - 1e-6)).all()
    assert (weights <= rho(reach) * (1 + 1e-6)).all()
    if reach < 16:  # past that float32 rounds the bound itself to 1
        assert ((weights > 0) & (weights < 1)).all()


@many
@given(st.integers(2, 64), st.floats(0.05, 2), st.sampled_from([-1.0, 1.0]))
def test_the_trust_bounds_are_attained(n, beta, side):
    # One sample against n - 1 equal ones: the bound of the proposition is the best possible.
    energy = torch.zeros(n)
    energy[0] = side
    reach = -side * beta * math.sqrt(n - 1)
    torch.testing.assert_close(gate.trust(energy, beta)[0], torch.tensor(rho(reach)), rtol=1e-5, atol=0)


@many
@given(energies, st.floats(0.1, 3), st.lists(st.floats(1e-6, 1 - 1e-6), min_size=5, max_size=5))
def test_variational_optimum_of_the_logistic_gate(energy, beta, others):
    assume(len(energy) > 1)
    e = energy.double()
    normalised = (e - e.mean()) / (e.std(correction=0) + gate.EPS_B)
    weights = gate.trust(energy, beta).double()
    assume(((weights > 1e-4) & (weights < 1 - 1e-4)).all())  # else 1 - w has lost its digits in float32

    def phi(w):
        return w * normalised + (w * w.log() + (1 - w) * (1 - w).log()) / beta

    slope = normalised + (weights / (1 - weights)).log() / beta
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-2 * min(1, 1 / beta))
    # Strictly convex with curvature at least 4 / beta: every other weight is worse by at least that parabola.
    nudged = [(weights + d).clamp(1e-9, 1 - 1e-9) for d in (-1e-2, 1e-2)]
    for w in [torch.full_like(weights, other) for other in others] + nudged:
        parabola = 2 / beta * (w - weights).square()
        assert (phi(w) >= phi(weights) + 0.9 * parabola - 1e-6).all()


@few
@given(seeds, betas)
def test_detached_gating_preserves_the_distillation_direction(seed, beta):
    x, first, second, proxy = draw(seed, (6, 3), (3, 5), (5, 4), (6, 4), scale=1.0)
    parameters = [first.requires_grad_(), second.requires_grad_()]
    private = torch.tanh(x @ first) @ second
    distance = gate.kl(proxy, private)
    weights = gate.trust(gate.energy_kl(private, proxy), beta)
    one = torch.eye(6, dtype=torch.bool)
    for i in range(6):
        loss = 6 * gate.gated_distillation(torch.where(one[i], distance, 0.0), weights)
        gated = torch.autograd.grad(loss, parameters, retain_graph=True)
        plain = torch.autograd.grad(distance[i], parameters, retain_graph=True)
        for left, right in zip(gated, plain, strict=True):
            torch.testing.assert_close(left, weights[i].double() * right)
            assert (left * right).sum() >= 0


@few
@given(seeds, betas, st.integers(1, 4))
def test_regression_output_influence(seed, beta, outputs):
    private, proxy = draw(seed, (7, outputs), (7, outputs))
    private.requires_grad_()
    weights = gate.trust(gate.energy_squared(private, proxy), beta)
    distance = gate.squared_error(proxy, private)
    (gated,) = torch.autograd.grad(7 * gate.gated_distillation(distance, weights), private, retain_graph=True)
    (plain,) = torch.autograd.grad(distance.sum(), private)
    residual = (private - proxy).detach()
    torch.testing.assert_close(gated, 2 * weights[:, None] * residual, rtol=1e-6, atol=0)
    assert (gated.norm(dim=-1) <= plain.norm(dim=-1)).all()
    # Half a step against the gradient ends between the private output and the proxy's, whatever the weight.
    moved = private.detach() - 0.5 * gated
    assert (gate.squared_error(proxy, moved) <= distance + 1e-12).all()
    assert (((moved - proxy) * residual).sum(-1) >= -1e-12).all()


@few
@given(seeds, betas, st.integers(2, 6), st.sampled_from([1.0, 5.0, 100.0]))
def test_classification_output_influence(seed, beta, classes, scale):
    private, proxy = draw(seed, (7, classes), (7, classes), scale=scale)
    private.requires_grad_()
    weights = gate.trust(gate.energy_kl(private, proxy), beta)
    loss = 7 * gate.gated_distillation(gate.kl(proxy, private), weights)
    (gated,) = torch.autograd.grad(loss, private)
    gap = private.detach().softmax(-1) - proxy.softmax(-1)
    torch.testing.assert_close(gated, weights[:, None] * gap)
    rounding = 1e-15  # where one class has all, a softmax is 1 to the last bit and a gradient is one bit
    assert (gated.norm(dim=-1) <= gap.norm(dim=-1) * (1 + 1e-12) + rounding).all()
    assert (gap.norm(dim=-1) <= math.sqrt(2) * (1 + 1e-12)).all()


def test_the_classification_bound_is_approached():
    # One-hot predictions of different classes, kept at nearly full weight by a worse sample.
    private = torch.tensor([[50.0, 0, 0], [1e4, 0, 0]], requires_grad=True)
    proxy = torch.tensor([[0.0, 50, 0], [0, 1e4, 0]])
    weights = gate.trust(gate.energy_kl(private, proxy), beta=20.0)
    (2 * gate.gated_distillation(gate.kl(proxy, private), weights)).backward()
    norms = private.grad.norm(dim=-1)
    assert math.sqrt(2) * 0.999 < norms[0] <= math.sqrt(2) * (1 + 1e-6)
    assert norms[1] < 1e-6
