"""A small vision transformer (Dosovitskiy et al., 2021), norms first, the mean of all patches at the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedekd.architectures.shapes import image

Shape = Sequence[int]
PATCHES = 8  # along a side, about


class Attention(nn.Module):
    """Written out: torch's own takes other paths in inference than in training, and not all of them can be stacked."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, patches, width = x.shape
        q, k, v = self.inputs(x).reshape(rows, patches, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5).softmax(-1)
        return self.output((weights @ v).transpose(1, 2).reshape(rows, patches, width))


class AttentionBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.first, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.second = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.first(x)))
        return x + self.dropout(self.mlp(self.second(x)))


class ViT(nn.Module):
    def __init__(self, shape: Shape, outputs: int, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        side = max(1, max(shape[1:]) // PATCHES)
        self.patches = nn.Conv2d(shape[0], width, side, side)
        count = (shape[1] // side) * (shape[2] // side)
        self.places = nn.Parameter(torch.randn(1, count, width) * 0.02)
        self.blocks = nn.Sequential(*(AttentionBlock(width, heads, dropout) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.blocks(x)).mean(1))


def small(shape: Shape, outputs: int) -> nn.Module:
    return ViT(image(shape, "vit"), outputs, 64, 4, 4, 0.1)
