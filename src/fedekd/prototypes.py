"""Class means of a model's features, which FedProto and FedGH send."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedekd.errors import FedekdError

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.batch import Batch
    from fedekd.methods.uploads import Uploads


def class_means(batch: Batch) -> dict[str, Tensor]:
    """The mean feature of each class, [C, D], and which classes exist, [C]; the mean of one that does not is 0."""
    features, classes = batch.features["private"], torch.arange(batch.counts.shape[-1], device=batch.y.device)
    members = batch.y[:, None] == classes
    if batch.mask is not None:
        real = batch.mask.bool()[:, None]
        members, features = members & real, torch.where(real, features, 0.0)
    count = members.sum(0)
    means = members.to(features.dtype).T @ features / count.clamp(min=1)[:, None]
    return {"means": means, "exist": count > 0}


def one_width(uploads: Uploads, method: str) -> None:
    """Prototypes can be compared only where all clients' features have one width."""
    widths = sorted({tree["means"].shape[-1] for tree in uploads.each})
    if len(widths) > 1:
        raise FedekdError(
            f"{method} needs features of one width at all clients, but some have {widths[0]} and some {widths[-1]}"
        )
