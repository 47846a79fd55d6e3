"""Models that train in a blink, for the tests."""

from __future__ import annotations

from torch import nn

from fedekd.models import CNN, MLP


def tiny_private(shape, outputs) -> nn.Module:
    return CNN(shape, outputs, (4, 6), 12) if len(shape) == 3 else MLP(shape[0], outputs, (12, 12))


def tiny_proxy(shape, outputs) -> nn.Module:
    return CNN(shape, outputs, (3,), 8) if len(shape) == 3 else MLP(shape[0], outputs, (8,))
