"""A dry pass: a method's steps once on a few blank rows, before anything is trained.

It finds in one line what would end in a traceback later, in some engines only, or not at all: a step that names an
unknown role, a loss that is no scalar or has no gradient, control flow on a tensor, a model of the wrong width. It also
tells how many bytes every exchange costs. It looks at nobody's rows and leaves torch's random state alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedekd import models
from fedekd.engines import return_checks, step_checks
from fedekd.engines.client import Client
from fedekd.engines.job import SERVER, Job, Rows
from fedekd.engines.model_checks import (
    buffered,
    built,
    check_models,
    check_one_row,
    check_starts,
    line,
    lone_row,
    once,
)
from fedekd.engines.server import ServerClient, server_facts
from fedekd.engines.stackable import shape
from fedekd.errors import FedekdError
from fedekd.exchange import Aggregator, Message, answer_of, exchanges, size
from fedekd.federation import Federation, Split
from fedekd.methods.base import Copy, Exchange, Method, Remember, Step, Train
from fedekd.methods.batch import Batch, no_gradient
from fedekd.trees import map_tree

CLIENTS, TRAINED, HELD = 2, 2, 2  # blank clients, and their rows for training and for each other split

_KNOWN: dict[Any, list[list[ExchangeCost]]] = {}
_ALONE: dict[Any, None] = {}  # those of them whose models train on one row too

Traded = tuple[str, Message, Message]  # an exchange: its name, what a client sent and what it got


@dataclass(frozen=True)
class ExchangeCost:
    """Bytes that one client sends and receives in an exchange."""

    name: str
    up: int
    down: int


def rehearse(job: Job) -> list[list[ExchangeCost]]:
    """What each round exchanges. Raises a ``FedekdError`` of one line for a method or a model that breaks the rules.

    Runs that differ in data or seed alone are rehearsed once. Their clients may be more or fewer where all have the
    same models.
    """
    federation, training = job.federation, job.training
    dataset, public = federation.dataset, (len(federation.public), federation.public_labelled)
    own_models = any(models.takes_client(make) for make in (job.private, job.proxy))
    clients = len(federation.clients) if own_models else min(CLIENTS, len(federation.clients))
    about = (dataset.x.shape[1:], dataset.outputs, dataset.task, public, clients, training.rounds)
    seldom = training.participation < 1, job.alone_is_drawn
    key = (type(job.method), job.method, job.private, job.proxy, about, seldom, training.combine)
    costs = once(_KNOWN, key, lambda: _rehearse(job))
    lone = lone_row(job)
    if lone is not None:
        once(_ALONE, key, lambda: check_one_row(job, lone))
    return costs


def traffic(job: Job) -> int:
    """Bytes that all clients send and receive in the whole run, if none is absent."""
    if job.method.twin == "alone":
        return 0
    each = sum(cost.up + cost.down for costs in rehearse(job) for cost in costs)
    return round(each * len(job.federation.clients) * job.participation)


def _rehearse(job: Job) -> list[list[ExchangeCost]]:
    method = job.method
    method.check(job.task.name)
    step_checks.check_roles(method)
    rounds = []
    for round in range(job.training.rounds):
        with _explained(method, f"steps({round})"):
            rounds.append(step_checks.steps_of(method, round))
        step_checks.check_steps(job, rounds[-1])
    step_checks.check_exchanges(method, rounds)
    step_checks.check_public(job)
    with torch.random.fork_rng(devices=[]):
        return _played(job, rounds)


def _size(few: Message, more: Message, public: int) -> int:
    """Bytes of what was sent of two public rows, given what was sent of three; where it grows, with the real number."""
    if public <= 2 or few.keys() != more.keys():
        return size(few)
    total = 0
    for name, tensor in few.items():
        grows = [(a, b) for a, b in zip(tensor.shape, more[name].shape, strict=False) if a != b] == [(2, 3)]
        total += size({name: tensor}) * public // 2 if grows else size({name: tensor})
    return total


def _played(job: Job, rounds: Sequence[Sequence[Step]]) -> list[list[ExchangeCost]]:
    public = len(job.federation.public)
    few = _Rehearsal(job, min(2, public))
    more = _Rehearsal(job, 3) if public else None
    seen: dict[Any, list[ExchangeCost]] = {}
    keys = [(min(r, 1), tuple((shape(s), *step_checks.codes(s)) for s in steps)) for r, steps in enumerate(rounds)]
    for round, (key, steps) in enumerate(zip(keys, rounds, strict=True)):
        if key in seen:  # a second round is played in any case: it meets what the first one left
            continue
        traded = few.round(round, steps)
        larger = more.round(round, steps) if more else traded
        seen[key] = [
            ExchangeCost(name, _size(up, more_up, public), _size(down, more_down, public))
            for (name, up, down), (_, more_up, more_down) in zip(traded, larger, strict=True)
        ]
    few.answer()
    return [seen[key] for key in keys]


class _Rehearsal:
    def __init__(self, job: Job, public: int) -> None:
        training = replace(job.training, device="cpu", precision="fp32", batch_size=TRAINED, participation=1.0)
        self.job = replace(job, federation=_blank(job, public), training=training)
        self.method, self.real = job.method, job
        self.data = Rows.of(self.job)
        self.clients = [self._client(k, k) for k in range(CLIENTS)]
        start, traded = {}, exchanges(self.method, job.training.rounds)
        check_models(job, self.clients[0].models)
        check_starts(self.real, [(client.number, client.models) for client in self.clients])
        self.others = self._others() if any(step.send for step in traded.values()) else []
        for name, step in traded.items():
            with _explained(self.method, f"what it exchanges as {name!r}"):
                if step.target is not None:
                    start[name] = self.clients[0].weights(step.target, step.part)
        self.server = Aggregator(start, **server_facts(self.job, self.data))

    def _client(self, position: int, number: int) -> _RehearsalClient:
        client = _RehearsalClient(self.job, position, number % len(self.real.federation.clients), self.data)
        client.first = position == 0
        return client

    def _others(self) -> list[_RehearsalClient]:
        """One for each further architecture: what they send has the shape that all others send."""
        seen = [_shapes(client) for client in self.clients]
        found = []
        for k in self.real.first_clients():
            client = self._client(1, k)
            if (own := _shapes(client)) not in seen:
                seen.append(own)
                found.append(client)
        return found

    def round(self, round: int, steps: Sequence[Step]) -> list[Traded]:
        costs = []
        for step in steps:
            if isinstance(step, Exchange):
                costs.append(self._exchange(step, round))
            else:
                for client in (*self.clients, *self.others):
                    client.perform(step, round)
        return costs

    def _exchange(self, step: Exchange, round: int) -> Traded:
        messages = []
        for client in (*self.clients, *self.others):
            with _explained(self.method, f"what it sends as {step.name!r}"):
                messages.append(client.upload(step, round))
            if step.send is not None and _sizes(messages[-1]) != _sizes(messages[0]):
                what = "rows"
                if _shapes(client) != _shapes(self.clients[0]):
                    what = "model; if it is made of features, give all models as many"
                raise FedekdError(
                    f"method {self.method.name!r}: the shape of what it sends as {step.name!r} depends on the client's "
                    f"{what}"
                )
        del messages[CLIENTS:]
        with _explained(self.method, f"how it combines {step.name!r}"):
            answer = self.server.combine(step, messages, [1.0] * len(messages), range(len(messages)), round)
            if step.refine:
                answer = _RehearsalServer(self.job, self.data).refined(step, messages, answer, round)
            one = answer_of(answer, 0, step.each)
            for place, client in enumerate(self.clients):
                client.receive(step, answer_of(answer, place, step.each))
            for client in self.others:
                client.receive(step, one)
        return step.name, messages[0], one

    def answer(self) -> None:
        """What is done before answering, and the answer; also that of a client that was never there."""
        client, method = self.clients[0], self.method
        with _explained(method, "personalise()"):
            steps = [step for step, _ in return_checks.personal(method)]
        step_checks.check_steps(self.real, steps)
        with client.personalised():
            client.check_answer()
        if self.real.participation < 1:
            stranger = self._client(0, 0)
            try:
                with stranger.personalised():
                    stranger.check_answer()
            except FedekdError as error:
                raise FedekdError(
                    f"{error}; below full participation, a client that was never there must answer too"
                ) from None


class _RehearsalClient(Client):
    """A client whose training is one small batch that moves nothing."""

    first = True

    def _build(self, role: str) -> nn.Module:
        if role in self.method.heads:
            with _explained(self.method, f"the head {role!r}"):
                return super()._build(role)
        root = self.method.root(role)
        return self._placed(root, built(self.job, root, self.number % SERVER))

    def _begin(self) -> dict[str, Any]:
        with _explained(self.method, "begin()"):
            return super()._begin()

    def train(self, step: Train, round: int, again: int = 0) -> None:
        rows, method = self.rows[step.split], self.method
        with _explained(method, f"a Train step of {' and '.join(step.roles)}"):
            trained = {role: self._part(role, step) for role in step.roles}
            return_checks.to_train(method, step, trained)
        if step.gradients:
            zeros = {r: {n: torch.zeros_like(w) for n, w in tree.items()} for r, tree in trained.items()}
            self.gradients = {**self.gradients, **zeros}
        self.steps = 1
        if not self.first:  # one training tells as much as two
            return
        where = f"the loss of {' and '.join(step.roles)}"
        with self._training(step, trained), _explained(method, where):
            taught = {role: self.outputs(role, rows) for role in self._still(step)}
            for role in step.roles:
                self.models[role].train()
            x, here = self.data.scale.inputs(self.data.x[rows]), torch.arange(len(rows))
            out = self._named(step, self._through(step.roles, x, taught))
            uniform = torch.rand(len(rows), method.drawn, generator=torch.Generator().manual_seed(0))
            batch = self._batch(rows, here, out, self._readable_weights(), uniform, self.job.training.of(step).lr, x)
            loss, _ = return_checks.loss_of(method, step, batch)
            self._check_gradient(loss, [w for tree in trained.values() for w in tree.values()])
            self._map(lambda batch: return_checks.loss_of(method, step, batch), batch)

    def _check_gradient(self, loss: Tensor, weights: Sequence[Tensor]) -> None:
        if not loss.requires_grad:
            raise FedekdError("it has no gradient: it does not depend on what is trained, or was detached")
        loss.backward()
        moved = any(w.grad is not None for w in weights)
        for w in itertools.chain.from_iterable(module.parameters() for module in self.models.values()):
            w.grad = None
        if not moved:
            raise FedekdError("it has no gradient with respect to what is trained: read the outputs of a trained role")

    def remember(self, step: Remember, round: int) -> None:
        with torch.no_grad(), _explained(self.method, "a Remember step"):
            batch = self._whole(step.split, step.roles, round)
            self.memory = {**self.memory, **return_checks.remembered(self.method, step, batch)}
            self._map(lambda batch: return_checks.remembered(self.method, step, batch), batch)

    def copy(self, step: Copy, round: int) -> None:
        with torch.no_grad(), _explained(self.method, f"the copy into {step.target!r}"):
            super().copy(step, round)
            if callable(step.source):
                self._map(step.source, self._whole(None, (), round))

    def upload(self, step: Exchange, round: int) -> dict[str, Tensor]:
        found = super().upload(step, round)
        send = step.send
        if send is not None:
            with torch.no_grad():
                self._map(lambda batch: dict(send(batch)), self._whole(step.split, step.roles, round))
        return found

    @torch.no_grad()
    def check_answer(self) -> None:
        rows, outputs = self.rows["test"], self.job.federation.dataset.outputs
        wanted = (len(rows), outputs) if self.task.name == "classification" else (len(rows),)
        for module in self.models.values():
            module.eval()
        with _explained(self.method, "predict"):
            x, here = self.data.scale.inputs(self.data.x[rows]), torch.arange(len(rows))
            out = self._through([role for role in self.method.answers if role in self.models], x, {})
            uniform, lr = torch.zeros(len(rows), self.method.uniforms), self.job.training.lr
            batch = self._batch(rows, here, out, self._readable_weights(), uniform, lr, x, blind=True)
            found = self.method.predict(batch)
            if not isinstance(found, Tensor) or found.shape != wanted:
                raise FedekdError(
                    f"it gives {return_checks.kind(found)} for {len(rows)} rows; its shape must be {wanted}"
                )
            self._map(self.method.predict, batch)

    def _map(self, function: Callable[[Batch], Any], batch: Batch) -> None:
        """A stack of one: whether the function may be mapped over clients, as it is where models can be stacked."""
        if not self.method.stacks or not self.models:
            return
        skipped = ("task", "lr", "forward", "differentiate", "teaching", "split")
        seen = {n: v for n, v in vars(batch).items() if v is not None and n not in skipped}
        stack = map_tree(lambda t: t.detach()[None] if isinstance(t, Tensor) else t, seen)

        def one(seen: dict[str, Any]) -> Any:
            return function(replace(self._seen({"x": None, **seen}, batch.lr), differentiate=no_gradient))

        with self._still_buffers():
            vmap(one, randomness="different")(stack)

    @contextmanager
    def _still_buffers(self) -> Iterator[None]:
        """Modules with buffers not in training mode: a batch norm of one client alone cannot move its own in a map."""
        learning = [module for module in self.models.values() if module.training and buffered(module)]
        for module in learning:
            module.eval()
        yield
        for module in learning:
            module.train()


class _RehearsalServer(ServerClient, _RehearsalClient):
    """The server's training on public rows, as a blank client does it."""


# --- words ----------------------------------------------------------------------------------------------------


@contextmanager
def _explained(method: Method, where: str) -> Iterator[None]:
    """Turns whatever a method's function raises into one line that says where."""
    try:
        yield
    except FedekdError as error:
        if str(error).startswith(("method ", "the private model", "the proxy model")):
            raise
        raise return_checks.broken(method, where, line(error)) from None
    except Exception as error:  # a user's function may raise anything
        text = str(error)
        why = line(error)
        if "data-dependent" in text or ".item()" in text or "vmap: It looks like" in text:
            why = (
                "it cannot be mapped over clients: no `if`, .item() or float() on a tensor; use torch.where, or set "
                "`stacks = False`"
            )
        raise return_checks.broken(method, where, why) from None


def _sizes(message: Message) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in message.items()}


def _shapes(client: Client) -> dict[str, dict[str, tuple[int, ...]]]:
    return {role: _sizes(client.message(role)) for role in client.models}


# --- blank rows -----------------------------------------------------------------------------------------------


def _blank(job: Job, public: int) -> Federation:
    """Two clients with a few made-up rows: nothing of anyone's data is looked at, not even their scale."""
    federation = job.federation
    dataset = federation.dataset
    splits, start = list[Split](), 0
    for k in range(CLIENTS):
        cuts = np.cumsum([start, TRAINED + k, HELD + k, HELD + k])  # more at the second: no shape may depend on it
        splits.append(Split(*(np.arange(a, b) for a, b in itertools.pairwise(cuts))))
        start = int(cuts[-1])
    rows = start + public
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, *dataset.x.shape[1:])).astype(np.float32)
    y = draw.integers(0, dataset.outputs, rows) if dataset.task == "classification" else draw.normal(size=rows)
    blank = replace(dataset, x=x, y=y.astype(dataset.y.dtype), sites=None, site_names=(), groups=None, part=True)
    return replace(
        federation,
        dataset=blank,
        clients=tuple(splits),
        names=(*federation.names, "another")[:CLIENTS],
        public=np.arange(rows - public, rows),
        shift=np.zeros_like(federation.shift),
        gain=np.ones_like(federation.gain),
        target_mean=0.0,
        target_std=1.0,
    )
