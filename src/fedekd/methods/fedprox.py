"""FedProx (Li et al., 2020): FedAvg whose local loss is held near the received model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedekd.methods import Batch, register
from fedekd.methods.fedavg import FedAvg
from fedekd.trees import squared_distance

if TYPE_CHECKING:
    from torch import Tensor


@register("fedprox", family="paper", cite="Li et al., MLSys 2020")
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with the proximal term (mu/2)||theta - received||^2"""

    mu: float = 0.01
    reads_weights = ("private",)

    def loss(self, batch: Batch) -> Tensor:
        distance = squared_distance(batch.weights["private"], batch.received["private"])
        return batch.supervised("private") + self.mu / 2 * distance
