"""FedMD (Li and Wang, NeurIPS workshop 2019): models of any architecture agree on the logits of public rows.

The first round is the paper's start: labelled public rows, then private ones. All public rows are used every round
where the paper draws 5000 anew, and the optimisers are fresh as everywhere here, where the official ones persist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedekd.methods import Batch, Exchange, Method, Step, Train, register

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Tree


@register("fedmd", family="distillation", cite="Li and Wang, NeurIPS workshop 2019")
@dataclass(frozen=True)
class FedMD(Method):
    """Digest the clients' mean logits on public rows, then train on private ones"""

    pretrain: int = 3  # epochs on labelled public rows at the start of the first round; 0 reads no public label
    digests: int = 1  # epochs on public rows in every later round

    @property
    def public(self) -> str:  # type: ignore[override]
        return "labels" if self.pretrain else "rows"

    def steps(self, round: int) -> tuple[Step, ...]:
        revisit = Train(("private",), self.supervised)
        if round == 0:
            return Train(("private",), self.supervised, split="public", epochs=self.pretrain), revisit
        return (
            Exchange("logits", send=self.logits, split="public", roles=("private",)),
            Train(("private",), self.digest, split="public", epochs=self.digests),
            revisit,
        )

    def supervised(self, batch: Batch) -> Tensor:
        return batch.supervised("private")

    def logits(self, batch: Batch) -> Tree:
        return {"logits": batch.outputs["private"]}

    def digest(self, batch: Batch) -> Tensor:
        """Mean absolute error, over classes too."""
        agreed = batch.lesson("private", batch.received["logits"]["logits"][batch.rows])
        away = (batch.outputs["private"] - agreed).abs()
        return batch.mean(away if away.dim() == 1 else away.mean(-1))
