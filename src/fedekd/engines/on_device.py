"""From main memory to the device without waiting for it, so that the host prepares what comes next meanwhile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PINNED = 2**15  # bytes from which the device fetches them itself; fewer travel with the command


def on_device(values: Any, device: torch.device) -> Tensor:
    """Numbers as a tensor on the device; on a GPU, changing them in main memory afterwards changes nothing there."""
    return _ready(torch.as_tensor(values), device).to(device, non_blocking=True)


def fill(target: Tensor, values: Any) -> None:
    """Put these numbers into a tensor."""
    target.copy_(_ready(torch.as_tensor(values), target.device), non_blocking=True)


def _ready(host: Tensor, device: torch.device) -> Tensor:
    fetched = device.type == "cuda" and not host.is_cuda and host.nbytes >= PINNED
    return host.pin_memory() if fetched else host
