"""Local training with smoothed targets: what a diffuse teacher gives, without anything being sent.

Distilling from a teacher that knows nothing is label smoothing (Yuan et al., CVPR 2020). With `weight` 0 this is Local.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedekd.methods import Batch, ClientInit, register
from fedekd.methods.local import Local

if TYPE_CHECKING:
    from torch import Tensor


@register(
    "local-smooth", family="alone", cite="Szegedy et al., CVPR 2016", tenth={"weight": 0.1}, quarter={"weight": 0.25}
)
@dataclass(frozen=True)
class LocalSmooth(Local):
    """Each client alone, its outputs drawn towards uniform, or towards its training mean"""

    weight: float = 0.5  # of the distance from the uniform distribution, or from the mean

    def begin(self, client: ClientInit) -> dict[str, Any]:
        return {"mean": client.targets.float().mean()}

    def loss(self, batch: Batch) -> Tensor:
        private = batch.outputs["private"]
        regression = batch.task.name == "regression"
        teacher = batch.memory["mean"].expand(private.shape) if regression else private.new_zeros(private.shape)
        drawn = batch.task.distil(student=private, teacher=teacher)
        return batch.supervised("private") + self.weight * batch.mean(drawn)
