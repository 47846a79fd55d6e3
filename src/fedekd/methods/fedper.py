"""FedPer (Arivazhagan et al., 2019): the last layers are each client's own, the body below them is averaged.

Body and head are trained together; a client answers with the new body under its own head.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedekd.methods import Exchange, Step, Train, register
from fedekd.methods.fedavg import FedAvg
from fedekd.parts import AllBut, Head


@register("fedper", family="personalised", cite="Arivazhagan et al., 2019")
@dataclass(frozen=True)
class FedPer(FedAvg):
    """FedAvg of the body only: the last layers stay at the client"""

    layers: int = 1  # at the end of the model, that are personal

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.loss), Exchange("private", part=AllBut(Head(self.layers)))
