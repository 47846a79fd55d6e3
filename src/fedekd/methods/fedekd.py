"""FedeKD, Algorithm 1: distil the proxy, average the proxies, teach the private model back through the gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedekd import gate
from fedekd.errors import FedekdError, unknown
from fedekd.methods import Batch, ClientInit, Exchange, Method, Step, Train, register

if TYPE_CHECKING:
    from torch import Tensor

ENERGIES = {"classification": ("kl", "entropy", "margin", "lse", "feature"), "regression": ("squared",)}
GATES = ("energy", "constant", "permuted")


@register(
    "fedekd", family="paper", cite="the FedeKD paper, Algorithm 1",
    ungated={"gate": "constant", "weight": 1.0}, half={"gate": "constant", "weight": 0.5},
    permuted={"gate": "permuted"},
    entropy={"energy": "entropy"}, margin={"energy": "margin"}, lse={"energy": "lse"}, feature={"energy": "feature"},
)  # fmt: skip
@dataclass(frozen=True)
class FedeKD(Method):
    """Energy-gated distillation between a private model and an averaged proxy"""

    beta: float = field(default=1.0, metadata={"open": True})  # sharpness of the gate
    lambda_kd: float = 1.0  # weight of the distillation term
    # kl, entropy, margin, lse or feature; squared for regression
    energy: str = field(default="auto", metadata={"variants": "energies"})
    gate: str = field(default="energy", metadata={"variants": "controls"})  # or the controls: constant, permuted
    weight: float = 1.0  # of the constant gate
    warmup: int = 0  # rounds in which the private model first trains alone, then teaches the proxy

    roles = ("private", "proxy")
    uniforms = 1

    def steps(self, round: int) -> tuple[Step, ...]:
        distil_proxy = Train(("proxy",), self.forward, frozen=("private",))
        if round < self.warmup:
            return Train(("private",), self.alone), distil_proxy, Exchange("proxy")
        return distil_proxy, Exchange("proxy"), Train(("private",), self.backward, frozen=("proxy",))

    def forward(self, batch: Batch) -> Tensor:
        return batch.mean(batch.distilled("proxy", teacher="private"))

    def backward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        trust = self.trust(batch)
        distillation = gate.gated_distillation(batch.distilled("private", teacher="proxy"), trust, batch.mask)
        return batch.supervised("private") + self.lambda_kd * distillation, {"trust": trust}

    def alone(self, batch: Batch) -> Tensor:
        return batch.supervised("private")

    def trust(self, batch: Batch) -> Tensor:
        energy = self.energies(batch)
        if self.gate == "constant":
            return gate.constant(energy, self.weight, batch.mask)
        weights = gate.trust(energy, self.beta, batch.mask)
        if self.gate == "permuted":
            return gate.permute(weights, batch.uniform[..., 0], batch.mask)
        return weights

    def energies(self, batch: Batch) -> Tensor:
        private, proxy = batch.outputs["private"].detach(), batch.outputs["proxy"].detach()
        match batch.task.energy if self.energy == "auto" else self.energy:
            case "kl":
                return gate.energy_kl(private, proxy)
            case "squared":
                return gate.energy_squared(private, proxy)
            case "entropy":
                return gate.energy_entropy(proxy)
            case "margin":
                return gate.energy_margin(proxy)
            case "lse":
                return gate.energy_lse(proxy)
            case _:
                h_private, h_proxy = batch.features["private"], batch.features["proxy"]
                return gate.energy_feature(h_private, h_proxy, batch.memory["projection"])

    def examine(self, batch: Batch) -> dict[str, Tensor]:
        return {"energy": self.energies(batch), "trust": self.trust(batch)}

    @property
    def needs_features(self) -> bool:
        return self.energy == "feature"

    @property
    def drawn(self) -> int:
        """None where the gate is one of these here; what a class that extends this one reads is its own affair."""
        own = (type(self).original or type(self)) is FedeKD and self.uniforms == FedeKD.uniforms
        return 0 if own and self.gate != "permuted" else self.uniforms

    def begin(self, client: ClientInit) -> dict[str, Any]:
        if not self.needs_features:
            return {}
        widths = client.features["private"], client.features["proxy"]
        return {"projection": gate.projection(*widths, seed=client.seed)}

    def check(self, task: str) -> None:
        super().check(task)
        if self.gate not in GATES:
            raise unknown("gate", self.gate, GATES)
        every = [name for names in ENERGIES.values() for name in names]
        if self.energy not in (*every, "auto"):
            raise unknown("energy", self.energy, [*every, "auto"])
        if self.energy not in (*ENERGIES[task], "auto"):
            raise FedekdError(f"energy {self.energy!r} is not defined for {task}; use {', '.join(ENERGIES[task])}")
