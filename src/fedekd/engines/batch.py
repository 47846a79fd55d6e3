"""What a method's functions see: the one place where a ``Batch`` is made, for every engine and kind of step.

A method may read the outputs of the roles that its step names, their features if it asked for them, the weights of its
``reads_weights``, and what the client has received and remembers. For anything else all engines raise the same line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedekd.errors import FedekdError
from fedekd.methods.base import Method
from fedekd.methods.batch import Batch

if TYPE_CHECKING:
    from fedekd.methods.base import Tree
    from fedekd.tasks import Task

WHY = {
    "outputs": "the step does not name that role: add it to its roles or to `frozen`",
    "features": "no step names that role, or the method does not say `needs_features`",
    "weights": "the role is not among the method's `reads_weights`",
    "received": "no exchange of that name has been answered, or the model it goes into is not among `reads_weights`",
    "memory": "neither `begin` nor a Remember step has given it",
    "gradients": "no Train step with gradients=True came before in this round",
}


class ExplainingDict(dict[str, Any]):
    """Explains in one line why something is not there."""

    def __init__(self, found: Mapping[str, Any], what: str, method: str) -> None:
        super().__init__(found)
        self.what, self.method = what, method

    def __missing__(self, key: str) -> Any:
        here = f" (there is: {', '.join(self)})" if self else ""
        raise FedekdError(f"method {self.method!r} reads {self.what}[{key!r}], but {WHY[self.what]}{here}")


def make_batch(
    method: Method,
    task: Task,
    lr: float | Tensor,
    seen: Mapping[str, Any],
    forward: Callable[[str, Tree, Tensor], Tensor] | None = None,
) -> Batch:
    """``seen`` has everything that differs between clients, so that an engine may map this over a stack of them."""
    explained = {what: ExplainingDict(seen.get(what, {}), what, method.name) for what in WHY}
    return Batch(
        task=task,
        lr=lr,
        forward=forward,
        teaching=method.teaching,
        **{"mask": None, "x": None, "groups": seen["rows"], **seen, **explained},
    )


def answers_plainly(method: Method) -> bool:
    """Whether the answer is what the private model gives, and nothing else."""
    return type(method).predict is Method.predict


def held_to_answer(method: Method) -> tuple[str, ...]:
    """The roles that ``predict`` may read or apply, those below heads among them."""
    read = ("private",) if answers_plainly(method) else (*method.answers, *method.reads_weights)
    below = [method.heads[role] for role in read if role in method.heads]
    return tuple(role for role in dict.fromkeys((*below, *read)) if role in method.roles)


def label_counts(task: str, targets: Tensor, outputs: int) -> Tensor:
    """Training rows by class; for a regression, all of them."""
    if task == "classification":
        return torch.bincount(targets, minlength=outputs)
    return torch.tensor([len(targets)], device=targets.device)
