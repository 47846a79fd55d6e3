"""Second opinion, near: the head adds to the averaged proxy's own, and three opinions begin as equals."""

from __future__ import annotations

import pytest
import torch

from fedekd import methods
from fedekd.methods.second_opinion import FLOOR
from serially import answers, go_on, same, states, traffic, trained

NEAR, FAR = methods.get("second-opinion-near"), methods.get("second-opinion")


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_what_is_trained_and_sent_is_that_of_second_opinion(rows, request):
    federation = request.getfixturevalue(rows)
    near, far = trained(federation, NEAR), trained(federation, FAR)
    assert same(states(near), states(far))
    assert same(states(near, "proxy"), states(far, "proxy"))
    assert traffic(near) == traffic(far)
    assert any(not torch.allclose(a, b) for a, b in zip(answers(near), answers(far), strict=True))
    assert go_on(federation, NEAR)


def test_with_much_caution_all_three_answer_alike(images):
    careful = trained(images, methods.get("second-opinion-near", caution=1e9))
    with careful.personalised():
        for client in careful.clients:
            weights = client.memory["weights"]
            equal, alone = torch.full_like(weights, 1 / 3), torch.eye(3)[0].expand_as(weights)
            assert torch.allclose(weights, equal, atol=1e-4) or torch.equal(weights, alone)


def test_a_head_begins_as_the_averaged_proxys(images, monkeypatch):
    """A pull that lets nothing change leaves the averaged proxy with the client's class counts."""
    monkeypatch.setattr(type(NEAR), "strengths", (1e9,))
    engine = trained(images, NEAR)
    with engine.personalised():
        for client in engine.clients:
            batch = client._whole("test", ("private", "proxy"), engine.round_number)
            said = NEAR.opinions(batch)
            wanted = torch.log_softmax(NEAR.with_prior(batch), -1).clamp(min=FLOOR)
            torch.testing.assert_close(said[0, 2], wanted, atol=1e-4, rtol=1e-4)
            assert not torch.allclose(said[0, 0], wanted)


def test_its_twin_exchanges_nothing(images):
    assert traffic(trained(images, methods.twin(NEAR, "alone"))) == (0, 0)
