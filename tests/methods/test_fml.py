"""FML's four terms, each with its weight, and who learns from which."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from fedekd import methods
from fedekd.methods.base import Exchange, Train
from fedekd.tasks import Classification, Regression
from hand_batch import gradients, hand_batch, two_models

A, B = 0.3, 0.9


def test_the_loss_by_hand_in_regression():
    """Private: .3 x 4 + .7 x 9; proxy: .9 x 25 + .1 x 9."""
    outputs = {"private": torch.tensor([2.0], requires_grad=True), "proxy": torch.tensor([5.0], requires_grad=True)}
    loss = methods.get("fml", supervision=A, proxy_supervision=B).loss(
        hand_batch(Regression(), torch.tensor([0.0]), outputs)
    )
    assert loss.item() == pytest.approx(0.3 * 4 + 0.7 * 9 + 0.9 * 25 + 0.1 * 9)
    found = gradients(loss, outputs)
    assert found["private"].item() == pytest.approx(0.3 * 2 * 2 + 0.7 * 2 * (2 - 5))
    assert found["proxy"].item() == pytest.approx(0.9 * 2 * 5 + 0.1 * 2 * (5 - 2))


def test_each_learns_from_the_labels_and_from_the_other():
    outputs, y = two_models(), torch.tensor([0, 1, 2, 3, 0, 0])
    loss = methods.get("fml", supervision=A, proxy_supervision=B).loss(hand_batch(Classification(), y, outputs))
    p, q = (outputs[role].detach().softmax(-1) for role in ("private", "proxy"))
    truth, n = one_hot(y, 4), len(y)
    found = gradients(loss, outputs)
    torch.testing.assert_close(found["private"], (A * (p - truth) + (1 - A) * (p - q)) / n)
    torch.testing.assert_close(found["proxy"], (B * (q - truth) + (1 - B) * (q - p)) / n)
    private = A * cross_entropy(outputs["private"], y) + (1 - A) * (q * (q / p).log()).sum(-1).mean()
    proxy = B * cross_entropy(outputs["proxy"], y) + (1 - B) * (p * (p / q).log()).sum(-1).mean()
    torch.testing.assert_close(loss, private + proxy)


def test_a_round_trains_both_at_once_and_sends_the_proxy():
    method = methods.get("fml")
    train, exchange = method.steps(0)
    assert isinstance(train, Train)
    assert (train.roles, train.frozen, train.loss) == (("private", "proxy"), (), method.loss)
    assert isinstance(exchange, Exchange)
    assert exchange.name == "proxy"
