"""Models and methods that train in a blink, for the tests."""

from __future__ import annotations

from torch import nn

from fedekd import methods
from fedekd.models import CNN, MLP


def tiny_private(shape, outputs) -> nn.Module:
    return CNN(shape, outputs, (4, 6), 12) if len(shape) == 3 else MLP(shape[0], outputs, (12, 12))


def tiny_proxy(shape, outputs) -> nn.Module:
    return CNN(shape, outputs, (3,), 8) if len(shape) == 3 else MLP(shape[0], outputs, (8,))


def quick(name: str) -> methods.Method:
    """The method of that name, with few passes where it makes many."""
    return methods.get(name, **({"passes": 3} if name.startswith("second-opinion-taught") else {}))
