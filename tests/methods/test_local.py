"""Local training, which is the zero of every Δ: the mean supervised loss of the private model and nothing else."""

from __future__ import annotations

import pytest
import torch

from fedekd import methods
from fedekd.methods.base import Train
from fedekd.tasks import Regression
from hand_batch import gradients, hand_batch


@pytest.mark.parametrize(("name", "loss"), [("local", "loss"), ("fedavg", "loss"), ("fedekd", "alone")])
def test_plain_supervision_by_hand(name, loss):
    """The mean of 4 and 16 over the two real samples; the third is padding."""
    outputs = {role: torch.tensor([2.0, 4.0, 9.0], requires_grad=True) for role in ("private", "proxy")}
    batch = hand_batch(Regression(), torch.zeros(3), outputs, mask=torch.tensor([True, True, False]))
    value = getattr(methods.get(name), loss)(batch)
    assert value.item() == pytest.approx(10)
    found = gradients(value, outputs)
    assert found["private"].tolist() == [2, 4, 0]  # twice the error, over two samples
    assert found["proxy"] is None


def test_a_round_trains_the_private_model_and_sends_nothing():
    method = methods.get("local")
    (train,) = method.steps(0)
    assert isinstance(train, Train)
    assert (train.roles, train.frozen, train.loss) == (("private",), (), method.loss)
