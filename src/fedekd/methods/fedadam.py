"""FedAdam and FedYogi (Reddi et al., ICLR 2021): the mean change of the clients is a gradient for an adaptive server.

As in the paper's algorithm there is no bias correction; both moments begin with 0, as in its experiments. The rate that
suits depends on how far clients move in a round: `tau` and `server_lr` are best taken near a typical change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedekd.errors import unknown
from fedekd.methods import Exchange, Step, Train, register
from fedekd.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Tree
    from fedekd.methods.uploads import Uploads

SECOND = ("adam", "yogi")


@register("fedadam", family="optimisation", cite="Reddi et al., ICLR 2021", yogi={"second": "yogi"})
@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg whose server takes an Adam or Yogi step along the mean change"""

    server_lr: float = field(default=0.01, metadata={"open": True})
    beta1: float = field(default=0.9, metadata={"high": 1})
    beta2: float = field(default=0.99, metadata={"high": 1})
    tau: float = field(default=1e-3, metadata={"open": True})
    second: str = "adam"  # how the second moment moves

    def check(self, task: str) -> None:
        super().check(task)
        if self.second not in SECOND:
            raise unknown(f"second moment of {self.name}", self.second, SECOND)

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.loss), Exchange("private", self.server, mean_only=True)

    def server(self, uploads: Uploads) -> tuple[Tree, dict[str, Any]]:
        change, old_m, old_v = uploads.mean_change(), uploads.memory.get("m", {}), uploads.memory.get("v", {})
        m = {name: self.beta1 * old_m.get(name, 0) + (1 - self.beta1) * d for name, d in change.items()}
        v = {name: self.moment(old_v.get(name, 0 * d), d.square()) for name, d in change.items()}
        step = {name: m[name] / (v[name].sqrt() + self.tau) for name in change}
        return {name: w + self.server_lr * step[name] for name, w in uploads.previous.items()}, {"m": m, "v": v}

    def moment(self, v: Tensor, square: Tensor) -> Tensor:
        if self.second == "yogi":
            return v - (1 - self.beta2) * square * (v - square).sign()
        return self.beta2 * v + (1 - self.beta2) * square
