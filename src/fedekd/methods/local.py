"""Local training: every client alone. The zero against which negative transfer is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedekd.methods import Batch, Method, Step, Train, register

if TYPE_CHECKING:
    from torch import Tensor


@register("local", family="paper")
@dataclass(frozen=True)
class Local(Method):
    """Each client trains its private model alone"""

    def steps(self, round: int) -> tuple[Step, ...]:
        return (Train(("private",), self.loss),)

    def loss(self, batch: Batch) -> Tensor:
        return batch.supervised("private")
