"""FedDyn (Acar et al., 2021): a linear term that each client carries makes local and global optima agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedekd.methods import Batch, ClientInit, Exchange, Method, Remember, Step, Train, register
from fedekd.trees import inner, squared_distance

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Tree
    from fedekd.methods.uploads import Uploads


@register("feddyn", family="paper", cite="Acar et al., ICLR 2021")
@dataclass(frozen=True)
class FedDyn(Method):
    """Dynamic regularisation: f_k - <g_k, theta> + (a/2)||theta - received||^2"""

    a: float = field(default=0.01, metadata={"open": True})
    reads_weights = ("private",)

    def begin(self, client: ClientInit) -> dict[str, Any]:
        return {"gradient": {name: 0 * w for name, w in client.weights["private"].items()}}

    def steps(self, round: int) -> tuple[Step, ...]:
        return (
            Train(("private",), self.loss),
            Remember(self.corrected),
            Exchange("private", self.server, mean_only=True),
        )

    def loss(self, batch: Batch) -> Tensor:
        theta, received = batch.weights["private"], batch.received["private"]
        linear = inner(batch.memory["gradient"], theta)
        return batch.supervised("private") - linear + self.a / 2 * squared_distance(theta, received)

    def corrected(self, client: Batch) -> dict[str, Any]:
        theta, received = client.weights["private"], client.received["private"]
        gradient = client.memory["gradient"]
        return {"gradient": {name: gradient[name] - self.a * (theta[name] - received[name]) for name in theta}}

    def server(self, uploads: Uploads) -> tuple[Tree, Tree]:
        mean, previous = uploads.mean(), uploads.previous
        h = {name: uploads.memory.get(name, 0) - self.a * (mean[name] - previous[name]) for name in mean}
        return {name: mean[name] - h[name] / self.a for name in mean}, h
