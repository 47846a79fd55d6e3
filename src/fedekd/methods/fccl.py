"""FCCL (Huang et al., CVPR 2022): public logits are correlated across clients, class by class; older selves teach.

Mean logits are exchanged once a round, as in the paper's algorithm, and Adam lives for the whole step on public rows;
the official code does both anew for every public batch. The mean is over all clients, oneself included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from fedekd.methods import Batch, ClientInit, Copy, Exchange, Method, Remember, Step, Train, register

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Tree

TINY = 1e-6  # a spread below this part of the largest logit is rounding


@register("fccl", family="distillation", cite="Huang et al., CVPR 2022")
@dataclass(frozen=True)
class FCCL(Method):
    """Cross-correlation with the mean logits on public rows, then distillation from one's own older models"""

    off: float = 0.0051  # weight of the correlations between classes
    lam: float = 1.0  # weight of the pre-trained and of the previous model
    epochs: int = 1  # over the public rows, every round
    rate: float = field(default=1e-3, metadata={"open": True})  # of Adam on public rows

    tasks = ("classification",)
    roles = ("private", "pretrained", "previous")
    like: ClassVar[Mapping[str, str]] = {"pretrained": "private", "previous": "private"}
    public = "rows"

    def begin(self, client: ClientInit) -> dict[str, Any]:
        """Whether the older models teach: those of a client that was absent at first are not trained yet."""
        return {name: client.targets.new_zeros(()) for name in ("pretrained", "previous")}

    def steps(self, round: int) -> tuple[Step, ...]:
        if round == 0:
            return (
                Train(("private",), self.alone),
                Copy("private", "pretrained"),
                Remember(self.both_teach),
            )
        return (
            Copy("private", "previous"),
            Exchange("logits", send=self.logits, split="public", roles=("private",)),
            Train(("private",), self.correlate, split="public", epochs=self.epochs, lr=self.rate, optimizer="adam"),
            Train(("private",), self.loss, frozen=("pretrained", "previous")),
            Remember(self.previous_teaches),
        )

    def both_teach(self, client: Batch) -> dict[str, Any]:
        return {name: old.new_ones(()) for name, old in client.memory.items()}

    def previous_teaches(self, client: Batch) -> dict[str, Any]:
        return {"previous": client.memory["previous"].new_ones(())}

    def alone(self, batch: Batch) -> Tensor:
        return batch.supervised("private")

    def logits(self, batch: Batch) -> Tree:
        return {"logits": batch.outputs["private"]}

    def correlate(self, batch: Batch) -> Tensor:
        """sum_u (1 - c_uu)^2 + off sum_{u != v} (1 + c_uv)^2 of the correlations c of own and mean logits."""
        own, real = batch.outputs["private"], batch.real
        mean = batch.lesson("private", batch.received["logits"]["logits"][batch.rows])
        a, b = standardised(own, real), standardised(mean, real)
        c = a.T @ b / real.sum().clamp(min=1)
        between = (1 + c).square().sum() - (1 + c.diagonal()).square().sum()
        return (1 - c.diagonal()).square().sum() + self.off * between

    def loss(self, batch: Batch) -> Tensor:
        taught = [
            batch.memory[teacher] * batch.mean(batch.distilled("private", teacher))
            for teacher in ("pretrained", "previous")
        ]
        return batch.supervised("private") + self.lam * sum(taught)


def standardised(z: Tensor, real: Tensor) -> Tensor:
    """Each class column less its mean, over its unbiased deviation; 0 where it has no spread, and in padding."""
    real, count = real[:, None], real.sum()
    z = z.where(real, 0.0)
    centred = (z - z.sum(0) / count.clamp(min=1)).where(real, 0.0)
    variance = centred.square().sum(0) / (count - 1).clamp(min=1)
    spread = variance > (TINY * z.abs().amax(0)).square()
    return (centred / variance.where(spread, 1.0).sqrt()).where(spread, 0.0)
