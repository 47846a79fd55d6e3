"""pFedHR (Wang et al., NeurIPS 2023): the server reassembles the clients' layers into a teacher for each of them.

Layers are stitched by linear maps over channels, with the maps resized in between, and ReLU after every layer; the
official code flattens everything, which is often far larger. The client distils with the paper's KL, where the official
code takes cross-entropy against raw logits, and candidates share no tensors. Uploaded models are compared as they are,
not tuned on public rows first. Running statistics of norm layers do not travel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedekd import reassembly, rng
from fedekd.methods import Batch, Exchange, Method, Step, Train, register

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedekd.methods.base import Tree
    from fedekd.methods.uploads import Uploads


@register("pfedhr", family="distillation", cite="Wang et al., NeurIPS 2023")
@dataclass(frozen=True)
class PFedHR(Method):
    """Learn from the network, reassembled from all clients' layers, whose predictions are most like one's own"""

    alpha: float = 0.1  # weight of the distillation
    candidates: int = field(default=4, metadata={"low": 1})
    clusters: int = field(default=2, metadata={"low": 1})
    turns: int = 10  # of K-means
    tune_epochs: int = 3  # epochs of a candidate on labelled public rows
    tune_batch: int = field(default=8, metadata={"low": 1})  # rows of a batch there
    tune_rate: float = field(default=1e-3, metadata={"open": True})  # of Adam there
    probe: int = field(default=256, metadata={"low": 2})  # public rows by which layers are compared, at most

    tasks = ("classification",)
    reads_weights = ("private",)
    public = "labels"
    stacks = False

    def steps(self, round: int) -> tuple[Step, ...]:
        if round == 0:
            return (Train(("private",), self.alone),)
        teach = Exchange("private", self.reassemble, send=self.model, each=True)
        return teach, Train(("private",), self.loss)

    def model(self, client: Batch) -> Tree:
        return client.weights["private"]

    def alone(self, batch: Batch) -> Tensor:
        return batch.supervised("private")

    def loss(self, batch: Batch) -> Tensor:
        if "private" not in batch.received:  # a site that came late to this round has no teacher yet
            return self.alone(batch)
        assert batch.x is not None
        teacher = reassembly.outputs(batch.received["private"], batch.x)
        return batch.supervised("private") + self.alpha * batch.mean(batch.distilled("private", teacher))

    def reassemble(self, uploads: Uploads) -> tuple[list[Tree], Any]:
        assert uploads.public is not None
        x, y = uploads.public
        key = uploads.seed, "reassembly", uploads.round
        draw, generator = rng.stream(*key), reassembly.generator(rng.integer(*key))
        networks = [self.network(uploads, place) for place in range(len(uploads.numbers))]
        own = [reassembly.outputs(network, x) for network in networks]
        found = [layer for network in networks for layer in reassembly.layers(network, x[: self.probe])]
        groups = reassembly.grouped(found, self.clusters, self.turns, draw)
        teachers = []
        for _ in range(self.candidates):
            untrained = reassembly.assembled(reassembly.chosen(groups, draw), x.shape[1:], own[0].shape[-1], generator)
            teachers.append(
                reassembly.tuned(untrained, x, y, self.tune_epochs, self.tune_batch, self.tune_rate, generator)
            )
        answers = [reassembly.outputs(teacher, x) for teacher in teachers]
        scores = [[float(reassembly.agreement(mine, theirs)) for theirs in answers] for mine in own]
        return [teachers[max(range(len(teachers)), key=score.__getitem__)] for score in scores], {}

    def network(self, uploads: Uploads, place: int) -> nn.Module:
        """An uploaded model, as its client built it."""
        assert uploads.module is not None
        module = uploads.module("private", uploads.numbers[place])
        module.load_state_dict(dict(uploads.each[place]), strict=False)
        return module.eval()
