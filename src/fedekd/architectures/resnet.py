"""Residual networks for small images (He et al., 2016), as they are used on CIFAR: no pooling at the start.

Batch norm has running statistics, which are a client's own or averaged as a method says. Group norm (Wu and He, 2018)
has none, and is the usual choice in federated learning where clients differ much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedekd.architectures.shapes import image

Shape = Sequence[int]
Norm = Callable[[int], nn.Module]


class Thinned(nn.Module):
    """Every second row and column: a convolution of 1x1 with stride 2 sees no others."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, ::2, ::2]


class Block(nn.Module):
    """Two convolutions beside a shortcut, which is a convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm(outputs)
        self.second, self.second_norm = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            thinned = nn.Identity() if stride == 1 else Thinned()
            self.shortcut = nn.Sequential(thinned, nn.Conv2d(inputs, outputs, 1, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, shape: Shape, outputs: int, widths: Sequence[int], depth: int, norm: Norm) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(shape[0], widths[0], 3, 1, 1, bias=False), norm(widths[0]), nn.ReLU())
        blocks, inputs = [], widths[0]
        for stage, width in enumerate(widths):
            for place in range(depth):
                blocks.append(Block(inputs, width, 2 if stage and not place else 1, norm))
                inputs = width
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


def group_norm(channels: int) -> nn.Module:
    """At least eight channels to a group, and at most eight groups."""
    return nn.GroupNorm(max(1, min(8, channels // 8)), channels)


def small(shape: Shape, outputs: int) -> nn.Module:
    return ResNet(image(shape, "resnet"), outputs, (16, 32, 64), 1, nn.BatchNorm2d)


def small_group(shape: Shape, outputs: int) -> nn.Module:
    return ResNet(image(shape, "resnet-gn"), outputs, (16, 32, 64), 1, group_norm)


def large(shape: Shape, outputs: int) -> nn.Module:
    return ResNet(image(shape, "resnet18"), outputs, (64, 128, 256, 512), 2, nn.BatchNorm2d)


def large_group(shape: Shape, outputs: int) -> nn.Module:
    return ResNet(image(shape, "resnet18-gn"), outputs, (64, 128, 256, 512), 2, group_norm)
