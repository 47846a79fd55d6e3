"""What can be stacked: which jobs may train as one tensor program, and which modules."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from fedekd import models
from fedekd.engines import layers, step_checks
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


def built_for(job: Job, role: str, client: int) -> nn.Module:
    """A client's model as it begins."""
    dataset = job.federation.dataset
    return models.build(role, job.factory(role), dataset.x.shape[1:], dataset.outputs, job.seed, client)


def make_template(job: Job, role: str, client: int) -> nn.Module:
    """The module that is mapped over the stack's weights."""
    module = built_for(job, role, client)
    name = type(module).__name__
    norms = {path: layer for path, layer in module.named_modules() if type(layer) in layers.NORMS}
    if any(layer.running_mean is None for layer in norms.values()):
        raise NotStackable(f"{name} has a batch norm without running statistics, which is not stacked")
    own = {f"{path}.{n}" if path else n for path, layer in norms.items() for n, _ in layer.named_buffers()}
    moved = [n for n in _moved(module, job.federation.dataset.x.shape[1:]) if n not in own]
    if moved:
        raise NotStackable(f"{name} changes its buffer {moved[0]} as it trains, which is not stacked")
    return layers.own_statistics(layers.own_streams(module))


@torch.no_grad()
def _moved(module: nn.Module, shape: Sequence[int]) -> list[str]:
    """The buffers that a batch of made-up rows changes in training mode."""
    other = copy.deepcopy(module).train()
    before = {n: buffer.clone() for n, buffer in other.named_buffers()}
    if not before:
        return []
    with torch.random.fork_rng(devices=[]):
        other(torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)))
    return [n for n, buffer in other.named_buffers() if n not in before or not torch.equal(buffer, before[n])]


def kinds(jobs: Sequence[Job], members: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Members, given as (job, client), whose models are of one architecture and so form one stack; they may begin with
    other weights. All jobs have the same factories."""
    first, starts, found = jobs[0], dict[Any, list[int]](), dict[Any, list[int]]()
    for i, (_, client) in enumerate(members):
        starts.setdefault(first.like_clients(client), []).append(i)
    if len(starts) == 1:
        return list(starts.values())
    every = dict.fromkeys(itertools.chain.from_iterable(starts))
    known = {start: architecture(built_for(first, *start)) for start in every}
    for like, indices in starts.items():
        found.setdefault(tuple(known[start] for start in like), []).extend(indices)
    return [sorted(indices) for indices in found.values()]


def architecture(module: nn.Module) -> tuple[Any, ...]:
    """Equal for modules that compute the same with the same weights.

    What cannot be compared, such as an object of the user's, counts as different: better two stacks than a wrong one.
    """
    tensors = [(n, tuple(t.shape), t.dtype, t.requires_grad) for n, t in module.state_dict(keep_vars=True).items()]
    rest = [(path, type(layer), _settings(layer)) for path, layer in module.named_modules(remove_duplicate=False)]
    return tuple(tensors), tuple(rest)


def _settings(layer: nn.Module) -> tuple[Any, ...]:
    """A layer's own attributes, without its weights and those that every layer has."""
    usual = vars(nn.Module()).keys()
    own = {n: v for n, v in vars(layer).items() if n not in usual}
    hooked = object() if layer._forward_hooks or layer._forward_pre_hooks else None
    return tuple((n, _comparable(v)) for n, v in sorted(own.items())), hooked


def _comparable(value: Any) -> Any:
    if isinstance(value, (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.Size)):
        return type(value), value
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_comparable(v) for v in value)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return dict, tuple((key, _comparable(v)) for key, v in value.items())
    if inspect.isbuiltin(value) or (inspect.isfunction(value) and not value.__closure__ and not value.__defaults__):
        return getattr(value, "__code__", value)
    return value if isinstance(value, Hashable) and not isinstance(value, torch.Tensor) else object()
