"""What has seen a site's rows without noise, so that nothing of it may leave where differential privacy is promised.

Every training of a model that is sent, or of a part of it, gets noise. *Exposed* is what has seen rows without it: the
models that only stay here, whatever is copied from them, and what is remembered of rows or of their gradients. No sent
model may be a copy of it, stand on top of it or learn from it on public rows, and no ``send`` may read it: such methods
are refused, for no noise would be between them and the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedekd import models
from fedekd.engines.client import Client
from fedekd.errors import FedekdError
from fedekd.flower.protocol.visits import called
from fedekd.methods.base import ClientInit, Copy, Exchange, Method, Remember, Step, Train


class Exposure:
    """Of a method's ``steps``: which of its models and memories are exposed. ``shared`` are the roles that are sent."""

    def __init__(self, method: Method, shared: frozenset[str], steps: Sequence[Step], memory: bool) -> None:
        self.method, self.shared, self.steps = method, shared, steps
        self.roles: set[str] = set()
        """The roles whose weights, or what they stand on, depend on rows that no noise was added for."""
        self.memory = memory
        """Whether what is remembered does."""
        self._look()

    def reads_more(self, step: Train) -> bool:
        """Whether the method's loss may read more than the row, the sent models and what the server sent."""
        return self.memory or bool((set(step.frozen) | set(self.method.reads_weights)) & self.roles)

    def _look(self) -> None:
        """One thing exposes another, so look again until nothing more is found."""
        while True:
            roles = set().union(*map(self._exposes, self.steps))
            roles |= {role for role, below in self.method.heads.items() if below in self.roles}
            remembers = self.memory or any(map(self._keeps_rows, self.steps))
            if (roles <= self.roles) and remembers == self.memory:
                return
            self.roles, self.memory = self.roles | roles, remembers

    def _exposes(self, step: Step) -> set[str]:
        """The roles into which a step brings rows without noise."""
        if isinstance(step, Copy) and self._made_from(step.source):
            return {step.target}
        if isinstance(step, Train) and not self.shared & set(step.roles):
            return set(step.roles) if step.split != "public" or self.reads_more(step) else set()
        return set()

    def _keeps_rows(self, step: Step) -> bool:
        if isinstance(step, Remember):
            return step.split not in (None, "public") or bool(set(step.roles) & self.roles)
        return isinstance(step, Train) and step.gradients and not self.shared & set(step.roles)

    def _made_from(self, source: Any) -> bool:
        """Whether a copy is made from what is exposed; a function reads memory and what ``reads_weights`` names."""
        if isinstance(source, str):
            return source in self.roles
        return self.memory or bool(set(self.method.reads_weights) & self.roles)

    def check(self, models: Mapping[str, nn.Module]) -> None:
        """Raise for a method that would carry rows past the noise, or a model that would."""
        name, instead = self.method.name, "take another method, or leave [dp] out"
        for step in self.steps:
            if isinstance(step, Train) and self.shared & set(step.roles):
                self._check_training(step, f"method {name!r} trains {' and '.join(step.roles)}", instead)
            if isinstance(step, Copy) and step.target in self.shared and step.target in self.roles:
                raise FedekdError(
                    f"method {name!r} copies what has seen rows without noise into the {step.target} model, which is "
                    f"sent; {instead}"
                )
            if isinstance(step, Exchange) and step.send and self._sends_rows(step):
                raise FedekdError(
                    f"method {name!r} sends {called(step)}, which is made from rows, or from what has seen them "
                    f"without noise; {instead}"
                )
        for role in sorted(self.shared):
            if self.method.heads.get(role) in self.roles:
                raise FedekdError(
                    f"the {role} model of method {name!r} stands on the {self.method.heads[role]} model, which has "
                    f"seen rows without noise; {instead}"
                )
            if any(True for _ in models[role].buffers()):
                raise FedekdError(
                    f"the {role} model has buffers (batch normalisation?), which would carry rows past the noise; "
                    "take group or layer normalisation"
                )

    def _check_training(self, step: Train, trains: str, instead: str) -> None:
        if len(step.roles) > 1:
            raise FedekdError(f"{trains} in one step, which DP-SGD cannot keep apart; {instead}")
        if step.gradients:
            raise FedekdError(f"{trains} and reads the gradients, to which no noise is added; {instead}")
        if step.split not in ("train", "public"):
            raise FedekdError(f"{trains} on {step.split} rows, which the budget does not cover; {instead}")
        if step.split == "public" and self.reads_more(step):
            raise FedekdError(f"{trains} on public rows with what has seen its own without noise; {instead}")

    def _sends_rows(self, step: Exchange) -> bool:
        return (
            step.split not in (None, "public")
            or self.memory
            or bool((set(step.roles) | set(self.method.reads_weights)) & self.roles)
        )


def begins_with_rows(client: Client) -> bool:
    """Whether the memory that a client begins with depends on its targets: looked for with made-up ones."""
    weights, features = {role: client.weights(role) for role in client.models}, {}
    if client.method.needs_features:
        bodies = [role for role in client.method.roles if role not in client.method.heads]
        features = {role: models.last_linear(client.models[role]).in_features for role in bodies}
    blank, found = torch.zeros_like(client.data.y[client.rows["train"]]), []
    for targets in (blank, blank + 1):
        digest = hashlib.sha256()
        feed(digest, client.method.begin(ClientInit(weights, features, client.job.seed, targets)))
        found.append(digest.digest())
    return found[0] != found[1]


def feed(digest: Any, value: Any) -> None:
    """Have a digest depend on all that is in a value, to the bit."""
    if isinstance(value, Tensor):
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value):
            digest.update(f"{key} ".encode())
            feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        for one in value:
            feed(digest, one)
    else:
        digest.update(repr(value).encode())
