"""What can be stacked: which jobs may train as one tensor program, and which modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torch import nn

from fedekd import models
from fedekd.engines import step_checks
from fedekd.engines.job import Job
from fedekd.exchange import exchanges
from fedekd.methods.base import Copy, Exchange, Remember, Step, Train


class NotStackable(Exception):
    """Why these jobs cannot share a stack; the serial engine takes them."""


def signature(job: Job) -> tuple[Any, ...]:
    """Jobs of equal signature can be stacked: same data, models, settings and shape of the steps."""

    method = job.method
    rounds = tuple(tuple(shape(s) for s in method.steps(r)) for r in range(job.training.rounds))
    before = tuple(shape(s) for s in method.personalise())
    facts = (
        method.roles,
        tuple(method.like.items()),
        tuple(method.heads.items()),
        method.reads_weights,
        method.uniforms,
        method.twin == "alone",
    )
    public = len(job.federation.public)
    return (
        id(job.federation.dataset),
        public,
        job.training,
        job.private,
        job.proxy,
        rounds,
        before,
        facts,
        method.answers,
    )


TRAIN = tuple(field.name for field in fields(Train) if field.name != "loss")


def shape(step: Step | None) -> tuple[Any, ...]:
    """A step without its functions, which differ between variants of a method."""
    if isinstance(step, Train):
        return ("train", *(getattr(step, name) for name in TRAIN))
    if isinstance(step, Remember):
        return "remember", step.split, step.roles
    if isinstance(step, Copy):
        return "copy", step.source if isinstance(step.source, str) else None, step.target, step.part
    if isinstance(step, Exchange):
        made, combined = step.send is not None, step.combine is not None
        names = ("name", "part", "split", "roles", "into", "each")
        return ("exchange", *(getattr(step, name) for name in names), made, combined, shape(step.refine))
    return ()


def check(jobs: Sequence[Job]) -> None:
    first = jobs[0]
    for job in jobs:
        job.method.check(first.task.name)
        step_checks.check_public(job)
        if not job.method.roles:
            raise NotStackable(f"{job.method.name} has no model")
        if not job.method.stacks:
            raise NotStackable(f"{job.method.name} cannot be mapped over clients")
        if job.method.twin == "alone" and any(e.refine for e in exchanges(job.method, job.training.rounds).values()):
            raise NotStackable(f"{job.method.name} trains a server for each client")
        if signature(job) != signature(first):
            raise NotStackable("jobs differ in data, models, settings or steps")


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
