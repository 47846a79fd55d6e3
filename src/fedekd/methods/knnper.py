"""kNN-Per (Marfoq et al., ICML 2022): FedAvg's answer mixed with that of the client's own nearest training rows.

Neighbours are weighted by exp(-||h - h_i||^2 / (D scale)), D the width of the features. The official code mixes their
shares with raw logits out of the box; here both are probabilities, as in the paper. It has one weight for all clients
where the paper chooses one for each, and a regression takes the neighbours' mean target, which is our extension.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedekd.methods import Batch, Remember, register
from fedekd.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from torch import Tensor


@register("knnper", family="personalised", cite="Marfoq et al., ICML 2022")
@dataclass(frozen=True)
class KNNPer(FedAvg):
    """FedAvg whose predictions are mixed with those of the client's nearest training rows"""

    k: int = field(default=10, metadata={"low": 1})  # neighbours, or all rows where there are fewer
    lam: float = field(default=0.5, metadata={"high": 1})  # weight of the neighbours
    scale: float = field(default=1.0, metadata={"open": True})  # of the kernel

    keeps_rows = True
    needs_features = True

    def personalise(self) -> tuple[Remember, ...]:
        return (Remember(self.store, split="train", roles=("private",)),)

    def store(self, batch: Batch) -> dict[str, Any]:
        real = batch.real
        features, targets = batch.features["private"].flatten(1), batch.y  # padding is somebody's row: not to be kept
        return {"features": features * real.unsqueeze(-1), "targets": targets * real, "real": real}

    def predict(self, batch: Batch) -> Tensor:
        import torch

        output = batch.outputs["private"]
        targets, weights = self.neighbours(batch)
        if batch.task.name == "regression":
            return (1 - self.lam) * output + self.lam * (weights * targets).sum(-1)
        classes = torch.arange(output.shape[-1], device=output.device)
        near = (weights.unsqueeze(-1) * (targets.unsqueeze(-1) == classes)).sum(-2)
        return mixed(output, near, torch.as_tensor(self.lam, device=output.device))

    def neighbours(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Targets and weights of the nearest stored rows, [B, k] each."""
        import torch

        here, stored = batch.features["private"].flatten(1), batch.memory["features"]
        distance = torch.cdist(here, stored, compute_mode="donot_use_mm_for_euclid_dist").square()
        distance = torch.where(batch.memory["real"], distance, torch.inf)
        nearest, which = distance.topk(min(self.k, stored.shape[0]), largest=False)
        weights = torch.softmax(-nearest / (stored.shape[-1] * self.scale), -1)
        return batch.memory["targets"][which], weights


def mixed(logits: Tensor, near: Tensor, lam: Tensor) -> Tensor:
    """Logits of (1 - lam) softmax(logits) + lam near; at lam = 0 they are the given ones to the bit."""
    import torch

    gain = near.log() + lam.log() - torch.log_softmax(logits, -1)
    return logits + torch.logaddexp(torch.log1p(-lam), gain)
