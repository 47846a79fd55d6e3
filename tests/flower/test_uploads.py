"""What the server refuses: wrong names, shapes, types, packing, numbers and sizes, each with its reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedekd.flower.protocol import uploads, wire
from fedekd.flower.protocol.wire import Packed


def model(seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return {"w": scale * torch.randn(5, 4, generator=generator), "b": torch.zeros(4), "count": torch.tensor(1)}


def packed(how="none", seed=1):
    return wire.pack(model(seed), how, model())[0]


def changed(name, array, how="none"):
    whole = packed(how)
    return replace(whole, arrays={**whole.arrays, name: array})


@pytest.mark.parametrize("how", ["none", "fp16", "int8"])
def test_an_honest_upload_is_opened(how):
    opened = uploads.opened(packed(how), model(), how)
    assert isinstance(opened, dict)
    assert torch.allclose(opened["w"], model(1)["w"], atol=2e-2)


@pytest.mark.parametrize(
    ("upload", "reason"),
    [
        (Packed("none", {"w": np.zeros((5, 4), np.float32)}), "no tensor 'b'"),
        (changed("extra", np.zeros(3, np.float32)), "a tensor 'extra' that is unknown"),
        (changed("w", np.zeros((4, 5), np.float32)), "w has shape (4, 5), not (5, 4)"),
        (changed("w", np.zeros((5, 4))), "w is float64, not float32"),
        (changed("count", np.float32(1)), "count is float32, not int64"),
        (changed("w", np.full((5, 4), np.nan, np.float32)), "w has NaN or infinite numbers"),
        (changed("b", np.full(4, np.inf, np.float32)), "b has NaN or infinite numbers"),
        (changed("b", np.full(4, -1e10, np.float32)), "b has numbers beyond 1e+09"),
        (packed("int8"), "packed as 'int8', not as 'none'"),
        (replace(packed(), scales={"w": 1.0}), "scales do not belong"),
    ],
)
def test_a_bad_upload_is_refused_with_its_reason(upload, reason):
    found = uploads.opened(upload, model(), "none")
    assert isinstance(found, str)
    assert reason in found


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e38 * 10])
def test_a_scale_that_is_no_number_is_found_after_unpacking(scale):
    bad = replace(packed("int8"), scales={"w": scale, "b": 0.0})
    assert "NaN or infinite" in uploads.opened(bad, model(), "int8")
