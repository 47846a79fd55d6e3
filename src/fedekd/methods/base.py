"""What a method is: a frozen dataclass of hyper-parameters whose ``steps`` read as its paper's algorithm.

A round is a sequence of three kinds of step: ``Train`` a role's model with a loss, let each client ``Remember``
something, and ``Exchange`` a role's model with the server. A method knows losses and what is exchanged; it knows
nothing of devices, seeds, files or how many clients run at once. Its functions must be pure, so that an engine may
call them client by client or map them over a stack of clients (``torch.func.vmap``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from fedekd import gate
from fedekd.errors import FedekdError

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.tasks import Task

    Tree = Mapping[str, Tensor]  # a model's trainable weights by name
    Loss = Tensor | tuple[Tensor, dict[str, Tensor]]


@dataclass(frozen=True)
class Batch:
    """One client's view of one batch: model outputs, targets, weights and what the client remembers."""

    task: Task
    y: Tensor
    outputs: Mapping[str, Tensor]  # by role: logits [B, C] or predictions [B]
    features: Mapping[str, Tensor]  # by role: what enters the last linear layer, if the method asked for it
    weights: Mapping[str, Tree]  # by role in the method's `anchors`: the current weights
    received: Mapping[str, Tree]  # by role in `anchors`: the weights as last received from the server
    memory: Mapping[str, Any]
    uniform: Tensor  # [B, draws] numbers in [0, 1), the same for every method on a seed
    mask: Tensor | None = None  # which samples are real, where a batch is padded

    def mean(self, per_sample: Tensor) -> Tensor:
        return gate.masked_mean(per_sample, self.mask)

    def supervised(self, role: str) -> Tensor:
        return self.mean(self.task.loss(self.outputs[role], self.y))

    def distilled(self, student: str, teacher: str) -> Tensor:
        """Per-sample distance of one role's output from another's, which gets no gradient."""
        return self.task.distil(student=self.outputs[student], teacher=self.outputs[teacher])


@dataclass(frozen=True)
class Train:
    """Train ``roles`` for the local epochs with fresh optimiser state; ``frozen`` roles only give outputs.

    The loss returns a scalar, or a scalar and per-sample diagnostics ({"trust": weights} is logged).
    """

    roles: tuple[str, ...]
    loss: Callable[[Batch], Loss]
    frozen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Remember:
    """Each client computes tensors that it keeps; they never leave it.

    With ``split`` the batch holds that whole split and the outputs of ``roles`` on it.
    """

    compute: Callable[[Batch], dict[str, Any]]
    split: str | None = None
    roles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exchange:
    """Send a role's model through the door, average it, and give the result to every client.

    ``server(mean, previous, memory)`` may turn the mean of the trainable weights into another global model; it
    returns that and the server's new memory.
    """

    role: str
    server: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]] | None = None


Step = Train | Remember | Exchange


@dataclass(frozen=True)
class Beginning:
    """What a client knows before the first round."""

    weights: Mapping[str, Tree]
    features: Mapping[str, int]  # by role: width of the features, if the method asked for them
    seed: int


@dataclass(frozen=True)
class Method:
    """Base of all methods. Subclasses are frozen dataclasses with a docstring whose first line describes them."""

    name: ClassVar[str] = ""
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    roles: ClassVar[tuple[str, ...]] = ("private",)
    anchors: ClassVar[tuple[str, ...]] = ()  # roles whose weights, current and received, its functions read
    draws: ClassVar[int] = 0  # uniform numbers per sample that the losses read

    def steps(self, round: int) -> tuple[Step, ...]:
        raise NotImplementedError(f"{type(self).__name__} needs steps(self, round)")

    def begin(self, client: Beginning) -> dict[str, Any]:
        """The client's memory before the first round."""
        return {}

    def predict(self, train_targets: Tensor, count: int) -> Tensor | None:
        """Outputs for ``count`` samples, for a method without a model; None means the private model's outputs."""
        return None

    def examine(self, batch: Batch) -> dict[str, Tensor] | None:
        """Each sample's "energy" and "trust" for the report; None for a method without a gate."""
        return None

    @property
    def needs_features(self) -> bool:
        return False

    def check(self, task: str) -> None:
        """Raise for hyper-parameters or a task that the method does not fit."""
        if task not in self.tasks:
            raise FedekdError(f"method {self.name!r} is defined for {' and '.join(self.tasks)}, not for {task}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            low, open_low = field.metadata.get("low", 0), field.metadata.get("open", False)
            high = field.metadata.get("high", float("inf"))
            if not (value > low if open_low else value >= low) or value > high or value == float("inf"):
                bound = f"{'>' if open_low else '>='} {low} and {'finite' if high == float('inf') else f'<= {high}'}"
                raise FedekdError(f"{self.name}.{field.name} must be {bound}, got {value}")
