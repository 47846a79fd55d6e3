"""Second opinion, near: a client's head adds to the averaged proxy's own instead of being fitted from nothing.

The head of ``second-opinion`` knows the client's rows alone. Here it is the averaged proxy's last layer, which all
clients' rows have shaped, plus a change that the client's rows ask for and that is drawn to none: logistic regression,
or ridge regression. And validation rows weigh the three opinions from an equal start, not from the private model alone,
which is the better guess where they are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedekd import pooling
from fedekd.methods import Batch, register
from fedekd.methods.second_opinion import SecondOpinion

if TYPE_CHECKING:
    from torch import Tensor


@register("second-opinion-near", family="distillation", cite="this project")
@dataclass(frozen=True)
class SecondOpinionNear(SecondOpinion):
    """Second opinion whose head starts from the averaged proxy's, and whose three opinions start with equal weights"""

    strengths: ClassVar[tuple[float, ...]] = (0.01, 0.1, 1.0)  # of what draws a head to the averaged one
    drawn_to: ClassVar[tuple[float, ...]] = (1 / 3, 1 / 3, 1 / 3)

    def fitted(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What heads add to the averaged proxy's outputs."""
        fit = pooling.near_ridges if batch.task.name == "regression" else pooling.near_heads
        return fit(batch.features["proxy"].flatten(1), self.with_prior(batch), batch.y, batch.real, self.strengths)

    def heads_say(self, batch: Batch) -> Tensor:
        return self.with_prior(batch) + super().heads_say(batch)
