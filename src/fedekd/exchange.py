"""The door: everything that leaves a client passes here, where it is checked and counted; and the server's half.

What is exchanged is {name: tensor}: a model's full state (weights and buffers), a part of it, or what a method's
``send`` has made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedekd.errors import FedekdError
from fedekd.methods.base import Exchange
from fedekd.methods.base import exchanges as exchanges  # this and the next for those who import them from here
from fedekd.methods.base import shared_roles as shared_roles
from fedekd.methods.uploads import Uploads
from fedekd.robust import Mean, average

Message = Mapping[str, Tensor]


@dataclass
class Door:
    """Lets pass only what it was opened for, by name, and counts the bytes both ways."""

    names: frozenset[str]
    bytes_up: int = 0
    bytes_down: int = 0
    log: list[tuple[str, str]] = field(default_factory=list)  # (client, name) of every upload of the last round

    def up(
        self, name: str, clients: Sequence[str], stack: Message, later: list[Callable[[], None]] | None = None
    ) -> Message:
        """Take uploads of some clients, [clients, ...], unless they may not leave or are not finite.

        Whether they are finite can be asked of the device now and looked at ``later``, without waiting for it here.
        """
        self.may(name, clients)
        floats, good = finite(stack)
        if floats:
            check = partial(_check_finite, good, name, clients, floats)
            check() if later is None else later.append(check)
        self.took(name, clients, size(stack))
        return stack

    def may(self, name: str, clients: Sequence[str]) -> None:
        if name not in self.names:
            raise FedekdError(f"the {name} of client {clients[0]} may not leave it: only {sorted(self.names)} may")

    def took(self, name: str, clients: Sequence[str], bytes_: int) -> None:
        self.bytes_up += bytes_
        self.log += [(client, name) for client in clients]

    def down(self, answer: Message, clients: int) -> Message:
        """Count an answer to all alike; one with a row for each client counts once."""
        self.bytes_down += size(answer) * clients
        return answer


def up_together(
    doors: Sequence[Door],
    name: str,
    clients: Sequence[Sequence[str]],
    bytes_: int,
    found: tuple[list[str], Tensor],
    later: list[Callable[[], None]],
) -> None:
    """``Door.up`` for many doors, whose clients' uploads are all of one size: one question to the device.

    ``bytes_``: of all uploads; ``found``: what ``finite`` says of them, in this order.
    """
    counts, (floats, good) = [len(own) for own in clients], found
    for door, own in zip(doors, clients, strict=True):
        door.may(name, own)
        door.took(name, own, bytes_ // sum(counts) * len(own))

    def check() -> None:
        if not bool(good.all()):
            for one, own in zip(good.split(counts, 1), clients, strict=True):
                _check_finite(one, name, own, floats)

    if floats:
        later.append(check)


def finite(stack: Message) -> tuple[list[str], Tensor]:
    """The tensors that could be other than finite, and whether they are: [tensors, clients], on their device."""
    floats = {key: t for key, t in stack.items() if t.is_floating_point()}
    return list(floats), finite_rows(floats.values()) if floats else torch.empty(0)


def finite_rows(tensors: Iterable[Tensor]) -> Tensor:
    """Of each row of each tensor, whether it is finite: [tensors, rows]."""
    every = [t.reshape(len(t), math.prod(t.shape[1:])) for t in tensors]
    # The largest absolute value is NaN or inf where any is, and costs one kernel in place of five.
    largest = [torch.linalg.vector_norm(t, math.inf, 1) if t.numel() else t.new_zeros(len(t)) for t in every]
    return torch.stack(largest).isfinite()


def _check_finite(good: Tensor, name: str, clients: Sequence[str], tensors: Sequence[str]) -> None:
    """``good``: [tensors, clients]."""
    bad = (~good).nonzero().tolist()
    if bad:
        which, at = bad[0]
        raise FedekdError(f"client {clients[at]} diverged: its {name} has NaN or inf in {tensors[which]}; lower --lr")


def size(message: Message) -> int:
    return sum(t.numel() * t.element_size() for t in message.values())


def same_shapes(messages: Iterable[Message], name: str, clients: Sequence[str]) -> None:
    """Only what has one shape at all clients can be averaged."""
    first = None
    for client, message in zip(clients, messages, strict=True):
        shapes = {key: t.shape for key, t in message.items()}
        first = shapes if first is None else first
        if shapes != first:
            raise FedekdError(
                f"{name} models are averaged but client {client}'s differs from client {clients[0]}'s in shape; "
                f"give all clients one {name} architecture, or use a method that averages proxies"
            )


class Aggregator:
    """The server's half of every exchange: the mean, what the method makes of it, and what the server remembers."""

    def __init__(self, start: Mapping[str, Message], **about: Any) -> None:
        """``start``: by exchange whose answer goes into a model, the trainable weights that all clients begin with.

        ``about`` is what else ``Uploads`` tells a method: clients, public, module, seed, and how to average where that
        is not the mean.
        """
        self.sent = {name: dict(tree) for name, tree in start.items()}
        self.memory: dict[str, Any] = {}
        self.lent: set[str] = set()  # exchanges of which ``sent`` may be overwritten
        self.about = about

    def combine(
        self,
        step: Exchange,
        messages: Message | Sequence[Message],
        weights: Sequence[float],
        numbers: Sequence[int],
        round: int,
    ) -> Any:
        """The answer to one exchange. ``messages`` are trees, or one tree of [K, ...]."""
        share = shares(weights, _device(messages))
        previous, memory = self.sent.get(step.name, {}), self.memory.get(step.name, {})
        if step.name in self.lent:
            previous = {n: t.clone() for n, t in previous.items()}
            self.lent.remove(step.name)
        mean = _Asked(self.about.get("average", average))
        facts = {"clients": len(weights), **self.about, "weights": share, "average": mean, "round": round}
        facts |= {"previous": previous, "memory": memory, "numbers": tuple(numbers)}
        buffers: Message = {}
        if step.send is None:  # a method combines weights; buffers, which no gradient moves, are averaged
            messages, rest = _apart(messages, previous)
            buffers = Uploads(given=rest, **facts | {"average": mean.how}).mean()
        uploads = Uploads(given=messages, mean_only=step.mean_only, **facts)
        pair = step.combine(uploads) if step.combine else (uploads.mean(), memory)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise FedekdError(
                f"the function that combines {step.name!r} gives {type(pair).__name__}; it must return a pair, an "
                "answer and the server's new memory"
            )
        if mean.how is not average and not mean.asked:
            raise FedekdError(
                f"the function that combines {step.name!r} takes no mean, so no other way to combine protects it; "
                'leave `combine` at "mean"'
            )
        answer, self.memory[step.name] = pair
        if step.each:
            _check_each(step, answer, len(weights))
            return answer
        if not isinstance(answer, Mapping):
            raise FedekdError(f"the answer to {step.name!r} is {type(answer).__name__}; return a dict of tensors")
        self.sent[step.name] = dict(answer)
        return {**buffers, **answer}

    def gives(self, name: str, mean: Message) -> None:
        """Remember what ``combine`` would, where models travel and a method wants no more than their mean.

        ``mean`` is not copied, and the next round's may lie in the same memory: ``combine`` copies what it hands on.
        """
        trained = self.sent.get(name, {})
        self.sent[name] = {n: t for n, t in mean.items() if n in trained}
        self.lent.add(name)
        self.memory.setdefault(name, {})

    def state(self) -> dict[str, Any]:
        return {"sent": self.sent, "memory": self.memory}

    def restore(self, state: dict[str, Any]) -> None:
        self.sent, self.memory = state["sent"], state["memory"]


class _Asked:
    """A way to average that remembers whether it was used."""

    def __init__(self, how: Mean) -> None:
        self.how, self.asked = how, False

    def __call__(self, stack: Message, weights: Tensor) -> dict[str, Tensor]:
        self.asked = True
        return self.how(stack, weights)


def shares(weights: Sequence[float], device: torch.device) -> Tensor:
    """The weights of a mean: their sum is 1."""
    share = torch.tensor(weights, dtype=torch.float64)
    return (share / share.sum()).float().to(device, non_blocking=True)


def _apart(messages: Message | Sequence[Message], names: Message) -> tuple[Any, Any]:
    """The tensors of these names, and the others."""
    if isinstance(messages, Mapping):
        one, other = ({n: t for n, t in messages.items() if (n in names) == wanted} for wanted in (True, False))
        return one, other
    pairs = [_apart(message, names) for message in messages]
    return [one for one, _ in pairs], [other for _, other in pairs]


def _device(messages: Message | Sequence[Message]) -> torch.device:
    first = messages if isinstance(messages, Mapping) else messages[0]
    return next((t.device for t in first.values()), torch.device("cpu"))


def _check_each(step: Exchange, answer: Any, uploads: int) -> None:
    trees = answer.values() if isinstance(answer, Mapping) else answer
    rows = {len(t) for t in trees} if isinstance(answer, Mapping) else {len(trees)}
    if rows != {uploads}:
        raise FedekdError(
            f"the function that combines {step.name!r} answers each with {sorted(rows)} rows for {uploads} uploads; "
            "give one for each upload"
        )


def answer_of(answer: Any, place: int, each: bool) -> dict[str, Tensor]:
    """One client's answer, by its place among those that took part."""
    if not each:
        return dict(answer)
    return {n: t[place] for n, t in answer.items()} if isinstance(answer, Mapping) else dict(answer[place])


def averaging_weights(weighting: str, train_sizes: Sequence[int]) -> list[float]:
    return [1.0] * len(train_sizes) if weighting == "uniform" else [float(n) for n in train_sizes]
