"""FedBN (Li et al., ICLR 2021): normalisation layers are each client's own, everything else is averaged.

The official code finds them by the letters "bn" in their names; here they are found by their type, with their running
statistics. The paper speaks of batch norm; layers of other kinds stay at the client too.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedekd.methods import Exchange, Step, Train, register
from fedekd.methods.fedavg import FedAvg
from fedekd.parts import AllBut, Norms


@register("fedbn", family="personalised", cite="Li et al., ICLR 2021")
@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg of everything but the normalisation layers"""

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.loss), Exchange("private", part=AllBut(Norms()))
