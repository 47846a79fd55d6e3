"""Second opinion, taught back: a model of the private architecture that answers alone with what the mixture knows.

What the averaged features know cannot be taught with a client's own rows, which its private model knows by heart. On
mixtures of two rows, which no model has seen and of which there is no end, the opinions still differ: there a pupil as
large as the private model learns, round after round, what they say together. It answers with the running mean of its
weights over the rounds. In the first ``after`` rounds it is not taught yet, but a copy of the private model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedekd.methods import Batch, ClientInit, Copy, Remember, Step, Train, register
from fedekd.methods.second_opinion import ALL, EXPERTS, SecondOpinion

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Tree


@register("second-opinion-taught", family="distillation", cite="this project")
@dataclass(frozen=True)
class SecondOpinionTaught(SecondOpinion):
    """Second opinion, taught to a model of the private architecture that then predicts alone"""

    passes: int = field(default=30, metadata={"low": 1})  # of the pupil over the rows in a round, mixed anew each time
    keep: float = field(default=0.8, metadata={"high": 1})  # how much of the running mean stays in each round
    after: int = field(default=0, metadata={"newer": True})  # rounds before the pupil is taught

    roles: ClassVar[tuple[str, ...]] = (*EXPERTS, "pupil")
    like: ClassVar[Mapping[str, str]] = {"pupil": "private"}
    reads_weights: ClassVar[tuple[str, ...]] = ("pupil",)
    answers: ClassVar[tuple[str, ...]] = ("pupil",)

    def begin(self, client: ClientInit) -> dict[str, Any]:
        return {"mean": dict(client.weights["pupil"])}

    def steps(self, round: int) -> tuple[Step, ...]:
        if round < self.after:
            return *super().steps(round), Copy("private", "pupil"), Remember(self.first)
        teach = Train(("pupil",), self.learn_from_all, frozen=EXPERTS, epochs=self.passes, mixed=True)
        mean = Remember(self.average if round > self.after else self.first)
        return *super().steps(round), *super().personalise(), teach, mean

    def learn_from_all(self, batch: Batch) -> Tensor:
        import torch

        fitted_to_all = torch.full_like(batch.rows, ALL)
        here = replace(batch, counts=batch.memory["counts"])
        return batch.mean(batch.distilled("pupil", self.pooled(batch.memory, fitted_to_all, self.opinions(here))))

    def weigh(self, batch: Batch) -> dict[str, Any]:
        """With the class counts that the opinions had, which are not the true ones where noise protects them."""
        return {**super().weigh(batch), "counts": batch.counts}

    def first(self, batch: Batch) -> dict[str, Any]:
        return {"mean": dict(batch.weights["pupil"])}

    def average(self, batch: Batch) -> dict[str, Any]:
        now, before = batch.weights["pupil"], batch.memory["mean"]
        return {"mean": {name: self.keep * before[name] + (1 - self.keep) * w for name, w in now.items()}}

    def personalise(self) -> tuple[Copy, ...]:
        return (Copy(self.mean, "pupil"),)

    def mean(self, batch: Batch) -> Tree:
        return batch.memory["mean"]

    def predict(self, batch: Batch) -> Tensor:
        return batch.outputs["pupil"]
