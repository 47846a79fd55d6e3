"""Robust combination: one bad model among honest ones does not move the result, where it would move the mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.errors import FedekdError
from fedekd.exchange import average
from fedekd.flower.server.combine import combination


def honest(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        {"w": 1 + 0.01 * torch.randn(6, 3, generator=generator), "b": torch.ones(2), "count": torch.tensor(k)}
        for k in range(count)
    ]


BAD = {"w": torch.full((6, 3), 1e3), "b": torch.full((2,), -1e3), "count": torch.tensor(99)}


def stacked(messages):
    return {key: torch.stack([m[key] for m in messages]) for key in messages[0]}


def equally(count):
    return torch.full((count,), 1 / count)


def test_the_mean_is_the_simulations():
    assert combination("mean") is average


@pytest.mark.parametrize("name", ["median", "trimmed", "krum"])
@pytest.mark.parametrize("sites", [3, 4, 6])
def test_one_bad_site_is_outvoted(name, sites):
    messages = [*honest(sites - 1), BAD]
    found = combination(name)(stacked(messages), equally(sites))
    assert list(found) == list(BAD)
    assert torch.allclose(found["w"], torch.ones(6, 3), atol=0.1)
    assert found["w"].dtype == torch.float32
    assert found["count"] == 0
    assert float(average(stacked(messages), equally(sites))["w"].mean()) > 100, "the mean would have been bent"


def test_median_and_trimmed_are_what_they_say():
    messages = honest(5)
    stack = torch.stack([m["w"] for m in messages])
    assert torch.allclose(combination("median")(stacked(messages), equally(5))["w"], stack.median(0).values)
    middle = torch.from_numpy(np.sort(stack.numpy(), axis=0)[1:4].mean(0))
    assert torch.allclose(combination("trimmed")(stacked(messages), equally(5))["w"], middle, atol=1e-6)


def test_krum_picks_one_of_the_models():
    messages = [*honest(4), BAD]
    found = combination("krum")(stacked(messages), equally(5))["w"]
    assert any(torch.allclose(found, m["w"], atol=1e-6) for m in messages[:4])


def test_two_sites_leave_nothing_to_trim():
    pair = stacked(honest(2))
    assert torch.allclose(combination("trimmed")(pair, equally(2))["w"], average(pair, equally(2))["w"])


def test_an_unknown_one():
    with pytest.raises(FedekdError, match="unknown combine 'mode'"):
        combination("mode")
