"""FedeKD's two losses and its gate against numpy: every coefficient, every energy, every control."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from fedekd import gate, methods
from fedekd.methods.base import ClientInit, Exchange, Train
from fedekd.tasks import Classification, Regression
from hand_batch import gradients, hand_batch, two_models

Y = torch.tensor([0, 1, 2, 3, 0, 0])
N = len(Y)
FEATURES = {"private": torch.arange(18.0).reshape(6, 3).sin(), "proxy": torch.arange(12.0).reshape(6, 2).cos()}
PROJECTION = torch.tensor([[1.0, -0.5], [0.25, 2.0], [0.0, 1.0]])
UNIFORM = torch.tensor([0.9, 0.1, 0.5, 0.3, 0.2, 0.7])


def batch_of(outputs, mask=None):
    return hand_batch(
        Classification(),
        Y,
        outputs,
        features=FEATURES,
        memory={"projection": PROJECTION},
        uniform=UNIFORM[:, None],
        mask=mask,
    )


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_numpy(energy, outputs):
    """The energies of the paper, from probabilities."""
    f, g = (outputs[role].detach().numpy() for role in ("private", "proxy"))
    p, q = softmax(f), softmax(g)
    match energy:
        case "kl":
            symmetric = 0.5 * ((p * np.log(p / q)).sum(-1) + (q * np.log(q / p)).sum(-1))
            return symmetric / (-(p * np.log(p)).sum(-1) - (q * np.log(q)).sum(-1) + 1e-8)
        case "entropy":
            return -(q * np.log(q)).sum(-1)
        case "margin":
            ranked = np.sort(g, -1)
            return -(ranked[:, -1] - ranked[:, -2])
        case "lse":
            return -np.log(np.exp(g).sum(-1))
        case "feature":
            return np.linalg.norm(FEATURES["proxy"] - FEATURES["private"] @ PROJECTION, axis=-1)


def trust_by_numpy(energy, beta):
    return 1 / (1 + np.exp(beta * (energy - energy.mean()) / (energy.std() + 1e-8)))


@pytest.mark.parametrize("energy", ["kl", "entropy", "margin", "lse", "feature"])
def test_the_trust_of_every_energy(energy):
    outputs = two_models()
    method, batch = methods.get("fedekd", energy=energy, beta=1.7), batch_of(outputs)
    expected = by_numpy(energy, outputs)
    np.testing.assert_allclose(method.energies(batch).detach().numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(method.trust(batch).numpy(), trust_by_numpy(expected, 1.7), rtol=1e-5)
    assert torch.equal(
        methods.get(f"fedekd-{energy}" if energy != "kl" else "fedekd").energies(batch), method.energies(batch)
    )
    examined = method.examine(batch)
    assert torch.equal(examined["energy"], method.energies(batch))
    assert torch.equal(examined["trust"], method.trust(batch))


def test_regression_is_gated_by_half_the_squared_distance():
    outputs = {"private": torch.tensor([1.0, 2.0, 3.0]), "proxy": torch.tensor([1.5, 0.0, 3.0])}
    batch, method = hand_batch(Regression(), torch.zeros(3), outputs), methods.get("fedekd", beta=0.6, lambda_kd=0.3)
    energy = np.array([0.125, 2.0, 0.0])
    np.testing.assert_allclose(method.energies(batch).numpy(), energy)
    weights = trust_by_numpy(energy, 0.6)
    np.testing.assert_allclose(method.trust(batch).numpy(), weights, rtol=1e-6)
    loss, told = method.backward(batch)
    assert loss.item() == pytest.approx(14 / 3 + 0.3 * (0.25 * weights[0] + 4 * weights[1]) / 3)
    assert torch.equal(told["trust"], method.trust(batch))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fedekd", lambda gated: gated),
        ("fedekd-ungated", lambda gated: np.ones(N)),
        ("fedekd-half", lambda gated: np.full(N, 0.5)),
        ("fedekd-permuted", lambda gated: gated[np.argsort(UNIFORM.numpy())]),
    ],
)
def test_the_private_models_loss_and_gradient(name, expected):
    """CE + lambda x mean of trust x KL(proxy ‖ private); trust and proxy get no gradient."""
    outputs = two_models()
    method = methods.get(name, lambda_kd=0.3, beta=2.0)
    loss, told = method.backward(batch_of(outputs))
    weights = expected(trust_by_numpy(by_numpy("kl", outputs), 2.0))
    np.testing.assert_allclose(told["trust"].numpy(), weights, rtol=1e-5)
    p, q = (outputs[role].detach().softmax(-1) for role in ("private", "proxy"))
    w = torch.from_numpy(weights)
    distance = (q * (q / p).log()).sum(-1)
    torch.testing.assert_close(
        loss, cross_entropy(outputs["private"], Y) + 0.3 * (w * distance).mean(), rtol=1e-5, atol=0
    )
    found = gradients(loss, outputs)
    assert found["proxy"] is None
    expected_gradient = ((p - one_hot(Y, 4)) + 0.3 * w[:, None] * (p - q)) / N
    torch.testing.assert_close(found["private"], expected_gradient, rtol=1e-4, atol=1e-7)


def test_the_proxys_loss_is_the_distance_from_the_private_model_alone():
    outputs = two_models()
    loss = methods.get("fedekd").forward(batch_of(outputs))
    p, q = (outputs[role].detach().softmax(-1) for role in ("private", "proxy"))
    torch.testing.assert_close(loss, (p * (p / q).log()).sum(-1).mean())
    found = gradients(loss, outputs)
    assert found["private"] is None
    torch.testing.assert_close(found["proxy"], (q - p) / N)


@pytest.mark.parametrize("name", ["fedekd", "fedekd-half", "fedekd-permuted"])
def test_padding_has_no_part_in_any_term(name):
    outputs, mask = two_models(), torch.tensor([True] * 4 + [False] * 2)
    method = methods.get(name, lambda_kd=0.3)
    whole, told = method.backward(batch_of(outputs, mask))
    short = hand_batch(Classification(), Y[:4], {r: o[:4] for r, o in outputs.items()}, uniform=UNIFORM[:4, None])
    cut, told_short = method.backward(short)
    torch.testing.assert_close(whole, cut)
    assert torch.equal(told["trust"], torch.cat([told_short["trust"], torch.zeros(2)]))
    torch.testing.assert_close(method.forward(batch_of(outputs, mask)), method.forward(short))


def test_a_round_distils_the_proxy_sends_it_and_teaches_back():
    method = methods.get("fedekd", warmup=2)
    down, exchange, back = method.steps(2)
    assert isinstance(down, Train)
    assert (down.roles, down.frozen, down.loss) == (("proxy",), ("private",), method.forward)
    assert isinstance(exchange, Exchange)
    assert exchange.name == "proxy"
    assert isinstance(back, Train)
    assert (back.roles, back.frozen, back.loss) == (("private",), ("proxy",), method.backward)
    for round in (0, 1):
        alone, down, exchange = method.steps(round)
        assert (alone.roles, alone.frozen, alone.loss) == (("private",), (), method.alone)
        assert (down.roles, down.frozen, down.loss) == (("proxy",), ("private",), method.forward)
        assert exchange.name == "proxy"
    assert len(methods.get("fedekd").steps(0)) == 3
    assert methods.get("fedekd").steps(0)[0].roles == ("proxy",)  # no warm-up unless asked for


def test_only_the_feature_energy_asks_for_features_and_draws_a_projection():
    client = ClientInit(weights={}, features={"private": 5, "proxy": 3}, seed=7, targets=torch.ones(1))
    feature, plain = methods.get("fedekd-feature"), methods.get("fedekd")
    assert feature.needs_features
    assert torch.equal(feature.begin(client)["projection"], gate.projection(5, 3, seed=7))
    assert not plain.needs_features
    assert plain.begin(client) == {}
