"""How the rows of a training step are changed on the device before any model sees them: moved, or mixed in pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fedekd.engines.job import Scale

MOVES = 3  # numbers in [0, 1) for each image: whether it is mirrored, and how far it is moved down and across
MIXES = 6
"""For each row: whether it is blended or patched, the other's share, where its patch lies (two), how both are moved."""
SHARE = 8  # of a side that an image is moved by at most: 4 pixels of 32, and of 28


def inputs(x: Tensor, scale: Scale, rows: Tensor, draws: Tensor | None, partners: Tensor | None) -> Tensor:
    """The models' inputs for these rows: as they are, moved by their draws, or mixed with their partners."""
    if partners is not None:
        assert draws is not None
        return mixed(scale.inputs(x[rows]), scale.inputs(x[partners]), draws)
    return scale.inputs(x[rows] if draws is None else flip_crop(x[rows], draws))


def flip_crop(x: Tensor, draws: Tensor) -> Tensor:
    """Images [..., C, H, W], each by its own draws [..., MOVES]: half of them mirrored, all moved by a few pixels.

    It is a crop of the image with a border of repeated edge pixels: which value is black, not every dataset says.
    """
    return _moved(x, draws[..., 1:], draws[..., :1] < 0.5)


def _moved(x: Tensor, draws: Tensor, mirrored: Tensor | None = None) -> Tensor:
    down, across = (_places(side, draws[..., k]) for k, side in enumerate(x.shape[-2:]))
    if mirrored is not None:
        across = torch.where(mirrored, across.flip(-1), across)
    moved = x.gather(-2, down[..., None, :, None].expand(x.shape))
    return moved.gather(-1, across[..., None, None, :].expand(x.shape))


def _places(side: int, draws: Tensor) -> Tensor:
    """Which pixel comes to each place along a side, [..., side]."""
    most = (side + SHARE // 2) // SHARE
    offset = (draws * (2 * most + 1)).long().clamp_(max=2 * most) - most
    return (torch.arange(side, device=draws.device) + offset[..., None]).clamp_(0, side - 1)


def mixed(x: Tensor, other: Tensor, draws: Tensor) -> Tensor:
    """Inputs that nobody has seen, between two rows each, by their own draws [..., MIXES].

    Two images are moved by a few pixels together; then half of them are blends (mixup) and half have a patch of the
    other (CutMix). Rows of a table, whose neighbouring columns have nothing to do with each other, are all blends.
    """
    images = x.dim() == draws.dim() + 2
    if images:
        x, other = (_moved(one, draws[..., 4:]) for one in (x, other))
    share = draws[..., 1].view(*draws.shape[:-1], *[1] * (x.dim() - draws.dim() + 1)).to(x.dtype)
    blend = x + share * (other - x)
    if not images:
        return blend
    half = draws[..., 1].sqrt() / 2  # of a patch's sides, as a part of the image's
    down, across = (_covered(side, draws[..., k], half) for k, side in enumerate(x.shape[-2:], start=2))
    patch = (down[..., :, None] & across[..., None, :]).unsqueeze(-3)
    return torch.where(draws[..., 0].view(share.shape) < 0.5, blend, torch.where(patch, other, x))


def _covered(side: int, centre: Tensor, half: Tensor) -> Tensor:
    """Which places along a side a patch covers, [..., side]."""
    places = (torch.arange(side, device=centre.device) + 0.5) / side
    return (places - centre[..., None]).abs() < half[..., None]
