"""FedAvg (McMahan et al., 2017): train the received model, send it, receive the average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedekd.methods import Batch, Exchange, Method, Step, Train, register

if TYPE_CHECKING:
    from torch import Tensor


@register("fedavg", family="paper", cite="McMahan et al., AISTATS 2017")
@dataclass(frozen=True)
class FedAvg(Method):
    """Average the private models every round"""

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.loss), Exchange("private")

    def loss(self, batch: Batch) -> Tensor:
        return batch.supervised("private")
