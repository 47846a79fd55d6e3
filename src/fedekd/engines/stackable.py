"""What can be stacked: which jobs may train as one tensor program, and which modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from fedekd import models
from fedekd.engines.job import Job
from fedekd.methods.base import Method, Remember, Train


class NotStackable(Exception):
    """Why these jobs cannot share a stack; the serial engine takes them."""


def signature(job: Job) -> tuple[Any, ...]:
    """Jobs of equal signature can be stacked: same data, models, settings and shape of the steps."""

    def shape(step: Any) -> tuple[Any, ...]:
        if isinstance(step, Train):
            return "train", step.roles, step.frozen
        if isinstance(step, Remember):
            return "remember", step.split, step.roles
        return "exchange", step.role, step.server is not None

    rounds = tuple(tuple(shape(s) for s in job.method.steps(r)) for r in range(job.training.rounds))
    anchors = job.method.anchors
    return id(job.federation.dataset), job.training, job.private, job.proxy, rounds, anchors, job.method.draws


def check(jobs: Sequence[Job]) -> None:
    first = jobs[0]
    for job in jobs:
        job.method.check(first.task.name)
        if type(job.method).predict is not Method.predict:
            raise NotStackable(f"{job.method.name} answers without its private model")
        if signature(job) != signature(first):
            raise NotStackable("jobs differ in data, models, settings or steps")
    if first.training.optimizer != "adam":
        raise NotStackable(f"optimizer {first.training.optimizer!r} is not stacked")


def make_template(job: Job, role: str) -> nn.Module:
    """The module that is mapped over the stack's weights."""
    make, dataset = job.factory(role), job.federation.dataset
    if models.takes_client(make):
        raise NotStackable(f"each client has its own {role} architecture")
    module = models.build(role, make, dataset.x.shape[1:], dataset.outputs, job.seed, 0)
    if not all(w.requires_grad for w in module.parameters()):
        raise NotStackable(f"{type(module).__name__} has weights that are not trained, which are not stacked")
    if any(True for _ in module.buffers()):
        raise NotStackable(f"{type(module).__name__} has buffers (batch norm?), which are not stacked")
    return module
