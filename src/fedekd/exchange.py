"""The door: everything that leaves a client passes here, where it is checked, counted and combined.

A model's *message* is its full state (weights and buffers) as {name: tensor}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedekd.errors import FedekdError
from fedekd.methods.base import Exchange, Method

Message = Mapping[str, Tensor]
Tree = Mapping[str, Tensor]  # a model's trainable weights
Mean = Callable[[Sequence[Message], Sequence[float]], dict[str, Tensor]]


def shared_roles(method: Method, rounds: int) -> frozenset[str]:
    """The roles whose models a method sends."""
    return frozenset(s.role for r in range(rounds) for s in method.steps(r) if isinstance(s, Exchange))


@dataclass
class Door:
    """Lets pass only the roles it was opened for, and counts the bytes both ways."""

    roles: frozenset[str]
    bytes_up: int = 0
    bytes_down: int = 0
    log: list[tuple[str, str]] = field(default_factory=list)  # (client, role) of every upload of the last round

    def up(self, role: str, client: str, message: Message) -> Message:
        """Take an upload, unless the role may not leave or the numbers are not finite."""
        self.admit(role, client)
        bad = [name for name, t in message.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
        if bad:
            raise FedekdError(f"client {client} diverged: its {role} model has NaN or inf in {bad[0]}; lower --lr")
        self.count(role, client, message)
        return message

    def admit(self, role: str, client: str) -> None:
        if role not in self.roles:
            raise FedekdError(f"the {role} model of client {client} may not leave it: only {sorted(self.roles)} may")

    def count(self, role: str, client: str, message: Message) -> None:
        self.bytes_up += size(message)
        self.log.append((client, role))

    def down(self, message: Message, clients: int) -> Message:
        self.bytes_down += size(message) * clients
        return message


def size(message: Message) -> int:
    return sum(t.numel() * t.element_size() for t in message.values())


def same_shapes(messages: Sequence[Message], role: str, names: Sequence[str]) -> None:
    """Only models of one architecture can be averaged."""
    first = {key: t.shape for key, t in messages[0].items()}
    for name, message in zip(names, messages, strict=True):
        if {key: t.shape for key, t in message.items()} != first:
            raise FedekdError(
                f"{role} models are averaged but client {name}'s differs from client {names[0]}'s in shape; "
                f"give all clients one {role} architecture, or use a method that averages proxies"
            )


def average(messages: Sequence[Message], weights: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean of every tensor; counters (integer buffers) are taken from the first client."""
    first = messages[0]
    total = float(sum(weights))
    mean: dict[str, Tensor] = {}
    for key, start in first.items():
        if not start.is_floating_point():
            mean[key] = start.clone()
            continue
        sum_ = torch.zeros_like(start)
        for message, weight in zip(messages, weights, strict=True):
            sum_.add_(message[key], alpha=weight / total)
        mean[key] = sum_
    return mean


class Server:
    """The server's half of an exchange: the mean, what the method makes of it, and what the server remembers."""

    def __init__(self, start: Mapping[str, Tree]) -> None:
        """``start``: by exchanged role, the trainable weights that all clients begin with."""
        self.sent = {role: dict(tree) for role, tree in start.items()}
        self.memory: dict[str, dict[str, Tensor]] = {role: {} for role in start}

    def combine(
        self, step: Exchange, messages: Sequence[Message], weights: Sequence[float], mean: Mean | None = None
    ) -> dict[str, Tensor]:
        """What every client is given; ``mean`` may stand in for the weighted mean of the messages."""
        role, whole = step.role, (mean or average)(messages, weights)
        trainable = {name: whole[name] for name in self.sent[role]}
        if step.server:
            changed, memory = step.server(trainable, self.sent[role], self.memory[role])
            trainable, self.memory[role] = dict(changed), dict(memory)
        self.sent[role] = trainable
        return {**whole, **trainable}

    def state(self) -> dict[str, Any]:
        return {"sent": self.sent, "memory": self.memory}

    def restore(self, state: dict[str, Any]) -> None:
        self.sent, self.memory = state["sent"], state["memory"]


def averaging_weights(weighting: str, train_sizes: Sequence[int]) -> list[float]:
    return [1.0] * len(train_sizes) if weighting == "uniform" else [float(n) for n in train_sizes]
