"""FedGH (Yi et al., ACM MM 2023): the server trains one shared header on the clients' class means.

In the official code the server's step belongs to an optimiser that does not hold the header, so that every round resets
all clients to the first one; `fedgh-reset` is that control, and `fedgh` does what the paper means. As in that code a
client begins with the received header, trains all of its model and is evaluated after it, so that the exchange opens
every round but the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedekd import prototypes
from fedekd.errors import FedekdError
from fedekd.methods import Batch, Exchange, Method, Step, Train, register
from fedekd.parts import Head

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Tree
    from fedekd.methods.uploads import Uploads


@register("fedgh", family="distillation", cite="Yi et al., ACM MM 2023", reset={"rate": 0.0})
@dataclass(frozen=True)
class FedGH(Method):
    """One header for all, trained by the server on class means of features; bodies stay at the clients"""

    rate: float = 0.01  # of the server's steps; 0 gives every client the first header again and again
    passes: int = field(default=1, metadata={"low": 1})  # of the server over all class means

    tasks = ("classification",)
    needs_features = True

    def steps(self, round: int) -> tuple[Step, ...]:
        train = Train(("private",), self.loss)
        if round == 0:
            return (train,)
        header = Exchange(
            "prototypes",
            self.header,
            send=self.means,
            split="train",
            roles=("private",),
            into="private",
            part=Head(),
        )
        return header, train

    def loss(self, batch: Batch) -> Tensor:
        return batch.supervised("private")

    def means(self, batch: Batch) -> Tree:
        return prototypes.class_means(batch)

    def header(self, uploads: Uploads) -> tuple[Tree, Any]:
        """For each client and each of its classes c with mean h: W <- W - rate (p - e_c) h^T."""
        prototypes.one_width(uploads, self.name)
        header = dict(uploads.previous)
        weight, *bias = sorted(header, key=lambda name: -header[name].dim())
        classes, width = uploads.each[0]["means"].shape
        if header[weight].shape != (classes, width):
            raise FedekdError(f"{self.name} needs a model whose last layer is linear on features, [{classes}, {width}]")
        for _ in range(self.passes):
            for upload in uploads.each:
                for c, h in enumerate(upload["means"]):
                    logits = header[weight] @ h + sum(header[name] for name in bias)
                    error = logits.softmax(-1)
                    error[c] -= 1
                    step = self.rate * upload["exist"][c] * error
                    header[weight] = header[weight] - step[:, None] * h
                    header |= {name: header[name] - step for name in bias}
        return header, {}
