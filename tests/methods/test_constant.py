"""The constant predictor gives the mean of the training targets, and trains and sends nothing."""

from __future__ import annotations

import torch

from fedekd import methods
from fedekd.methods import ClientInit
from fedekd.tasks import Regression
from hand_batch import hand_batch


def test_every_sample_gets_the_training_mean():
    method = methods.get("constant")
    memory = method.begin(ClientInit({}, {}, 0, torch.tensor([1.0, 2.0, 6.0])))
    assert method.predict(hand_batch(Regression(), torch.zeros(4), {}, memory=memory)).tolist() == [3, 3, 3, 3]
    assert method.steps(0) == ()
    assert method.roles == ()
