"""The convolution layers that gpu_kernels.py checks and tunes: their shapes, operands and kernels."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from fedekd.engines import fused_conv

START = time.monotonic()
DEVICE, BATCH = "cuda", 64
# name: inputs, outputs, height and width
LAYERS = {
    "private28.1": (1, 64, 28), "private28.2": (64, 128, 14), "private28.3": (128, 128, 7),
    "proxy28.1": (1, 32, 28), "proxy28.2": (32, 64, 14),
    "private32.1": (3, 64, 32), "private32.2": (64, 128, 16), "private32.3": (128, 128, 8),
    "proxy32.1": (3, 32, 32), "proxy32.2": (32, 64, 16),
    "private224.1": (3, 64, 224), "private224.2": (64, 128, 112), "private224.3": (128, 128, 56),
    "odd": (20, 40, 9),
}  # fmt: skip


def elapsed() -> float:
    return time.monotonic() - START


def draw(name: str, m: int, batch: int, precision: str) -> dict[str, Tensor]:
    """A layer's operands. A first layer reads planar float32 images, as the engine hands them over."""
    (c, n, size), cuda = LAYERS[name], torch.device(DEVICE)
    half, kind = size // 2, fused_conv.PRECISIONS[precision][0]
    if c <= fused_conv.FEW:
        x = torch.randn(m, batch, c, size, size, device=cuda).permute(0, 1, 3, 4, 2)
    else:
        x = torch.randn(m, batch, size, size, c, device=cuda, dtype=kind)
    w, b = torch.randn(m, n, c, 3, 3, device=cuda) / (9 * c) ** 0.5, torch.randn(m, n, device=cuda) / 4
    dy = torch.randn(m, batch, half, half, n, device=cuda, dtype=kind)
    return {"x": x, "w": w, "b": b, "dy": dy}


def prepare(data: dict[str, Tensor], precision: str) -> dict[str, Tensor]:
    """Outputs full of NaN, packed weights, and the code and gradient that the backward kernels read."""
    x, w, b, dy = data["x"], data["w"], data["b"], data["dy"]
    c, n = x.shape[4], w.shape[1]
    data["y"] = torch.full_like(dy, torch.nan)
    data["code"] = torch.full(dy.shape, 255, dtype=torch.uint8, device=dy.device)
    data["forward_w"] = fused_conv.packed(w, precision, *((0, 1, 2, 3, 4) if c <= fused_conv.FEW else (0, 3, 4, 1, 2)))
    data["dgrad_w"] = fused_conv.packed(w, precision, 0, 3, 4, 2, 1)
    tile = fused_conv.tile("forward", c, n, precision)
    fused_conv.convolve(x, data["forward_w"], b, data["y"], data["code"], precision, tile)
    data["d"], data["sums"] = fused_conv.spread(dy, data["code"], precision)
    data["dx"] = torch.full(x.shape, torch.nan, dtype=x.dtype, device=x.device)
    data["dw"] = torch.full_like(w, torch.nan)
    return data


def launch(kernel: str, data: dict[str, Tensor], precision: str, tile: tuple[int, ...]) -> Any:
    x, b, dy, d, code = data["x"], data["b"], data["dy"], data["d"], data["code"]
    if kernel in ("forward", "first"):
        return fused_conv.convolve(x, data["forward_w"], b, data["y"], code, precision, tile)
    if kernel == "dgrad":
        return fused_conv.convolve(d, data["dgrad_w"], b, data["dx"], None, precision, tile)
    if kernel == "wgrad":
        return fused_conv.weight_gradient(x, d, data["dw"], precision, tile)
    if kernel == "first_wgrad":
        return fused_conv.first_gradient(x, dy, code, precision, tile)
    return fused_conv.spread(dy, code, precision)
