"""Twins: a method with one thing taken away, ``METHOD@CONTROL``, which shows what that thing was worth.

``@alone``: nothing is exchanged. Every client is a federation of its own, with a server of its own.
``@shuffled``: what teaches the answering model is dealt to other samples of the batch: as sure as ever, about others.
``@uniform``: what teaches the answering model knows nothing: all classes alike, or the batch's mean.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from fedekd.errors import FedekdError, unknown

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Method
    from fedekd.methods.batch import Batch

CONTROLS = ("alone", "shuffled", "uniform")


class Teaching:
    """Takes from a teacher's outputs what they tell about the samples, where an answering role learns from them."""

    def __init__(self, control: str, students: tuple[str, ...]) -> None:
        self.control, self.students, self.taught = control, students, False

    def __call__(self, batch: Batch, student: str, outputs: Tensor) -> Tensor:
        if student not in self.students:
            return outputs
        self.taught = True
        if self.control == "shuffled":
            return outputs[_another(batch.uniform[..., -1], batch.real)]
        if batch.task.name == "classification":
            return outputs * 0.0
        return batch.mean(outputs).expand(outputs.shape)


def _another(uniform: Tensor, real: Tensor) -> Tensor:
    """For each sample another one of the batch: the next in an order drawn at random, where the last has the first."""
    import torch

    order = torch.where(real, uniform, 2.0).argsort()
    following = order[(torch.arange(len(order), device=order.device) + 1) % real.sum().clamp(min=1)]
    return torch.zeros_like(order).scatter(0, order, following)


def twin(method: Method, control: str) -> Method:
    """The method under a control, with the same hyper-parameters."""
    if control not in CONTROLS:
        raise unknown(f"control of {method.name!r}", control, CONTROLS)
    kind: Any = type(method)
    other: Method = object.__new__(_class(kind, control))
    other.__dict__.update(method.__dict__)
    return other


@cache
def _class(cls: type[Any], control: str) -> type[Method]:
    if cls.twin:
        raise FedekdError(f"{cls.name!r} is a twin already; give one control, such as {cls.name.split('@')[0]}@alone")
    about: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": f"{cls.__qualname__}@{control}",
        "__doc__": cls.__doc__,
        "name": f"{cls.name}@{control}",
        "twin": control,
        "original": cls,
    }
    if control != "alone":
        about |= {"teaching": Teaching(control, cls.answers), "uniforms": cls.uniforms + (control == "shuffled")}
    return type(cls.__name__, (cls,), about)


def check_taught(method: Method, rounds: int) -> None:
    """After a rehearsal of so many rounds: raise if there was no teacher to take anything from."""
    if method.teaching is not None and not method.teaching.taught:
        plain = method.name.split("@")[0]
        within = "" if rounds > 1 else " in the first round; with more rounds it may have"
        raise FedekdError(f"{plain} has no teacher{within}, so {method.name} shows nothing; leave it out")
