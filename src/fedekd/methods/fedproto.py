"""FedProto (Tan et al., AAAI 2022): class means of features travel instead of weights, and features are drawn to them.

A global prototype is the plain mean over the clients that own the class, as in the official code. The class means are
those of the trained model over all training rows, where the official code gathers them while it trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedekd import prototypes
from fedekd.methods import Batch, Exchange, Method, Step, Train, register

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Tree
    from fedekd.methods.uploads import Uploads

FAR = 1e9  # finite, so that a softmax of the scores has no NaN


@register("fedproto", family="distillation", cite="Tan et al., AAAI 2022", nearest={"nearest": True})
@dataclass(frozen=True)
class FedProto(Method):
    """Features drawn to the global prototype of their class; the client's own head predicts"""

    lam: float = 1.0  # weight of the distance to the prototypes
    nearest: bool = False  # True: answer with the nearest prototype among the classes that the client has itself

    tasks = ("classification",)
    needs_features = True

    def steps(self, round: int) -> tuple[Step, ...]:
        return (
            Train(("private",), self.loss if round else self.alone),
            Exchange("prototypes", self.server, send=self.means, split="train", roles=("private",)),
        )

    def alone(self, batch: Batch) -> Tensor:
        return batch.supervised("private")

    def loss(self, batch: Batch) -> Tensor:
        """A row whose class has no prototype adds nothing, but counts in the mean."""
        received = batch.received["prototypes"]
        distance = (batch.features["private"] - received["means"][batch.y]).square().mean(-1)
        return batch.supervised("private") + self.lam * batch.mean(received["exist"][batch.y] * distance)

    def means(self, batch: Batch) -> Tree:
        return prototypes.class_means(batch)

    def server(self, uploads: Uploads) -> tuple[Tree, Any]:
        prototypes.one_width(uploads, self.name)
        means, exist = uploads.stacked["means"], uploads.stacked["exist"]
        owners = exist.sum(0)
        total = (means * exist[..., None]).sum(0)
        return {"means": total / owners.clamp(min=1)[:, None], "exist": owners > 0}, {}

    def predict(self, batch: Batch) -> Tensor:
        if not self.nearest or "prototypes" not in batch.received:
            return batch.outputs["private"]
        received, h = batch.received["prototypes"], batch.features["private"]
        distance = (h[:, None] - received["means"]).square().sum(-1)
        return (-distance).where(received["exist"] & (batch.counts > 0), -FAR)
