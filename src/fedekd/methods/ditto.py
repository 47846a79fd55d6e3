"""Ditto (Li et al., ICML 2021): FedAvg beside a personal model that is held near the received one.

The personal model persists and never leaves; the received model is constant within a round. Both see the same batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedekd.methods import Batch, Exchange, Method, Step, Train, register
from fedekd.trees import squared_distance

if TYPE_CHECKING:
    from torch import Tensor


@register("ditto", family="personalised", cite="Li et al., ICML 2021")
@dataclass(frozen=True)
class Ditto(Method):
    """A personal model with the term (lam/2)||theta - received||^2 towards FedAvg's"""

    lam: float = 1.0

    roles = reads_weights = ("private", "global")
    like: ClassVar[Mapping[str, str]] = {"global": "private"}

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("global",), self.global_loss), Train(("private",), self.loss), Exchange("global")

    def global_loss(self, batch: Batch) -> Tensor:
        return batch.supervised("global")

    def loss(self, batch: Batch) -> Tensor:
        distance = squared_distance(batch.weights["private"], batch.received["global"])
        return batch.supervised("private") + self.lam / 2 * distance
