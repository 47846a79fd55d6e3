"""Per-FedAvg, first order (Fallah et al., NeurIPS 2020): an average from which one gradient step makes a good model.

A batch is cut in two: rows at even places make the step of rate alpha, rows at odd places the gradient after it; a
single row does both. The paper's step of rate beta is plain SGD, whatever optimiser other methods are given.
A client answers after one step of rate alpha with the gradient over all of its training rows. Some codes adapt on
labelled test rows instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedekd import gate
from fedekd.methods import Batch, Copy, Exchange, Method, Step, Train, register

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Tree


@register("perfedavg", family="personalised", cite="Fallah et al., NeurIPS 2020")
@dataclass(frozen=True)
class PerFedAvg(Method):
    """Meta-learning: average what is good after one local gradient step"""

    alpha: float = 0.01
    beta: float = field(default=0.001, metadata={"open": True})
    reads_weights = ("private",)

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.loss, optimizer="sgd", lr=self.beta), Exchange("private")

    def loss(self, batch: Batch) -> Tensor:
        """Its gradient at y is that of the second half at u = y - alpha * (gradient of the first half at y)."""
        first, second = halves(batch)
        y = batch.weights["private"]
        g = batch.gradient("private", y, lambda out: gate.masked_mean(batch.task.loss(out, batch.y), first))
        u = {name: w - self.alpha * g[name] for name, w in y.items()}
        return gate.masked_mean(batch.task.loss(batch.apply("private", u), batch.y), second)

    def personalise(self) -> tuple[Train | Copy, ...]:
        """No step is taken while the gradient is gathered, so that it is the whole split's at one point."""
        gathered = Train(("private",), self.share, optimizer="sgd", lr=0.0, epochs=1, gradients=True)
        return gathered, Copy(self.adapted, "private")

    def share(self, batch: Batch) -> Tensor:
        """The mean of this over an epoch is the loss over all rows, though the last batch may be smaller."""
        return batch.supervised("private") * batch.real.sum() * batch.steps / batch.counts.sum()

    def adapted(self, client: Batch) -> Tree:
        w, g = client.weights["private"], client.gradients["private"]
        return {name: w[name] - self.alpha * g[name] for name in w}


def halves(batch: Batch) -> tuple[Tensor, Tensor]:
    """Real rows at even and at odd places; a single one is in both."""
    rows = batch.real
    place = rows.long().cumsum(-1) - 1
    odd = place % 2 == 1
    return rows & ~odd, rows & (odd | (rows.sum(-1) < 2))
