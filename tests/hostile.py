"""Methods that go to the edges of the step language, one thing each, for the proof that all engines keep one contract.

``Probe`` reads one thing in one kind of step, and what it reads moves a number; the others each do one thing. All can
be named as ``hostile:Class``, as a deployment names its methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedekd.methods import Batch, ClientInit, Copy, Exchange, Method, Remember, Step, Train, Uploads
from fedekd.parts import AllBut, Head

# --- one thing that is read, in one kind of step -------------------------------------------------------------


def tree_mean(tree: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([w.mean() for w in tree.values()]).mean()


def per_row(values: Tensor) -> Tensor:
    """Outputs or features as one number for each row."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)


READS: dict[str, Callable[[Batch], Tensor]] = {
    "outputs": lambda b: b.mean(per_row(b.outputs["private"])),
    "outputs of another": lambda b: b.mean(per_row(b.outputs["proxy"])),
    "features": lambda b: b.mean(per_row(b.features["private"])),
    "features of another": lambda b: b.mean(per_row(b.features["proxy"])),
    "weights": lambda b: tree_mean(b.weights["private"]),
    "weights of a role at home": lambda b: tree_mean(b.weights["home"]),
    "weights of another": lambda b: tree_mean(b.weights["proxy"]),
    "received": lambda b: tree_mean(b.received["private"]),
    "received of a role at home": lambda b: tree_mean(b.received["home"]),
    "received of another": lambda b: tree_mean(b.received["proxy"]),
    "received by name": lambda b: b.received["early"]["sum"],
    "memory": lambda b: b.memory["begun"].mean() + b.memory["number"] + b.memory["noted"],
    "memory that is not there": lambda b: b.memory["nothing"],
    "memory with a default": lambda b: b.memory.get("later", b.steps * 0.0 + 0.25),
    "gradients": lambda b: 30 * tree_mean(b.gradients["private"]),
    "gradients of another": lambda b: 30 * tree_mean(b.gradients["home"]),
    "uniform": lambda b: b.mean(b.uniform[:, 0] - b.uniform[:, 1]),
    "rows": lambda b: b.mean(b.rows.float() / 20),
    "number of rows": lambda b: (b.rows >= 0).sum() / 64 if b.mask is None else b.mask.sum() / 64,
    "counts": lambda b: (b.counts.float() * torch.arange(1, len(b.counts) + 1)).sum() / 100,
    "lr": lambda b: torch.as_tensor(100 * b.lr),
    "steps": lambda b: b.steps / 10,
    "x": lambda b: b.steps * 0.0 + 0.25 if b.x is None else b.mean(per_row(b.x)),
    "y": lambda b: b.mean(b.y.float() / 3),
    "apply": lambda b: b.mean(per_row(b.apply("private", b.received["private"]))),
    "apply to another": lambda b: b.mean(per_row(b.apply("home", b.weights["home"]))),
    "gradient": lambda b: (
        10 * tree_mean(b.gradient("private", b.received["private"], lambda o: b.mean(b.task.loss(o, b.y))))
    ),
    "teachers": lambda b: b.steps * 0.0 + 0.25 if b.teachers is None else b.mean(per_row(b.teachers.mean(0))),
}

PLACES = (
    "train",
    "remember",
    "remember a split",
    "copy",
    "send",
    "send a split",
    "refine",
    "personal train",
    "personal remember",
    "predict",
)


@dataclass(frozen=True)
class Probe(Method):
    """Reads one thing in one kind of step"""

    what: str = "outputs"
    where: str = "train"
    named: bool = False  # whether its steps name the second role
    wide: bool = False  # whether it asks for features
    summed: bool = False  # whether its training leaves gradients

    name = "probe"
    roles = ("private", "proxy", "home")
    like: ClassVar[Mapping[str, str]] = {"home": "private"}
    reads_weights = ("private", "home")
    uniforms = 2

    @property
    def needs_features(self) -> bool:
        return self.wide

    @property
    def answers(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.some

    @property
    def some(self) -> tuple[str, ...]:
        return ("private", "proxy") if self.named else ("private",)

    @property
    def aside(self) -> tuple[str, ...]:
        return ("proxy",) if self.named else ()

    def begin(self, client: ClientInit) -> dict[str, Any]:
        return {"begun": client.targets[:2].float() / 3, "number": 0.125, "noted": torch.zeros(())}

    def steps(self, round: int) -> tuple[Step, ...]:
        before = (
            Exchange("early", send=self.early),
            Train(("proxy",), self.other, epochs=1),
            Train(("home",), self.home, epochs=1),
            Train(("private",), self.plain, gradients=self.summed),
            Remember(lambda batch: {"noted": batch.steps / 7}),
        )
        return *before, *self.hostile(), Exchange("private"), Exchange("proxy")

    def hostile(self) -> tuple[Step, ...]:
        made: dict[str, Step] = {
            "train": Train(("private",), self.loss, frozen=self.aside),
            "remember": Remember(self.note),
            "remember a split": Remember(self.note, split="val", roles=self.some),
            "copy": Copy(self.copied, "private"),
            "send": Exchange("seen", send=self.send),
            "send a split": Exchange("seen", send=self.send, split="train", roles=self.some),
            "refine": Exchange("private", refine=Train(("private",), self.loss, split="public", frozen=self.aside)),
        }
        return (made[self.where],) if self.where in made else ()

    def personalise(self) -> tuple[Train | Remember | Copy, ...]:
        if self.where == "personal train":
            return (Train(("private",), self.loss, frozen=self.aside, epochs=1),)
        if self.where == "personal remember":
            return (Remember(self.note, split="train", roles=self.some),)
        return ()

    def read(self, batch: Batch) -> Tensor:
        return torch.tanh(READS[self.what](batch))

    def early(self, batch: Batch) -> dict[str, Tensor]:
        return {"sum": batch.counts.sum() / 50}

    def plain(self, batch: Batch) -> Tensor:
        return batch.supervised("private")

    def other(self, batch: Batch) -> Tensor:
        return batch.supervised("proxy")

    def home(self, batch: Batch) -> Tensor:
        return batch.supervised("home")

    def loss(self, batch: Batch) -> Tensor:
        return batch.supervised("private") + self.read(batch) * batch.mean(per_row(batch.outputs["private"]).square())

    def note(self, batch: Batch) -> dict[str, Any]:
        return {"seen": self.read(batch)}

    def copied(self, batch: Batch) -> dict[str, Tensor]:
        return {name: w * (1 + 0.1 * self.read(batch)) for name, w in batch.weights["private"].items()}

    def send(self, batch: Batch) -> dict[str, Tensor]:
        return {"seen": self.read(batch)}

    def predict(self, batch: Batch) -> Tensor:
        output = batch.outputs["private"]
        if self.where == "predict":
            return output * (1 + self.read(batch))
        if self.where == "personal remember":
            return output * (1 + batch.memory["seen"])
        return output


# --- one thing that is done ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Toy(Method):
    """FedAvg that does one more thing"""

    name = "toy"
    reads_weights = ("private",)

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.loss), Exchange("private")

    def loss(self, batch: Batch) -> Tensor:
        return batch.supervised("private")


@dataclass(frozen=True)
class Branch(Toy):
    """An `if` on a parameter, in one kind of step"""

    bend: float = 0.1
    where: str = "train"

    name = "branch"
    answers = ("private",)

    def steps(self, round: int) -> tuple[Step, ...]:
        made: dict[str, Step] = {
            "train": Train(("private",), self.bent),
            "remember": Remember(self.note),
            "remember a split": Remember(self.note, split="train", roles=("private",)),
            "copy": Copy(self.copied, "private"),
            "send": Exchange("seen", send=self.sent),
            "send a split": Exchange("seen", send=self.sent, split="val", roles=("private",)),
            "combine": Exchange("private", self.combine),
            "refine": Exchange("private", refine=Train(("private",), self.bent, split="public")),
        }
        return Train(("private",), self.loss), *([made[self.where]] if self.where in made else []), Exchange("private")

    def personalise(self) -> tuple[Train | Remember | Copy, ...]:
        if self.where == "personal train":
            return Remember(lambda b: {"mine": b.steps * 1.0}), Train(("private",), self.bent)
        return (Remember(self.note, split="train"),) if self.where == "personal remember" else ()

    def factor(self) -> float:
        return 0.5 if self.bend > 0.5 else 2 * self.bend

    def bent(self, batch: Batch) -> Tensor:
        return batch.supervised("private") * (1 + self.factor()) + 0 * batch.memory.get("seen", 0)

    def note(self, batch: Batch) -> dict[str, Any]:
        return {"seen": self.factor() + 0 * batch.mean(batch.y.float())}

    def copied(self, batch: Batch) -> dict[str, Tensor]:
        return {name: w * (1 - 0.1 * self.factor()) for name, w in batch.weights["private"].items()}

    def sent(self, batch: Batch) -> dict[str, Tensor]:
        return {"seen": self.factor() * batch.counts.float()}

    def combine(self, uploads: Uploads) -> tuple[Any, Any]:
        return {n: w * (1 - 0.1 * self.factor()) for n, w in uploads.mean().items()}, {}

    def predict(self, batch: Batch) -> Tensor:
        return batch.outputs["private"] * (self.factor() if self.where == "predict" else 1)


@dataclass(frozen=True)
class Settings(Toy):
    """Training steps with settings of their own, and a role that is trained twice, also before it answers"""

    split: str = "val"
    optimizer: str = "momentum"

    def steps(self, round: int) -> tuple[Step, ...]:
        return (
            Train(("private",), self.loss, gradients=True),
            Train(("private",), self.loss, split=self.split, epochs=3, lr=2e-3, optimizer=self.optimizer),
            Train(("private",), self.loss, epochs=0),
            Train(("private",), self.loss, part=Head(), optimizer="sgd", lr=0.05),
            Exchange("private"),
        )

    def personalise(self) -> tuple[Train | Remember | Copy, ...]:
        return Train(("private",), self.loss, epochs=1), Train(("private",), self.loss, epochs=1)


@dataclass(frozen=True)
class Gradients(Toy):
    """Gradients of two roles, of a part, and of a part after the whole"""

    roles = ("private", "home")
    reads_weights = ("private", "home")
    like: ClassVar[Mapping[str, str]] = {"home": "private"}

    def steps(self, round: int) -> tuple[Step, ...]:
        part = Head() if round % 2 else None
        return (
            Train(("private",), self.loss, gradients=True, part=part, optimizer="sgd"),
            Train(("home",), lambda b: b.supervised("home"), gradients=True, part=AllBut(Head())),
            Remember(self.note),
            Exchange("private"),
        )

    def note(self, batch: Batch) -> dict[str, Any]:
        """Copies of what is read, not clones."""
        return {"private": batch.gradients["private"], "home": batch.gradients["home"]}

    def predict(self, batch: Batch) -> Tensor:
        return batch.outputs["private"] * (1 + tree_mean(batch.memory["home"]))


@dataclass(frozen=True)
class Heads(Method):
    """A head on another's features: trained alone, beside its body, and read without it"""

    with_body: bool = False

    name = "heads"
    roles = ("private", "personal")
    heads: ClassVar[Mapping[str, str]] = {"personal": "private"}
    answers = ("personal",)

    def steps(self, round: int) -> tuple[Step, ...]:
        return (
            Train(("private",), lambda b: b.supervised("private")),
            Train(("personal",), self.loss, frozen=("private",) if self.with_body else ()),
            Remember(self.note, split="val", roles=("personal",)),
            Exchange("private", part=AllBut(Head())),
        )

    def loss(self, batch: Batch) -> Tensor:
        extra = batch.mean(per_row(batch.outputs["private"])) if self.with_body else 0
        return batch.supervised("personal") * (1 + extra)

    def note(self, batch: Batch) -> dict[str, Any]:
        return {
            "seen": batch.mean(per_row(batch.outputs["personal"])) + batch.mean(per_row(batch.features["personal"]))
        }

    def predict(self, batch: Batch) -> Tensor:
        return batch.outputs["personal"] * (1 + batch.memory.get("seen", 0))


@dataclass(frozen=True)
class BodyUnnamed(Heads):
    """Reads the outputs of a head's body, which its step does not name"""

    def loss(self, batch: Batch) -> Tensor:
        return batch.supervised("personal") + batch.supervised("private")


@dataclass(frozen=True)
class BodyUnnamedAnswer(Heads):
    """Reads the outputs of a head's body in `predict`, which does not name it"""

    def predict(self, batch: Batch) -> Tensor:
        return batch.outputs["personal"] + batch.outputs["private"]


@dataclass(frozen=True)
class OtherAnswer(Toy):
    """Names no answer of its private model, and leaves `predict` as it is"""

    roles = ("private", "proxy")
    answers = ("proxy",)


@dataclass(frozen=True)
class Copies(Method):
    """Copies of roles and of parts"""

    name = "copies"
    roles = ("private", "home", "proxy")
    like: ClassVar[Mapping[str, str]] = {"home": "private"}
    reads_weights = ("private", "home")

    def steps(self, round: int) -> tuple[Step, ...]:
        return (
            Copy("private", "home"),
            Train(("private", "home"), lambda b: b.supervised("private") + 0.5 * b.supervised("home")),
            Copy("home", "private", part=Head()),
            Copy(self.middle, "home", part=AllBut(Head())),
            Exchange("private", part=AllBut(Head())),
        )

    def middle(self, batch: Batch) -> dict[str, Tensor]:
        a, b = batch.weights["private"], batch.weights["home"]
        return {name: (a[name] + b[name]) / 2 for name in a}


@dataclass(frozen=True)
class CopyAcross(Toy):
    """A copy between models that are not alike"""

    roles = ("private", "proxy")

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.loss), Copy("proxy", "private")


@dataclass(frozen=True)
class CopyWide(Toy):
    """A copy of tensors that would have to be broadcast"""

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.loss), Copy(
            lambda b: {n: w.mean() for n, w in b.weights["private"].items()}, "private"
        )


@dataclass(frozen=True)
class AnswerWide(Toy):
    """An answer of another shape than the model it goes into"""

    def steps(self, round: int) -> tuple[Step, ...]:
        combine = lambda u: ({n: w.mean() for n, w in u.mean().items()}, {})  # noqa: E731
        return Train(("private",), self.loss), Exchange("private", combine)


@dataclass(frozen=True)
class AnswerUnknown(Toy):
    """An answer with a name that the model does not have"""

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.loss), Exchange("private", lambda u: ({**u.mean(), "extra": u.weights}, {}))


@dataclass(frozen=True)
class NoPair(Toy):
    """A combine without memory"""

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.loss), Exchange("private", lambda u: u.mean())  # type: ignore[arg-type]


@dataclass(frozen=True)
class VectorLoss(Toy):
    """A loss of each sample"""

    def loss(self, batch: Batch) -> Tensor:
        return batch.task.loss(batch.outputs["private"], batch.y)


@dataclass(frozen=True)
class NothingToTrain(Toy):
    """Trains a part that has no weights"""

    def steps(self, round: int) -> tuple[Step, ...]:
        return (Train(("private",), self.loss, part=Head(0)),)


@dataclass(frozen=True)
class ExchangeInside(Toy):
    """An exchange before it answers"""

    def personalise(self) -> tuple[Any, ...]:
        return (Exchange("private"),)


@dataclass(frozen=True)
class Into(Method):
    """One role's model goes into another's, beside something made, in two exchanges in a row"""

    name = "into"
    roles = ("private", "home")
    like: ClassVar[Mapping[str, str]] = {"home": "private"}
    reads_weights = ("home",)

    def steps(self, round: int) -> tuple[Step, ...]:
        return (
            Train(("private",), self.loss, frozen=("home",)),
            Exchange("private", self.model, into="home"),
            Exchange("table", self.table, send=self.sent, split="train", roles=("private",)),
        )

    def loss(self, batch: Batch) -> Tensor:
        pull = tree_mean(batch.received["private"]) if "private" in batch.received else 0
        known = batch.received["table"]["rows"].mean() if "table" in batch.received else 0
        return batch.supervised("private") + batch.mean(batch.distilled("private", "home")) * (
            1 + 0.1 * pull + 0.1 * known
        )

    def sent(self, batch: Batch) -> dict[str, Tensor]:
        return {"rows": batch.mean(per_row(batch.outputs["private"])) + torch.zeros(3, 2), "whole": batch.counts}

    def model(self, uploads: Uploads) -> tuple[Any, Any]:
        seen = uploads.memory.get("seen", 0) + len(uploads.numbers)
        return {n: (w + uploads.previous[n]) / 2 for n, w in uploads.mean().items()}, {"seen": seen}

    def table(self, uploads: Uploads) -> tuple[Any, Any]:
        before = uploads.previous.get("rows", 0)
        return {"rows": before + uploads.mean()["rows"]}, {"last": uploads.stacked["whole"]}


@dataclass(frozen=True)
class Each(Toy):
    """An answer for each client, as rows or as a list, into the model or not: another's model"""

    listed: bool = False
    made: bool = False

    name = "each"

    def steps(self, round: int) -> tuple[Step, ...]:
        send = self.sent if self.made else None
        name = "table" if self.made else "private"
        return (
            Train(("private",), self.loss),
            Exchange(name, self.turned, send=send, each=True),
        )

    def loss(self, batch: Batch) -> Tensor:
        known = batch.received["table"]["counts"].mean() if "table" in batch.received else 0
        return batch.supervised("private") * (1 + 0.01 * known)

    def sent(self, batch: Batch) -> dict[str, Tensor]:
        return {"counts": batch.counts.float()}

    def turned(self, uploads: Uploads) -> tuple[Any, Any]:
        if self.listed:
            return [*uploads.each[1:], uploads.each[0]], {}
        return {n: t.roll(-1, 0) for n, t in uploads.stacked.items()}, {}


@dataclass(frozen=True)
class Aliases(Toy):
    """Keeps what it is given without copying it: weights, uploads and the answer"""

    name = "aliases"

    def steps(self, round: int) -> tuple[Step, ...]:
        return (
            Remember(lambda b: {"before": b.weights["private"]}),
            Train(("private",), self.loss),
            Exchange("private", self.first),
            Train(("private",), self.loss, epochs=1),
        )

    def loss(self, batch: Batch) -> Tensor:
        apart = [(w - batch.memory["before"][n]).square().sum() for n, w in batch.weights["private"].items()]
        return batch.supervised("private") + 0.1 * torch.stack(apart).sum()

    def first(self, uploads: Uploads) -> tuple[Any, Any]:
        last, memory = uploads.each[-1], uploads.memory
        old = memory.get("last", last)
        old = {name: old[name] for name in last}
        moved = {n: (w + old[n] + uploads.previous[n]) / 3 for n, w in uploads.each[0].items()}
        return (uploads.each[0] if uploads.round == 0 else moved), {"last": last}


@dataclass(frozen=True)
class Told(Toy):
    """A server that uses all it is told"""

    public = "rows"

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.loss), Exchange("private", self.combine)

    def combine(self, u: Uploads) -> tuple[Any, Any]:
        x, y = u.public  # type: ignore[misc]
        model = u.module("private", 1)  # type: ignore[misc]
        with torch.no_grad():
            given = model(x).mean() + 0.1 * y.float().mean()
        told = given + u.weights[0] + sum(u.numbers) / u.clients + 0.1 * u.round + 0.01 * u.seed
        return {n: w + 0.01 * told for n, w in u.mean().items()}, {}


@dataclass(frozen=True)
class Seldom(Toy):
    """For clients that are often absent: memory, per-row memory, received, gradients and the server's memory"""

    name = "seldom"

    def begin(self, client: ClientInit) -> dict[str, Any]:
        return {"rounds": torch.zeros(()), "shown": torch.zeros(())}

    def steps(self, round: int) -> tuple[Step, ...]:
        return (
            Train(("private",), self.loss, gradients=True),
            Remember(self.count),
            Remember(self.table, split="train", roles=("private",)),
            Exchange("private", self.combine),
            Exchange(
                "sums", self.sums, send=lambda b: {"rounds": b.memory["rounds"], "g": tree_mean(b.gradients["private"])}
            ),
        )

    def loss(self, batch: Batch) -> Tensor:
        known = batch.received["sums"]["rounds"] if "sums" in batch.received else 0
        table = batch.mean(batch.memory["table"][batch.rows]) if "table" in batch.memory else 0
        return batch.supervised("private") * (1 + 0.1 * known + 0.01 * batch.memory["rounds"] + 0.01 * table)

    def count(self, batch: Batch) -> dict[str, Any]:
        return {"rounds": batch.memory["rounds"] + 1}

    def table(self, batch: Batch) -> dict[str, Any]:
        return {"table": per_row(batch.outputs["private"])}

    def combine(self, uploads: Uploads) -> tuple[Any, Any]:
        step = {n: w - uploads.previous[n] for n, w in uploads.mean().items()}
        speed = {n: 0.5 * uploads.memory.get("speed", step)[n] + d for n, d in step.items()}
        return {n: uploads.previous[n] + v for n, v in speed.items()}, {"speed": speed, "pair": (1, 2)}

    def sent(self, batch: Batch) -> dict[str, Tensor]:
        return {"rounds": batch.memory["rounds"], "slope": tree_mean(batch.gradients["private"])}

    def sums(self, uploads: Uploads) -> tuple[Any, Any]:
        return uploads.mean(), uploads.memory

    def predict(self, batch: Batch) -> Tensor:
        slope = tree_mean(batch.gradients["private"]) if "private" in batch.gradients else 0
        return batch.outputs["private"] * (1 + 0.1 * batch.memory["rounds"] + slope)


@dataclass(frozen=True)
class NeverNoted(Toy):
    """Answers from what only a round gives, which a client that was never there does not have"""

    def steps(self, round: int) -> tuple[Step, ...]:
        return Remember(lambda b: {"late": b.counts.sum() * 1.0}), Train(("private",), self.loss), Exchange("private")

    def predict(self, batch: Batch) -> Tensor:
        return batch.outputs["private"] * batch.memory["late"]


@dataclass(frozen=True)
class Changing(Toy):
    """An answer whose names change, and memory whose shape does"""

    name = "changing"

    def steps(self, round: int) -> tuple[Step, ...]:
        return (
            Train(("private",), self.loss),
            Remember(lambda b: {"grown": torch.zeros(round + 1) + b.steps, "kept": {f"k{round}": b.steps * 1.0}}),
            Exchange("table", lambda u: ({f"n{round}": u.mean()["t"]}, {}), send=lambda b: {"t": b.counts.float()}),
            Exchange("private"),
        )


@dataclass(frozen=True)
class Trusting(Toy):
    """Logs trust, in two steps and before it answers"""

    name = "trusting"

    def steps(self, round: int) -> tuple[Step, ...]:
        return Train(("private",), self.logged), Train(("private",), self.logged, epochs=1), Exchange("private")

    def logged(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        chance = torch.sigmoid(per_row(batch.outputs["private"]))
        return batch.supervised("private"), {"trust": chance}

    def personalise(self) -> tuple[Train | Remember | Copy, ...]:
        return (Train(("private",), self.logged),)


@dataclass(frozen=True)
class Refined(Toy):
    """A server that trains the mean towards its teachers, with an optimiser of its own, and then again"""

    name = "refined"
    public = "rows"

    def steps(self, round: int) -> tuple[Step, ...]:
        refine = Train(("private",), self.towards, split="public", epochs=2, optimizer="momentum", lr=1e-2)
        return (
            Remember(lambda b: {"own": b.counts.sum() * 1.0}),
            Train(("private",), self.loss, gradients=True),
            Exchange("private", refine=refine),
            Remember(lambda b: {"after": b.steps * 1.0}),
        )

    def towards(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        teacher = batch.teachers.mean(0)  # type: ignore[union-attr]
        apart = (batch.outputs["private"] - teacher).square()
        return batch.mean(per_row(apart)), {"trust": torch.sigmoid(per_row(apart))}
