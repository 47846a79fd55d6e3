"""FML (Shen et al., 2020): private and shared proxy teach each other on every batch, ungated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedekd.methods import Batch, Exchange, Method, Step, Train, register

if TYPE_CHECKING:
    from torch import Tensor


@register("fml", family="paper", cite="Shen et al., 2020")
@dataclass(frozen=True)
class FML(Method):
    """Federated mutual learning: half supervised, half from the other model; proxies averaged"""

    supervision: float = field(default=0.5, metadata={"high": 1})  # of the private model
    proxy_supervision: float = field(default=0.5, metadata={"high": 1})
    roles = ("private", "proxy")

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private", "proxy"), self.loss), Exchange("proxy")

    def loss(self, batch: Batch) -> Tensor:
        a, b = self.supervision, self.proxy_supervision
        private = a * batch.supervised("private") + (1 - a) * batch.mean(batch.distilled("private", "proxy"))
        proxy = b * batch.supervised("proxy") + (1 - b) * batch.mean(batch.distilled("proxy", "private"))
        return private + proxy
