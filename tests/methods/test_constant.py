"""The constant predictor gives the mean of the training targets, and trains and sends nothing."""

from __future__ import annotations

import torch

from fedekd import methods


def test_every_sample_gets_the_training_mean():
    method = methods.get("constant")
    assert method.predict(torch.tensor([1.0, 2.0, 6.0]), 4).tolist() == [3, 3, 3, 3]
    assert method.steps(0) == ()
    assert method.roles == ()
