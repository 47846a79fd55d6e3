"""MOON (Li et al., CVPR 2021): features are drawn to the global model's and away from the client's previous model's.

Features are what enters the last linear layer. The paper puts a projection of two layers there, which changes FedAvg's
accuracy too: bring it in your own private model if you want it. In the first round the previous model is the global one
and the term is a constant, where the official code leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from fedekd.methods import Batch, Copy, Exchange, Method, Step, Train, register

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST = 1e-12  # of a squared norm: what is shorter keeps less than length 1


@register("moon", family="optimisation", cite="Li et al., CVPR 2021")
@dataclass(frozen=True)
class Moon(Method):
    """FedAvg with a contrastive loss between the global and the previous local features"""

    mu: float = 1.0
    temperature: float = field(default=0.5, metadata={"open": True})
    roles = ("private", "global", "previous")
    like: ClassVar[Mapping[str, str]] = {"global": "private", "previous": "private"}
    needs_features = True

    def steps(self, round: int) -> tuple[Step, ...]:
        return (
            Copy("private", "global"),
            Train(("private",), self.loss, frozen=("global", "previous")),
            Copy("private", "previous"),
            Exchange("private"),
        )

    def loss(self, batch: Batch) -> Tensor:
        return batch.supervised("private") + self.mu * batch.mean(self.contrastive(batch))

    def contrastive(self, batch: Batch) -> Tensor:
        """-log(e^(near/t) / (e^(near/t) + e^(far/t))) of each sample, near and far cosines to global and previous.

        far - near is one inner product, and exactly 0 where both models are one.
        """
        from torch.nn.functional import softplus

        own, near, far = (direction(batch.features[role]) for role in self.roles)
        return softplus((own * (far - near)).sum(-1) / self.temperature)


def direction(rows: Tensor) -> Tensor:
    """Each row at length 1; finite, as is its gradient, where a row is zero."""
    flat = rows.flatten(1)
    return flat * flat.square().sum(-1, keepdim=True).clamp(min=SMALLEST).rsqrt()
