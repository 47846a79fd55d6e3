"""Random flips and crops of training images, on the device that trains."""

from __future__ import annotations

import torch
from torch import Tensor

DRAWS = 3  # numbers in [0, 1) for each image: whether it is mirrored, and how far it is moved down and across
SHARE = 8  # of a side that an image is moved by at most: 4 pixels of 32, and of 28


def flip_crop(x: Tensor, draws: Tensor) -> Tensor:
    """Images [..., C, H, W], each by its own draws [..., DRAWS]: half of them mirrored, all moved by a few pixels.

    It is a crop of the image with a border of repeated edge pixels: which value is black, not every dataset says.
    """
    down, across = (_places(side, draws[..., k]) for k, side in enumerate(x.shape[-2:], start=1))
    across = torch.where(draws[..., :1] < 0.5, across.flip(-1), across)
    moved = x.gather(-2, down[..., None, :, None].expand(x.shape))
    return moved.gather(-1, across[..., None, None, :].expand(x.shape))


def _places(side: int, draws: Tensor) -> Tensor:
    """Which pixel comes to each place along a side, [..., side]."""
    most = (side + SHARE // 2) // SHARE
    offset = (draws * (2 * most + 1)).long().clamp_(max=2 * most) - most
    return (torch.arange(side, device=draws.device) + offset[..., None]).clamp_(0, side - 1)
