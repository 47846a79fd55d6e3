"""FedAvgM (Hsu et al., 2019): FedAvg with momentum at the server.

The momentum is the plain one, m = beta m + (w - mean) and w = w - server_lr m. Some libraries take Nesterov's, or
(1 - beta)(w - mean). A steady change is made 1/(1 - beta) times as large: tune both together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedekd.methods import Exchange, Step, Train, register
from fedekd.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedekd.methods.base import Tree
    from fedekd.methods.uploads import Uploads


@register("fedavgm", family="optimisation", cite="Hsu et al., 2019")
@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg whose server keeps a momentum of the mean changes"""

    beta: float = field(default=0.9, metadata={"high": 1})
    server_lr: float = field(default=1.0, metadata={"open": True})

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.loss), Exchange("private", self.server, mean_only=True)

    def server(self, uploads: Uploads) -> tuple[Tree, Tree]:
        change, before = uploads.mean_change(), uploads.previous
        momentum = {name: self.beta * uploads.memory.get(name, 0) - change[name] for name in change}
        return {name: before[name] - self.server_lr * momentum[name] for name in change}, momentum
