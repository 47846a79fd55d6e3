"""Convolutional networks for images. The paper's private and proxy models are two of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedekd.architectures.shapes import image

Shape = Sequence[int]


class CNN(nn.Module):
    """3x3 convolutions, each with ReLU and 2x2 max-pooling while the map allows it, then one hidden layer.

    Pooling comes before ReLU: the same function and gradients, with a quarter of the values to rectify.
    Maps larger than 8x8 at the end (inputs larger than 32x32 or so) are averaged to 4x4 before the hidden layer.
    """

    def __init__(self, shape: Shape, outputs: int, widths: Sequence[int], hidden: int) -> None:
        super().__init__()
        channels, height, width = shape
        layers: list[nn.Module] = []
        for out in widths:
            layers.append(nn.Conv2d(channels, out, 3, padding=1))
            channels = out
            if min(height, width) >= 2:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            layers.append(nn.ReLU())
        if max(height, width) > 8:
            layers.append(nn.AdaptiveAvgPool2d(4))
            height = width = 4
        self.body = nn.Sequential(*layers)
        self.hidden = nn.Linear(channels * height * width, hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(self.body(x).flatten(1))))


def small(shape: Shape, outputs: int) -> nn.Module:
    return CNN(image(shape, "cnn-small"), outputs, (32, 64), 128)


def medium(shape: Shape, outputs: int) -> nn.Module:
    return CNN(image(shape, "cnn"), outputs, (64, 128, 128), 256)


def large(shape: Shape, outputs: int) -> nn.Module:
    return CNN(image(shape, "cnn-large"), outputs, (64, 128, 256, 256), 512)
