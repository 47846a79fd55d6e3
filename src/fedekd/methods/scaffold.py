"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates take the drift out of every local gradient.

The client's control is the mean gradient of its training, c_k - c + mean(g - c_k + c). Under plain SGD that is the
paper's option II, c_k - c + (w - y)/(steps * lr), exactly. Under Adam or momentum (w - y) is no sum of gradients and
option II is wrong, while this still says what c_k stands for; the corrected gradient is what the optimiser gets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedekd.methods import Batch, ClientInit, Exchange, Method, Remember, Step, Train, register
from fedekd.trees import inner

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Tree
    from fedekd.methods.uploads import Uploads


@register("scaffold", family="optimisation", cite="Karimireddy et al., ICML 2020")
@dataclass(frozen=True)
class Scaffold(Method):
    """Local gradients corrected by control variates: f_k + <c - c_k, theta>"""

    server_lr: float = field(default=1.0, metadata={"open": True})
    reads_weights = ("private",)

    def begin(self, client: ClientInit) -> dict[str, Any]:
        return {"control": {name: 0 * w for name, w in client.weights["private"].items()}}

    def steps(self, round: int) -> tuple[Step, ...]:
        return (
            Train(("private",), self.loss, gradients=True),
            Remember(self.renewed),
            Exchange("private", self.model, mean_only=True),
            Exchange("control", self.control, send=self.difference, mean_only=True),
        )

    def loss(self, batch: Batch) -> Tensor:
        own, common = batch.memory["control"], _common(batch)
        correction = {name: common[name] - own[name] for name in own}
        return batch.supervised("private") + inner(correction, batch.weights["private"])

    def renewed(self, client: Batch) -> dict[str, Any]:
        own, change = client.memory["control"], self.difference(client)
        return {"control": {name: own[name] + change[name] for name in own}}

    def difference(self, client: Batch) -> Tree:
        """c_k+ - c_k."""
        gradient, common = client.gradients["private"], _common(client)
        return {name: gradient[name] - common[name] for name in gradient}

    def model(self, uploads: Uploads) -> tuple[Tree, Any]:
        """The paper counts every client alike, whatever weights the models' mean has elsewhere."""
        change = uploads.mean_change(equally=True)
        return {name: w + self.server_lr * change[name] for name, w in uploads.previous.items()}, {}

    def control(self, uploads: Uploads) -> tuple[Tree, Any]:
        """The sum over those who took part is divided by the number of all, so that c stays the mean of all c_k."""
        share = len(uploads.numbers) / uploads.clients
        change = uploads.mean(equally=True)
        return {name: uploads.previous.get(name, 0) + share * change[name] for name in change}, {}


def _common(batch: Batch) -> Tree:
    """The server's control, which is zero before its first answer."""
    return batch.received.get("control") or {name: 0 * own for name, own in batch.memory["control"].items()}
