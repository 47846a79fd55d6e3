"""pFedMe (Dinh et al., NeurIPS 2020): every step moves the model towards a personal one fitted to the same batch.

The step w - lr * lam * (w - theta) is plain SGD on lam/2 ||w - theta||^2 with theta constant, whatever optimiser other
methods are given: under Adam neither lam nor lr would mean what the paper says. theta starts from w on every batch;
the official code goes on from the last batch's and adds a weight decay of .001 that the paper does not have.
The paper evaluates theta(w). Its code overwrites theta by w before the test; here theta is fitted from w to all of the
client's training rows, as often as a batch is used in training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedekd.methods import Batch, Exchange, Method, Step, Train, register
from fedekd.trees import squared_distance

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Tree
    from fedekd.methods.uploads import Uploads


@register("pfedme", family="personalised", cite="Dinh et al., NeurIPS 2020")
@dataclass(frozen=True)
class PFedMe(Method):
    """Personal models from Moreau envelopes: argmin f_k(theta) + (lam/2)||theta - w||^2"""

    lam: float = 15.0
    lr: float = field(default=0.005, metadata={"open": True})  # of w
    inner_lr: float = field(default=0.01, metadata={"open": True})  # of theta
    inner_steps: int = field(default=5, metadata={"low": 1})
    beta: float = field(default=1.0, metadata={"open": True})  # how far the server goes to the mean
    reads_weights = ("private",)

    def steps(self, round: int) -> tuple[Step, ...]:
        exchange = Exchange("private", self.server, mean_only=True)
        return Train(("private",), self.loss, optimizer="sgd", lr=self.lr), exchange

    def loss(self, batch: Batch) -> Tensor:
        return self.lam / 2 * squared_distance(batch.weights["private"], self.theta(batch))

    def theta(self, batch: Batch) -> Tree:
        """The personal model for this batch, as a constant."""
        w = {name: tensor.detach() for name, tensor in batch.weights["private"].items()}
        theta: Tree = w
        for _ in range(self.inner_steps):
            g = batch.gradient("private", theta, lambda out: batch.mean(batch.task.loss(out, batch.y)))
            theta = {n: theta[n] - self.inner_lr * (g[n] + self.lam * (theta[n] - w[n])) for n in w}
        return theta

    def server(self, uploads: Uploads) -> tuple[Tree, Any]:
        change = uploads.mean_change()
        return {name: w + self.beta * change[name] for name, w in uploads.previous.items()}, {}

    def personalise(self) -> tuple[Train, ...]:
        return (Train(("private",), self.personal, optimizer="sgd", lr=self.inner_lr, epochs=self.inner_steps),)

    def personal(self, batch: Batch) -> Tensor:
        distance = squared_distance(batch.weights["private"], batch.received["private"])
        return batch.supervised("private") + self.lam / 2 * distance
