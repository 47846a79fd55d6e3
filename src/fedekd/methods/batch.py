"""What a method's functions see: one client's view of some rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedekd import gate
from fedekd.errors import FedekdError

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Tree
    from fedekd.methods.twins import Teaching
    from fedekd.tasks import Task


def gradient_in_a_map(loss: Callable[[Tree], Tensor], at: Tree) -> Tree:
    """The only way inside of ``vmap``. Its first call imports torch._dynamo, which takes seconds."""
    from torch.func import grad

    return {name: g.detach() for name, g in grad(loss)(at).items()}


def gradient_alone(loss: Callable[[Tree], Tensor], at: Tree) -> Tree:
    """The same to the bit, outside of any map."""
    import torch

    with torch.enable_grad():
        leaves = {name: w.detach().requires_grad_() for name, w in at.items()}
        value = loss(leaves)
        if not value.requires_grad:  # no weight has a part in it
            return {name: torch.zeros_like(w) for name, w in at.items()}
        found = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def no_gradient(loss: Callable[[Tree], Tensor], at: Tree) -> Tree:
    """Zeros, for a dry pass: the loss is taken, and not differentiated."""
    loss(at)
    return {name: w.new_zeros(w.shape) for name, w in at.items()}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some rows, the outputs of the client's models for them, and what the client knows. The same in every engine."""

    task: Task
    x: Tensor | None  # the models' inputs; None where the batch is a whole split
    y: Tensor
    outputs: Mapping[str, Tensor]  # by role: logits [B, C] or predictions [B]
    features: Mapping[str, Tensor]  # by role: what enters the last linear layer, if the method `needs_features`
    weights: Mapping[str, Tree]  # by role in the method's `reads_weights`: its trainable weights as they are now
    received: Mapping[str, Tree]
    """By exchange: the last result. One that was loaded into a model is here only if the role is in `reads_weights`:
    its trainable weights, and before the first result those that the model began with."""
    memory: Mapping[str, Any]
    gradients: Mapping[str, Tree]  # by role: the mean gradient of the last `Train(gradients=True)`
    uniform: Tensor  # [B, uniforms] numbers in [0, 1), the same for every method on a seed; see ``Method.drawn``
    rows: Tensor  # [B] places in the split, which are the same for every client where the split is public
    groups: Tensor  # [B] numbers of their groups in the split, such as its patients; ``rows`` where there are none
    counts: Tensor  # [C] training rows of each class; [1] all of them for a regression
    lr: float | Tensor  # in force; a tensor where it changes between rounds and a CUDA graph reads it
    steps: Tensor  # how many steps of the optimiser this training takes; elsewhere, how many the last one took
    teachers: Tensor | None = None  # [K, B, ...] outputs of the uploaded models, where the server refines their mean
    mask: Tensor | None = None  # which samples are real, where a batch is padded
    split: str = ""  # in `predict`: which of the client's splits the rows are, "" where they are none of its rows
    teaching: Teaching | None = field(default=None, compare=False)  # of a twin: what is taken from its teachers
    forward: Callable[[str, Tree, Tensor], Tensor] | None = field(default=None, compare=False)
    differentiate: Callable[[Callable[[Tree], Tensor], Tree], Tree] = field(default=gradient_in_a_map, compare=False)
    """How ``gradient`` finds it."""

    @property
    def real(self) -> Tensor:
        """[B] True for samples, False for padding."""
        return self.rows >= 0 if self.mask is None else self.mask.bool()

    def mean(self, per_sample: Tensor) -> Tensor:
        """The mean over samples, without padding."""
        return gate.masked_mean(per_sample, self.mask)

    def supervised(self, role: str) -> Tensor:
        """The task's mean loss of this role's outputs."""
        return self.mean(self.task.loss(self.outputs[role], self.y))

    def distilled(self, student: str, teacher: str | Tensor) -> Tensor:
        """Per-sample distance of one role's output from another's, or from other outputs for these rows.

        The teacher gets no gradient.
        """
        given = self.outputs[teacher] if isinstance(teacher, str) else teacher
        return self.task.distil(student=self.outputs[student], teacher=self.lesson(student, given))

    def lesson(self, student: str, outputs: Tensor) -> Tensor:
        """A teacher's outputs for these rows as a student gets to see them: see ``fedekd.methods.twins``."""
        return outputs if self.teaching is None else self.teaching(self, student, outputs)

    def apply(self, role: str, weights: Tree, x: Tensor | None = None) -> Tensor:
        """What a role's architecture gives with other weights, for these rows or for inputs made from theirs."""
        if self.forward is None or self.x is None:
            raise FedekdError("a model can be applied in a loss and in `predict`, not to a whole split")
        return self.forward(role, weights, self.x if x is None else x)

    def gradient(self, role: str, weights: Tree, loss: Callable[[Tensor], Tensor]) -> Tree:
        """The gradient of ``loss(outputs)`` at these weights, as a constant."""
        start = {name: w.detach() for name, w in weights.items()}
        return self.differentiate(lambda tree: loss(self.apply(role, tree)), start)
