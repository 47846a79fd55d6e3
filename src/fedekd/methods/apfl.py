"""APFL (Deng et al., 2020): a personal model v learns in mixture with the local copy y of the averaged one.

The weights are mixed, m = alpha v + (1 - alpha) y, as in the paper; its official code mixes outputs, which is the same
for linear models only. The gradient for v is taken at m. The adaptive form moves alpha once a round, after y has
arrived, by the mean gradient over one pass of the client's rows where the official code takes one batch, and has no
decay of alpha. Buffers of the mixture, such as running statistics, are those of v.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from fedekd.methods import Batch, ClientInit, Copy, Exchange, Method, Remember, Step, Train, register
from fedekd.trees import inner

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Tree


@register("apfl", family="personalised", cite="Deng et al., 2020", adaptive={"adaptive": True})
@dataclass(frozen=True)
class APFL(Method):
    """A mixture of a personal and a locally trained global model, of which the global one is averaged"""

    alpha: float = field(default=0.5, metadata={"high": 1})  # the personal model's share
    adaptive: bool = False  # each client's own alpha, which begins there and follows its gradient

    roles = ("private", "personal", "global")  # the private model is the mixture
    like: ClassVar[Mapping[str, str]] = {"personal": "private", "global": "private"}
    reads_weights = ("personal", "global")

    def begin(self, client: ClientInit) -> dict[str, Any]:
        import torch

        return {"alpha": torch.tensor(self.alpha)} if self.adaptive else {}

    def steps(self, round: int) -> tuple[Step, ...]:
        mix = Copy("personal", "private"), Copy(self.mixture, "private")
        adapt = *mix, Train(("private",), self.at_mixture, epochs=1, lr=0.0, gradients=True), Remember(self.adapted)
        train = Train(("global", "personal"), self.loss)
        return (*(adapt if self.adaptive else ()), train, *mix, Exchange("global"))

    def loss(self, batch: Batch) -> Tensor:
        output = batch.apply("personal", self.mixture(batch))
        return batch.supervised("global") + batch.mean(batch.task.loss(output, batch.y))

    def mixture(self, batch: Batch) -> Tree:
        alpha = batch.memory["alpha"] if self.adaptive else self.alpha
        v, y = batch.weights["personal"], batch.weights["global"]
        return {name: alpha * v[name] + (1 - alpha) * y[name].detach() for name in v}

    def at_mixture(self, batch: Batch) -> Tensor:
        return batch.supervised("private")

    def adapted(self, batch: Batch) -> dict[str, Any]:
        v, y = batch.weights["personal"], batch.weights["global"]
        slope = inner({name: v[name] - y[name] for name in v}, batch.gradients["private"])
        return {"alpha": (batch.memory["alpha"] - batch.lr * slope).clamp(0, 1)}
