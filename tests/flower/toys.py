"""Small methods, each with one thing that a method can say and fedekd's first ones did not."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from fedekd.methods import Copy, Exchange, Method, Remember, Train
from fedekd.parts import AllBut, Head
from fedekd.trees import squared_distance


class Toy(Method):
    def loss(self, batch):
        return batch.supervised("private")


class Body(Toy):
    """Sends all but the head, and trains the two apart"""

    def steps(self, round):
        head = Train(("private",), self.loss, part=Head(), epochs=1)
        body = Train(("private",), self.loss, part=AllBut(Head()))
        return head, body, Exchange("private", part=AllBut(Head()))


class Prototypes(Toy):
    """Sends class means of the features, and pulls the features of later rounds to those of all"""

    tasks = ("classification",)
    needs_features = True

    def steps(self, round):
        loss = self.pulled if round else self.loss
        return Train(("private",), loss), Exchange(
            "prototypes", self.mean, send=self.means, split="train", roles=("private",)
        )

    def pulled(self, batch):
        target = batch.received["prototypes"]["mean"][batch.y]
        return self.loss(batch) + 0.5 * batch.mean((batch.features["private"] - target).square().sum(-1))

    def means(self, batch):
        classes = nn.functional.one_hot(batch.y, len(batch.counts)).float()
        sums = classes.T @ batch.features["private"]
        return {"mean": sums / batch.counts.clamp(min=1).unsqueeze(1), "n": batch.counts}

    def mean(self, uploads):
        n = uploads.stacked["n"].float().unsqueeze(-1)
        new = (n * uploads.stacked["mean"]).sum(0) / n.sum(0).clamp(min=1)
        old = uploads.memory.get("mean", new)
        return {"mean": (new + old) / 2}, {"mean": new}


class Into(Toy):
    """Keeps the mean beside the private model, is held near it and takes over a part of it"""

    roles = ("private", "shared")
    like: ClassVar = {"shared": "private"}
    reads_weights = ("private", "shared")

    def steps(self, round):
        return (
            Train(("private",), self.near, frozen=("shared",)),
            Exchange("private", into="shared"),
            Copy("shared", "private", part=Head()),
        )

    def near(self, batch):
        near = squared_distance(batch.weights["private"], batch.received["private"])
        return self.loss(batch) + 0.1 * near + 0.1 * batch.mean(batch.distilled("private", "shared"))


class Each(Toy):
    """Gives every client its own mixture, as a tree with a row for each or as a list"""

    as_list = False

    def steps(self, round):
        return Train(("private",), self.loss), Exchange("private", self.mixed, each=True)

    def mixed(self, uploads):
        mean = uploads.mean()
        share = torch.tensor([1 / (2 + number) for number in uploads.numbers])
        pairs = [
            {n: s * t + (1 - s) * mean[n] for n, t in tree.items()} for s, tree in zip(share, uploads.each, strict=True)
        ]
        if self.as_list:
            return pairs, {}
        return {name: torch.stack([pair[name] for pair in pairs]) for name in mean}, {}


class EachAsList(Each):
    """The same as a list"""

    as_list = True


class Twice(Toy):
    """Two exchanges in a row; the second's answer steers the training"""

    reads_weights = ("private",)

    def begin(self, client):
        zero = {name: torch.zeros_like(w) for name, w in client.weights["private"].items()}
        return {"control": zero, "all": zero}

    def steps(self, round):
        return (
            Train(("private",), self.steered),
            Remember(self.drifted),
            Exchange("private"),
            Exchange("control", send=self.control),
            Remember(self.kept),
        )

    def steered(self, batch):
        own, every = batch.memory["control"], batch.memory["all"]
        drift = sum(((every[n] - own[n]) * w).sum() for n, w in batch.weights["private"].items())
        return self.loss(batch) + drift

    def drifted(self, batch):
        start, end = batch.received["private"], batch.weights["private"]
        return {"control": {n: 0.1 * (start[n] - end[n]) / (batch.steps * batch.lr) for n in start}}

    def control(self, batch):
        return batch.memory["control"]

    def kept(self, batch):
        return {"all": dict(batch.received["control"])}


class InARow(Toy):
    """The second is sent from the model that the first's answer went into: two visits"""

    roles = ("private", "shared")
    like: ClassVar = {"shared": "private"}

    def steps(self, round):
        return Train(("private",), self.loss), Exchange("private", into="shared"), Exchange("shared")


class Logits(Toy):
    """Sends outputs on public rows, and learns from the mean of all"""

    public = "rows"

    def steps(self, round):
        return (
            Train(("private",), self.loss),
            Exchange(
                "logits", send=lambda batch: {"out": batch.outputs["private"]}, split="public", roles=("private",)
            ),
            Train(("private",), self.learnt, split="public", epochs=1),
        )

    def learnt(self, batch):
        target = batch.received["logits"]["out"][batch.rows]
        return batch.mean((batch.outputs["private"] - target).square().reshape(len(batch.y), -1).sum(-1))


class Refined(Toy):
    """The mean is trained on public rows at the server, with the uploaded models as teachers"""

    public = "rows"

    def steps(self, round):
        refine = Train(("private",), self.taught, split="public", epochs=1)
        return Train(("private",), self.loss), Exchange("private", refine=refine)

    def taught(self, batch):
        distance = (batch.outputs["private"] - batch.teachers.mean(0)).square()
        return batch.mean(distance.reshape(len(batch.y), -1).sum(-1))


class Gradients(Toy):
    """Trains twice in a round and sends the mean gradient of the second time"""

    def steps(self, round):
        return (
            Train(("private",), self.loss),
            Train(("private",), self.loss, gradients=True, epochs=1),
            Remember(lambda batch: {"gradient": dict(batch.gradients["private"])}),
            Exchange("gradient", send=lambda batch: batch.memory["gradient"]),
        )


class Seldom(Toy):
    """Exchanges in every other round, and at its beginning"""

    def steps(self, round):
        train = Train(("private",), self.loss)
        return (train,) if round % 2 else (Exchange("private"), train)


class Once(Toy):
    """Averages the private models in the first round only, and a proxy in those after it"""

    roles = ("private", "proxy")

    def steps(self, round):
        train = Train(("private",), self.loss)
        if not round:
            return train, Exchange("private")
        return train, Train(("proxy",), lambda batch: batch.supervised("proxy")), Exchange("proxy")


class Personal(Toy):
    """Averages, and trains a head of its own before it answers"""

    def steps(self, round):
        return Train(("private",), self.loss), Exchange("private")

    def personalise(self):
        return (Train(("private",), self.loss, part=Head(), epochs=1),)


class OnTop(Toy):
    """A linear layer on the features of the private model, which alone is sent and answers with it"""

    roles = ("private", "head")
    heads: ClassVar = {"head": "private"}
    answers = ("private", "head")

    def steps(self, round):
        head = Train(("head",), lambda batch: batch.supervised("head"))
        return Train(("private",), self.loss), head, Exchange("head")

    def predict(self, batch):
        return (batch.outputs["private"] + batch.outputs["head"]) / 2


class Made(Toy):
    """Sends what a function makes, and loads the answer into the model"""

    reads_weights = ("private",)

    def steps(self, round):
        made = Exchange(
            "half", send=lambda batch: {n: 0.5 * w for n, w in batch.weights["private"].items()}, into="private"
        )
        return Train(("private",), self.loss), made


class Unpartial(Toy):
    """Combines every weight by itself, with what the server remembers"""

    reads_weights = ("private",)

    def steps(self, round):
        return Train(("private",), self.loss), Exchange("private", self.momentum)

    def momentum(self, uploads):
        mean, old = uploads.mean(), uploads.previous
        speed = {n: 0.5 * uploads.memory.get(n, 0) + mean[n] - old[n] for n in mean}
        return {n: old[n] + speed[n] for n in mean}, speed


# --- what is refused -----------------------------------------------------------------------------------------


class Rows(Toy):
    """Sends its rows"""

    def steps(self, round):
        return Train(("private",), self.loss), Exchange("targets", send=lambda batch: {"y": batch.y}, split="train")


class Hasty(Toy):
    """Makes the second from the first's answer, which comes in the same message"""

    reads_weights = ("private",)

    def steps(self, round):
        second = Exchange("second", send=lambda batch: dict(batch.received["private"]))
        return Train(("private",), self.loss), Exchange("private"), second


TOYS = (
    Body, Prototypes, Into, Each, EachAsList, Twice, InARow, Logits, Refined, Gradients, Seldom, Once, Personal, OnTop,
    Made, Unpartial,
)  # fmt: skip


# --- for differential privacy --------------------------------------------------------------------------------


class Counting(Toy):
    """A loss with the class counts in it"""

    tasks = ("classification",)

    def steps(self, round):
        return Train(("private",), self.weighted), Exchange("private")

    def weighted(self, batch):
        rare = 1 / batch.counts.clamp(min=1).float()
        return batch.mean(rare[batch.y] * batch.task.loss(batch.outputs["private"], batch.y))


class CountsSent(Toy):
    """Sends what a client has remembered of its counts"""

    reads_weights = ("private",)

    def steps(self, round):
        remember = Remember(lambda batch: {"n": batch.counts.float()})
        counts = Exchange("counts", send=lambda batch: {"n": batch.memory["n"], "now": batch.counts.float()})
        return Train(("private",), self.loss), remember, Exchange("private"), counts


class TargetsKept(Twice):
    """Begins with something that it takes from its targets"""

    def begin(self, client):
        return {**super().begin(client), "first": client.targets[:1]}


class PublicOutputs(Logits):
    """Sends what a model makes of public rows that has seen its own without noise"""


class SentAsWell(Toy):
    """Sends outputs of the model that is sent itself, which noise protects"""

    public = "rows"

    def steps(self, round):
        out = Exchange("out", send=lambda batch: {"out": batch.outputs["private"]}, split="public", roles=("private",))
        return Train(("private",), self.loss), out, Remember(lambda batch: {}), Exchange("private")


class CopyOut(Toy):
    """Copies the model that stays into the one that is sent"""

    roles = ("private", "proxy")
    like: ClassVar = {"proxy": "private"}

    def steps(self, round):
        return Train(("private",), self.loss), Copy("private", "proxy"), Exchange("proxy")


class CopyIn(Toy):
    """Sends the private model, and begins each round from a mean that stays untouched"""

    roles = ("private", "shared")
    like: ClassVar = {"shared": "private"}

    def steps(self, round):
        return Copy("shared", "private"), Train(("private",), self.loss), Exchange("private", into="shared")


class OnPublic(Toy):
    """A sent proxy that learns on public rows from the model that stays"""

    roles = ("private", "proxy")
    public = "rows"

    def steps(self, round):
        proxy = Train(
            ("proxy",), lambda batch: batch.mean(batch.distilled("proxy", "private")), ("private",), split="public"
        )
        return Train(("private",), self.loss), proxy, Exchange("proxy")


class PublicLabels(Toy):
    """A sent proxy that learns on public rows and on its own"""

    roles = ("private", "proxy")
    public = "labels"

    def steps(self, round):
        own = Train(("proxy",), lambda batch: batch.supervised("proxy"))
        return Train(("private",), self.loss), own, replace(own, split="public"), Exchange("proxy")


class Validated(Toy):
    """Trains what is sent on validation rows"""

    def steps(self, round):
        return Train(("private",), self.loss, split="val"), Exchange("private")


class Featured(Toy):
    """A loss with the features in it"""

    needs_features = True

    def steps(self, round):
        return Train(("private",), self.small), Exchange("private")

    def small(self, batch):
        return self.loss(batch) + 0.1 * batch.mean(batch.features["private"].square().sum(-1))


class Applied(Toy):
    """A loss that applies the model to the weights that were received"""

    reads_weights = ("private",)

    def steps(self, round):
        return Train(("private",), self.held), Exchange("private")

    def held(self, batch):
        before = batch.apply("private", batch.received["private"]).detach()
        distance = (batch.outputs["private"] - before - 1).square().reshape(len(batch.y), -1).sum(-1)
        return self.loss(batch) + 0.1 * batch.mean(distance)
