"""FedRoD (Chen and Chao, ICLR 2022): a generic model trained as if classes were balanced, and a personal head.

The authors have published no code. The personal head is the linear one, begins at zero, and adds to the generic logits;
its loss reaches neither the body nor the generic head. The hypernetwork form is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedekd.methods import Batch, Exchange, Method, Step, Train, register

if TYPE_CHECKING:
    from torch import Tensor

ABSENT = -1e30
"""Stands for log 0: its exponential is 0 as well, but 0 times it is no NaN."""


@register("fedrod", family="personalised", cite="Chen and Chao, ICLR 2022")
@dataclass(frozen=True)
class FedRoD(Method):
    """Balanced softmax for the averaged model, and a personal head that adds to its logits"""

    gamma: float = 1.0  # how strongly the loss corrects for the client's class counts

    tasks = ("classification",)
    roles = answers = ("private", "personal")
    heads: ClassVar[Mapping[str, str]] = {"personal": "private"}

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private", "personal"), self.loss), Exchange("private")

    def loss(self, batch: Batch) -> Tensor:
        generic = batch.outputs["private"] + self.gamma * log_counts(batch.counts)
        personal = batch.outputs["private"].detach() + batch.outputs["personal"]
        return batch.mean(batch.task.loss(generic, batch.y) + batch.task.loss(personal, batch.y))

    def predict(self, batch: Batch) -> Tensor:
        return batch.outputs["private"] + batch.outputs["personal"]


def log_counts(counts: Tensor) -> Tensor:
    return counts.clamp(min=1).log().where(counts > 0, ABSENT)
