"""Models, methods and jobs that train in a blink, for the tests."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from fedekd import methods
from fedekd.engines.job import Job, Training
from fedekd.models import CNN, MLP

TRAINING = Training(rounds=2, epochs=2, batch_size=16, lr=3e-3)
BRIEF = {"second-opinion-taught": {"passes": 2}, "pfedme": {"inner_steps": 2}}
"""Parameters with which the methods that take the most steps in a round take fewer."""


def tiny_private(shape, outputs) -> nn.Module:
    return CNN(shape, outputs, (4, 6), 12) if len(shape) == 3 else MLP(shape[0], outputs, (12, 12))


def tiny_proxy(shape, outputs) -> nn.Module:
    return CNN(shape, outputs, (3,), 8) if len(shape) == 3 else MLP(shape[0], outputs, (8,))


def quick(name: str) -> methods.Method:
    """The method of that name, brief; a twin too."""
    return methods.get(name, **BRIEF.get(name.split("@")[0], {}))


def job(federation, method, seed=0, private=tiny_private, **training) -> Job:
    return Job(federation, method, seed, replace(TRAINING, **training), private, tiny_proxy)
