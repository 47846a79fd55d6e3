"""Second opinion: what the averaged proxy knows is read out by a head of the client's own, not taught as labels.

Each round the private model learns from the labels, the proxy from the labels and from the private model, and the
proxies are averaged. The client's class counts are added to the proxy's logits while it trains, so that what travels is
free of each client's mix of classes (as in FedRoD). Before it answers, a client fits a linear head to the averaged
proxy's features in closed form and weighs three opinions on its validation rows: its private model, the averaged proxy
with its own class counts, and the head. Nothing but the proxy is ever sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedekd import pooling
from fedekd.methods import Batch, Copy, Exchange, Method, Remember, Step, Train, register

if TYPE_CHECKING:
    from torch import Tensor

EXPERTS = ("private", "proxy")
FOLDS = 4
FLOOR = -10.0  # of log-probabilities: no expert is so sure that it outvotes the others by itself
ALL = FOLDS  # the place of what was fitted to all validation rows, behind what was fitted without one fold of them


@register("second-opinion", family="distillation", cite="this project")
@dataclass(frozen=True)
class SecondOpinion(Method):
    """The private model, weighed against the averaged proxy and the client's own head on the proxy's features"""

    smooth: float = 0.5  # weight of the private model's label smoothing
    prior: float = 1.0  # how strongly the proxy's training corrects for the client's class counts
    caution: float = field(default=3.0, metadata={"open": True})  # validation rows that `drawn_to` counts for

    roles: ClassVar[tuple[str, ...]] = EXPERTS
    answers: ClassVar[tuple[str, ...]] = EXPERTS
    strengths: ClassVar[tuple[float, ...]] = (0.03, 0.1, 0.3, 0.6, 0.9)  # of the head's shrinkage; validation chooses
    drawn_to: ClassVar[tuple[float, ...]] = (1.0, 0.0, 0.0)  # weights of the opinions before any row is seen
    needs_features = True

    def steps(self, round: int) -> tuple[Step, ...]:
        learn_proxy = Train(("proxy",), self.learn_proxy, frozen=("private",))
        return Train(("private",), self.learn_private), learn_proxy, Exchange("proxy")

    def learn_private(self, batch: Batch) -> Tensor:
        private, loss = batch.outputs["private"], batch.supervised("private")
        if batch.task.name == "regression":
            return loss
        drawn = batch.task.distil(student=private, teacher=private.new_zeros(private.shape))
        return loss + self.smooth * batch.mean(drawn)

    def learn_proxy(self, batch: Batch) -> Tensor:
        here = replace(batch, outputs={**batch.outputs, "proxy": self.with_prior(batch)})
        return here.supervised("proxy") + here.mean(here.distilled("proxy", teacher="private"))

    def with_prior(self, batch: Batch) -> Tensor:
        """The proxy's outputs as this client should hear them."""
        proxy = batch.outputs["proxy"]
        return proxy if batch.task.name == "regression" else proxy + self.prior * (batch.counts + 1).log()

    # --- before it answers -------------------------------------------------------------------------------

    def personalise(self) -> tuple[Remember | Copy, ...]:
        return (
            Remember(self.fit_heads, split="train", roles=("proxy",)),
            Remember(self.weigh, split="val", roles=EXPERTS),
        )

    def fit_heads(self, batch: Batch) -> dict[str, Any]:
        """One head for each strength."""
        weight, bias = self.fitted(batch)
        return {"weight": weight, "bias": bias}

    def fitted(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Weights [strengths, classes, features] and biases [strengths, classes]."""
        features, classes = batch.features["proxy"].flatten(1), batch.outputs["proxy"].shape[-1]
        if batch.task.name == "regression":
            return pooling.ridge_heads(features, batch.y, batch.real, self.strengths)
        return pooling.lda_heads(features, batch.y, batch.real, classes, self.strengths)

    def opinions(self, batch: Batch) -> Tensor:
        """[strengths, 3, B, ...]: of the private model, of the averaged proxy, and of the head of each strength."""
        import torch

        models = batch.outputs["private"], self.with_prior(batch)
        every = torch.stack([torch.stack([*models, head]) for head in self.heads_say(batch)])
        return every if batch.task.name == "regression" else torch.log_softmax(every, -1).clamp(min=FLOOR)

    def heads_say(self, batch: Batch) -> Tensor:
        """[strengths, B, ...]"""
        import torch

        heads = torch.einsum("bd,scd->sbc", batch.features["proxy"].flatten(1), batch.memory["weight"])
        heads = heads + batch.memory["bias"].unsqueeze(1)
        return heads.squeeze(-1) if batch.task.name == "regression" else heads

    def weigh(self, batch: Batch) -> dict[str, Any]:
        """The strength and the weights that fit the validation rows best, all of them and without each fold of groups.

        Where rows that were left out say that the private model alone is clearly better, it answers alone.
        """
        import torch

        fold, every = batch.groups % FOLDS, self.opinions(batch)
        rows = torch.stack([batch.real & (fold != left_out) for left_out in range(FOLDS + 1)]).to(every.dtype)
        fits, costs = pooling.weigh(every, batch.y, rows, self.caution, self.drawn_to)
        chosen = costs.argmin(-1)
        weights = fits[torch.arange(FOLDS + 1, device=chosen.device), chosen]
        alone = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)[0].expand(weights.shape)
        ours, own = (self.pooled({"chosen": chosen, "weights": w}, fold, every) for w in (weights, alone))
        harm = batch.task.loss(ours, batch.y) - batch.task.loss(own, batch.y)
        harmed = pooling.clearly_positive(harm, batch.real, batch.groups)
        return {"chosen": chosen, "weights": torch.where(harmed, alone, weights)}

    def pooled(self, known: Any, place: Tensor, every: Tensor) -> Tensor:
        """Row by row, the opinions with the weights that lie at its place."""
        import torch

        rows = torch.arange(place.shape[0], device=place.device)  # len() would fix the number in an exported graph
        mine = every[known["chosen"][place], :, rows]  # [B, 3, ...]
        return torch.einsum("be...,be->b...", mine, known["weights"][place])

    def predict(self, batch: Batch) -> Tensor:
        """A validation row is answered by what was fitted without its group."""
        import torch

        place = batch.groups % FOLDS if batch.split == "val" else torch.full_like(batch.rows, ALL)
        return self.pooled(batch.memory, place, self.opinions(batch))
