"""Local with smoothed targets: Local at weight 0, label smoothing by its formula, shrinkage to the mean."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedekd import methods
from fedekd.tasks import Classification, Regression
from hand_batch import hand_batch
from serially import trained


@pytest.mark.parametrize("task", ["images", "tables"])
def test_without_weight_it_is_local_to_the_bit(request, task):
    federation = request.getfixturevalue(task)
    local, none = (
        trained(federation, methods.get("local")),
        trained(federation, methods.get("local-smooth", weight=0.0)),
    )
    smooth = trained(federation, methods.get("local-smooth"))
    for a, b, c in zip(local.clients, none.clients, smooth.clients, strict=True):
        one, other, changed = (client.models["private"].state_dict() for client in (a, b, c))
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert not all(torch.equal(one[name], changed[name]) for name in one)
    assert none.doors[0].bytes_up == 0


def test_its_gradient_is_that_of_label_smoothing():
    """(1+w) times cross-entropy against targets of which w/(1+w) is spread over the classes."""
    weight, logits = 0.5, torch.randn(6, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    batch = hand_batch(Classification(), y, {"private": logits}, memory={"mean": torch.tensor(0.0)})
    ours = torch.autograd.grad(methods.get("local-smooth", weight=weight).loss(batch), logits)[0]
    smooth = (1 + weight) * F.cross_entropy(logits, y, label_smoothing=weight / (1 + weight))
    assert torch.allclose(ours, torch.autograd.grad(smooth, logits)[0], atol=1e-7)


def test_a_regression_is_drawn_to_the_training_mean():
    out = torch.tensor([1.0, 5.0], requires_grad=True)
    batch = hand_batch(Regression(), torch.tensor([1.0, 5.0]), {"private": out}, memory={"mean": torch.tensor(3.0)})
    loss = methods.get("local-smooth", weight=0.25).loss(batch)
    assert loss.item() == pytest.approx(0.25 * 4.0)
    assert torch.autograd.grad(loss, out)[0].tolist() == pytest.approx([-0.5, 0.5])
