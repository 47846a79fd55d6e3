"""FedType (Wang et al., 2024): conformal sets of the proxy guide the private model, which teaches the proxy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedekd import conformal
from fedekd.methods import Batch, Exchange, Method, Remember, Step, Train, register
from fedekd.trees import squared_distance

if TYPE_CHECKING:
    from torch import Tensor


@register("fedtype", family="paper", cite="Wang et al., ICML 2024", nograd={"gradient": False})
@dataclass(frozen=True)
class FedType(Method):
    """Uncertainty-based asymmetrical reciprocity: conformal sets of private and proxy, proxies averaged"""

    level: float = field(default=0.9, metadata={"high": 1})  # coverage of the sets
    lam_private: float = 1.0  # size penalty of the private model's sets
    lam_proxy: float = 0.5
    # False: the ranking loss on detached proxy logits, which leaves plain local training
    gradient: bool = field(default=True, metadata={"variants": "controls"})

    tasks = ("classification",)
    roles = ("private", "proxy")
    uniforms = 2

    def steps(self, round: int) -> tuple[Step, ...]:
        return (
            Remember(self.calibrated, split="val", roles=("private", "proxy")),
            Train(("private",), self.private_loss, frozen=("proxy",)),
            Train(("proxy",), self.proxy_loss, frozen=("private",)),
            Exchange("proxy"),
        )

    def calibrated(self, batch: Batch) -> dict[str, Any]:
        return {role: self._calibration(batch, role)._asdict() for role in self.roles}

    def private_loss(self, batch: Batch) -> Tensor:
        private_set = self._sets(batch, "private")
        proxy_set = batch.lesson("private", self._sets(batch, "proxy").float()) > 0
        agreement = batch.mean(conformal.set_agreement(private_set, proxy_set))
        logits = batch.outputs["private"] if self.gradient else batch.outputs["proxy"].detach()
        ranking = batch.mean(conformal.ranking_loss(logits, proxy_set))
        return batch.supervised("private") + agreement * ranking

    def proxy_loss(self, batch: Batch) -> Tensor:
        return batch.supervised("proxy") + batch.mean(batch.distilled("proxy", teacher="private"))

    def _calibration(self, batch: Batch, role: str) -> conformal.Calibration:
        uniform, k_reg, lam = self._raps(batch, role)
        return conformal.calibrate(batch.outputs[role], batch.y, uniform, k_reg, lam, level=self.level, mask=batch.mask)

    def _sets(self, batch: Batch, role: str) -> Tensor:
        uniform, k_reg, lam = self._raps(batch, role)
        calibration = conformal.Calibration(**batch.memory[role])
        return conformal.predict_sets(batch.outputs[role].detach(), uniform, calibration, k_reg, lam)

    def _raps(self, batch: Batch, role: str) -> tuple[Tensor, int, float]:
        lam = self.lam_private if role == "private" else self.lam_proxy
        k_reg = conformal.regularisation_rank(batch.outputs[role].shape[-1])
        return batch.uniform[..., self.roles.index(role)], k_reg, lam


@register("fedtype-prox", family="paper", cite="Wang et al., ICML 2024")
@dataclass(frozen=True)
class FedTypeProx(FedType):
    """FedType on FedProx: the proximal term on the proxy's loss"""

    mu: float = 0.01
    reads_weights = ("proxy",)

    def proxy_loss(self, batch: Batch) -> Tensor:
        distance = squared_distance(batch.weights["proxy"], batch.received["proxy"])
        return super().proxy_loss(batch) + self.mu / 2 * distance
