"""FedRep (Collins et al., ICML 2021): many epochs for the client's own head, then a few for the shared body.

The official code zeroes gradients, so that momentum and decay still move what should rest; here the resting part is not
in the optimiser at all, and each of the two steps has a fresh one. Before a client answers, its head is fitted once
more to the averaged body, as in the paper's last round. A body's running statistics do move in the head's epochs.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedekd.methods import Exchange, Step, Train, register
from fedekd.methods.fedavg import FedAvg
from fedekd.parts import AllBut, Head

HEAD = Head()
BODY = AllBut(HEAD)


@register("fedrep", family="personalised", cite="Collins et al., ICML 2021")
@dataclass(frozen=True)
class FedRep(FedAvg):
    """A shared body under each client's own head, trained in turn"""

    head_epochs: int = 10  # for each round; the body has the run's local epochs

    def steps(self, round: int) -> tuple[Step, ...]:
        return self.fit_head, Train(("private",), self.loss, part=BODY), Exchange("private", part=BODY)

    def personalise(self) -> tuple[Train, ...]:
        return (self.fit_head,)

    @property
    def fit_head(self) -> Train:
        return Train(("private",), self.loss, part=HEAD, epochs=self.head_epochs)
