"""Perceptrons, for tables; images are flattened."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

Shape = Sequence[int]


class MLP(nn.Module):
    def __init__(self, inputs: int, outputs: int, widths: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Linear(inputs, width), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
            inputs = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def linear(shape: Shape, outputs: int) -> nn.Module:
    return _flat(shape, MLP(math.prod(shape), outputs, ()))


def small(shape: Shape, outputs: int) -> nn.Module:
    return _flat(shape, MLP(math.prod(shape), outputs, (32,)))


def medium(shape: Shape, outputs: int) -> nn.Module:
    return _flat(shape, MLP(math.prod(shape), outputs, (128, 128)))


def large(shape: Shape, outputs: int) -> nn.Module:
    return _flat(shape, MLP(math.prod(shape), outputs, (256, 256, 256), dropout=0.1))


def _flat(shape: Shape, module: MLP) -> nn.Module:
    return nn.Sequential(nn.Flatten(), module) if len(shape) > 1 else module
