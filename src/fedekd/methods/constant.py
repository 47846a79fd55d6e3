"""The constant predictor: what a method must beat to have learnt anything from the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedekd.methods import Batch, ClientInit, Method, Step, register

if TYPE_CHECKING:
    from torch import Tensor


@register("constant", family="paper", also="controls")
@dataclass(frozen=True)
class Constant(Method):
    """The client's training mean for every sample"""

    tasks = ("regression",)
    roles = answers = ()

    def steps(self, round: int) -> tuple[Step, ...]:
        return ()

    def begin(self, client: ClientInit) -> dict[str, Any]:
        return {"mean": client.targets.mean()}

    def predict(self, batch: Batch) -> Tensor:
        return batch.memory["mean"].expand(batch.y.shape)
