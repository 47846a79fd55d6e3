"""FedDF (Lin et al., NeurIPS 2020): the average model learns from the ensemble of those that it was made of.

One architecture for all clients. The teachers' logits are averaged uniformly, as the paper's own runs do. The paper
stops the fusion by labelled validation rows at the server; here the number of epochs is fixed. The rate is constant,
where the official one falls along a cosine, and gradients are not clipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedekd.methods import Batch, Exchange, Step, Train, register
from fedekd.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from torch import Tensor


@register("feddf", family="distillation", cite="Lin et al., NeurIPS 2020")
@dataclass(frozen=True)
class FedDF(FedAvg):
    """FedAvg whose average is distilled, on unlabelled public rows, from the clients' mean logits"""

    epochs: int = 10  # over the public rows
    rate: float = field(default=1e-3, metadata={"open": True})  # of the server's Adam

    public = "rows"

    def steps(self, round: int) -> tuple[Step, ...]:
        fusion = Train(("private",), self.fuse, split="public", epochs=self.epochs, lr=self.rate, optimizer="adam")
        return Train(("private",), self.loss), Exchange("private", refine=fusion)

    def fuse(self, batch: Batch) -> Tensor:
        """KL(ensemble || student); squared error for a regression."""
        assert batch.teachers is not None
        return batch.mean(batch.distilled("private", batch.teachers.mean(0)))
