"""FedAvg with fine-tuning (McMahan et al., AISTATS 2017; the grid of Wu et al., 2022): tune the average, then answer.

What is tuned is the newest average, on a copy that is thrown away: training is FedAvg's. The model that a client holds
after a round's own epochs, before averaging, is another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedekd import parts
from fedekd.errors import FedekdError, unknown
from fedekd.methods import Train, register
from fedekd.methods.fedavg import FedAvg

PARTS = {"all": None, "head": parts.Head()}


@register("fedavg-tuned", family="personalised", cite="McMahan et al., AISTATS 2017")
@dataclass(frozen=True)
class FedAvgTuned(FedAvg):
    """FedAvg, and each client fine-tunes a copy of the average on its own rows before it predicts"""

    epochs: str = "local"  # of tuning: as many as in a round, or a number
    part: str = "all"  # or head: only the last layer is tuned

    def personalise(self) -> tuple[Train, ...]:
        epochs = None if self.epochs == "local" else int(self.epochs)
        return () if epochs == 0 else (Train(("private",), self.loss, part=PARTS[self.part], epochs=epochs),)

    def check(self, task: str) -> None:
        super().check(task)
        if self.part not in PARTS:
            raise unknown("part", self.part, PARTS)
        if self.epochs != "local" and not str(self.epochs).isdecimal():
            raise FedekdError(f"{self.name}.epochs must be 'local' or a whole number, 0 or more, got {self.epochs!r}")
