"""A dry pass: a method's steps once on a few blank rows, before anything is trained.

It finds in one line what would end in a traceback later, in some engines only, or not at all: a step that names an
unknown role, a loss that is no scalar or has no gradient, control flow on a tensor, a model of the wrong width. It also
tells how many bytes every exchange costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedekd.data import Federation, Split
from fedekd.engines.client import Client, Rows, ServerClient, as_tensors, trainable
from fedekd.engines.job import Job
from fedekd.engines.serial import server_facts
from fedekd.engines.stackable import shape
from fedekd.errors import FedekdError
from fedekd.exchange import Aggregator, answer_of, exchanges, same_shapes, size
from fedekd.methods.base import SPLITS, Batch, Copy, Exchange, Method, Remember, Step, Train

CLIENTS, TRAINED, HELD = 2, 4, 3  # blank clients, and their rows for training and for each other split


_KNOWN: dict[Any, list[list[Cost]]] = {}


@dataclass(frozen=True)
class Cost:
    """Bytes that one client sends and receives in an exchange."""

    name: str
    up: int
    down: int


def rehearse(job: Job) -> list[list[Cost]]:
    """What each round exchanges. Raises a ``FedekdError`` of one line for a method or a model that breaks the rules.

    Runs that differ in data or seed alone are rehearsed once.
    """
    dataset, public = job.federation.dataset, len(job.federation.public)
    about = (dataset.x.shape[1:], dataset.outputs, dataset.task, public, job.federation.public_labelled)
    key = (type(job.method), job.method, job.private, job.proxy, job.training.rounds, about)
    try:
        if key not in _KNOWN:
            _KNOWN[key] = _rehearse(job)
        return _KNOWN[key]
    except TypeError:  # a method or a model of the user's that cannot be a key
        return _rehearse(job)


def _rehearse(job: Job) -> list[list[Cost]]:
    method = job.method
    method.check(job.task.name)
    rounds = [_steps(method, round) for round in range(job.training.rounds)]
    for steps in rounds:
        _check_names(method, steps)
    _check_public(job)
    seen: dict[Any, list[Cost]] = {}
    few = _Rehearsal(job, 2)
    more = _Rehearsal(job, 3) if method.public else None
    for round, steps in enumerate(rounds):
        key = tuple(shape(step) for step in steps)
        if key not in seen:
            seen[key] = few.round(round, steps)
            if more:  # what is sent of public rows grows with them
                times = len(job.federation.public) - 2
                pairs = zip(seen[key], more.round(round, steps), strict=True)
                seen[key] = [
                    Cost(a.name, a.up + times * (b.up - a.up), a.down + times * (b.down - a.down)) for a, b in pairs
                ]
    few.answer()
    return [seen[tuple(shape(step) for step in steps)] for steps in rounds]


def traffic(job: Job) -> int:
    """Bytes that all clients send and receive in the whole run, if none is absent."""
    each = sum(cost.up + cost.down for costs in rehearse(job) for cost in costs)
    return round(each * len(job.federation.clients) * job.training.participation)


# --- what can be seen without running anything ---------------------------------------------------------------


def _steps(method: Method, round: int) -> Sequence[Step]:
    with _explained(method, f"steps({round})"):
        steps = method.steps(round)
    kinds = (Train, Remember, Copy, Exchange)
    if not isinstance(steps, (tuple, list)) or not all(isinstance(step, kinds) for step in steps):
        raise FedekdError(
            f"method {method.name!r}: steps({round}) gave {_kind(steps)}; "
            "return a tuple of Train, Remember, Copy and Exchange"
        )
    return steps


def _check_names(method: Method, steps: Sequence[Step]) -> None:
    known = set(method.roles)
    for what in ("like", "heads"):
        for role, other in getattr(method, what).items():
            if role not in known or other not in known:
                raise FedekdError(
                    f"method {method.name!r}: `{what}` names {role!r} and {other!r}; put both into `roles`"
                )
    for step in steps:
        named: list[str | None] = []
        if isinstance(step, Train):
            named = [*step.roles, *step.frozen]
            if not step.roles or set(step.roles) & set(step.frozen):
                raise FedekdError(f"method {method.name!r}: a Train step needs roles that it does not freeze as well")
        elif isinstance(step, Remember):
            named = list(step.roles)
        elif isinstance(step, Copy):
            named = [step.target, *([step.source] if isinstance(step.source, str) else [])]
        else:
            named = [*step.roles, step.target]
        for role in named:
            if role is not None and role not in known:
                raise FedekdError(
                    f"method {method.name!r}: a {type(step).__name__} step names the role {role!r}, which is not among "
                    f"its roles {', '.join(sorted(known)) or 'none'}"
                )
        split = getattr(step, "split", None)
        if split is not None and split not in SPLITS:
            raise FedekdError(
                f"method {method.name!r}: a step asks for the split {split!r}; there are {', '.join(SPLITS)}"
            )


def _check_public(job: Job) -> None:
    needs, federation = job.method.public, job.federation
    if needs and not len(federation.public):
        raise FedekdError(
            f"method {job.method.name!r} needs public rows, which server and clients all hold: give a share to set "
            "aside, such as --public 0.1, or a file"
        )
    if needs == "labels" and not federation.public_labelled:
        raise FedekdError(f"method {job.method.name!r} needs public rows with labels, and these have none")


# --- what takes a small batch --------------------------------------------------------------------------------


class _Rehearsal:
    def __init__(self, job: Job, public: int) -> None:
        self.job = replace(job, federation=_blank(job.federation, public), training=_on_cpu(job))
        self.method = job.method
        data = Rows.of(self.job)
        self.clients = [_Blank(self.job, k, rows=data) for k in range(CLIENTS)]
        for client in self.clients:
            client.check_models()
        start = {}
        for name, step in exchanges(self.method, job.training.rounds).items():
            if step.send is None:
                names = job.federation.names[:CLIENTS]
                same_shapes([client.message(name) for client in self.clients], name, names)
            if step.target is not None:
                start[name] = self.clients[0].weights(step.target, step.part)
        self.server = Aggregator(start, **server_facts(self.job, data))
        self.data = data

    def round(self, round: int, steps: Sequence[Step]) -> list[Cost]:
        costs = []
        for step in steps:
            if isinstance(step, Exchange):
                costs.append(self._exchange(step, round))
            else:
                for client in self.clients:
                    client.perform(step, round)
        return costs

    def _exchange(self, step: Exchange, round: int) -> Cost:
        messages = []
        for client in self.clients:
            with _explained(self.method, f"what it sends as {step.name!r}"):
                messages.append(client.upload(step, round))
        if step.send is not None and any(
            {n: t.shape for n, t in m.items()} != {n: t.shape for n, t in messages[0].items()} for m in messages
        ):
            raise FedekdError(
                f"method {self.method.name!r}: the shape of what it sends as {step.name!r} depends on the client's rows"
            )
        with _explained(self.method, f"how it combines {step.name!r}"):
            answer = self.server.combine(step, messages, [1.0] * len(messages), range(len(messages)), round)
            if step.refine:
                server = _BlankServer(self.job, self.data)
                server.refined(step, messages, answer, round)
            one = answer_of(answer, 0, step.each)
            for place, client in enumerate(self.clients):
                client.receive(step, answer_of(answer, place, step.each))
        return Cost(step.name, size(messages[0]), size(one))

    def answer(self) -> None:
        """What is done before answering, and the answer."""
        client, method = self.clients[0], self.method
        with _explained(method, "personalise()"):
            steps = method.personalise()
        _check_names(method, steps)
        with client.personalised(), _explained(method, "predict"):
            rows, outputs = client.rows["test"], client.job.federation.dataset.outputs
            found = client.predictions(rows)
            wanted = (len(rows), outputs) if client.task.name == "classification" else (len(rows),)
            if not isinstance(found, Tensor) or found.shape != wanted:
                raise FedekdError(f"it gives {_kind(found)} for {len(rows)} rows; it must give {wanted}")


class _Blank(Client):
    """A client whose training is one small batch that moves nothing."""

    def check_models(self) -> None:
        for role, module in self.models.items():
            if role in self.method.heads:
                continue
            check_model(role, module, self.data.x.shape[1:], self.job.federation.dataset.outputs)

    def train(self, step: Train, round: int, again: int = 0) -> None:
        rows = self.rows[step.split]
        trained = {role: self._part(role, step) for role in step.roles}
        taught = {role: self.outputs(role, rows) for role in step.frozen}
        with self._training(step, trained), _explained(self.method, f"the loss of {' and '.join(step.roles)}"):
            x, here = self.data.scale.inputs(self.data.x[rows]), torch.arange(len(rows))
            out = self._through(step.roles, x, taught)
            uniform = torch.rand(len(rows), self.method.draws, generator=torch.Generator().manual_seed(0))
            batch = self._batch(rows, here, out, self._anchored(), uniform, self.job.training.of(step).lr, x)
            self._check_loss(step, step.loss(batch), trained)
            if self.method.stacks:
                self._map(step.loss, batch)
        if step.gradients:
            self.gradients = {r: {n: torch.zeros_like(w) for n, w in tree.items()} for r, tree in trained.items()}

    def _check_loss(self, step: Train, result: Any, trained: Mapping[str, Mapping[str, Tensor]]) -> None:
        loss = result[0] if isinstance(result, tuple) and result else result
        if not isinstance(loss, Tensor):
            raise FedekdError(f"it gives {_kind(loss)}, not a tensor")
        if loss.dim():
            raise FedekdError(f"it has the shape {tuple(loss.shape)}; take its mean with batch.mean")
        weights = [w for tree in trained.values() for w in tree.values()]
        if not weights:
            return
        if not loss.requires_grad:
            raise FedekdError("it has no gradient: it does not depend on what is trained, or was detached")
        loss.backward()
        moved = any(w.grad is not None for w in weights)
        for w in weights:
            w.grad = None
        if not moved:
            raise FedekdError("it has no gradient with respect to what is trained")

    def remember(self, step: Remember, round: int) -> None:
        with torch.no_grad(), _explained(self.method, "a Remember step"):
            batch = self._whole(step.split, step.roles, round)
            found = step.compute(batch)
            if not isinstance(found, dict):
                raise FedekdError(f"it gives {_kind(found)}; return a dict of tensors")
            if self.method.stacks:
                self._map(step.compute, batch)
            self.memory = {**self.memory, **as_tensors(found, self.device)}

    def copy(self, step: Copy, round: int) -> None:
        with _explained(self.method, f"the copy into {step.target!r}"):
            super().copy(step, round)

    def upload(self, step: Exchange, round: int) -> dict[str, Tensor]:
        if step.send is None:
            return super().upload(step, round)
        with torch.no_grad():
            batch = self._whole(step.split, step.roles, round)
            found = step.send(batch)
            if not isinstance(found, Mapping) or not all(isinstance(t, Tensor) for t in found.values()):
                raise FedekdError(f"it is {_kind(found)}; return a dict of tensors")
            if self.method.stacks:
                self._map(lambda batch: dict(step.send(batch)) if step.send else {}, batch)
            return {n: t.detach() for n, t in found.items()}

    def _map(self, function: Callable[[Batch], Any], batch: Batch) -> None:
        """A stack of one: whether the function may be mapped over clients."""
        skipped = ("task", "lr", "forward")
        seen = {n: v for n, v in vars(batch).items() if v is not None and n not in skipped}
        seen = {n: _plain(v) for n, v in seen.items()}
        stack = pytree.tree_map(lambda t: t.detach()[None] if isinstance(t, Tensor) else t, seen)

        def one(seen: dict[str, Any]) -> Any:
            result = function(self._seen({"x": None, **seen}, batch.lr))
            return result[0] if isinstance(result, tuple) else result

        vmap(one)(stack)


class _BlankServer(ServerClient, _Blank):
    """The server's training on public rows, as a blank client does it."""


def check_model(role: str, module: torch.nn.Module, wanted: Sequence[int], outputs: int) -> None:
    """Two blank rows through a model: whether it takes them must not depend on anyone's rows."""
    if not trainable(module):
        raise FedekdError(f"the {role} model has no weights to train")
    shape, device = tuple(wanted), next(module.parameters()).device
    training = module.training
    try:
        with torch.no_grad():
            given = module.eval()(torch.zeros(2, *shape, device=device))
    except Exception as error:  # a user's model may raise anything
        raise FedekdError(f"the {role} model does not take rows of shape {shape}: {_line(error)}") from None
    finally:
        module.train(training)
    if not isinstance(given, Tensor):
        raise FedekdError(f"the {role} model gives {_kind(given)}, not a tensor")
    if given.shape != (2, outputs) and not (outputs == 1 and given.shape == (2,)):
        raise FedekdError(f"the {role} model gives {tuple(given.shape)} for two rows; it must give (2, {outputs})")


class _explained:
    """Turns whatever a method's function raises into one line that says where."""

    def __init__(self, method: Method, where: str) -> None:
        self.method, self.where = method, where

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or not isinstance(error, Exception):
            return
        if isinstance(error, FedekdError) and str(error).startswith("method "):
            return
        why = _line(error)
        if "vmap" in why or "data-dependent" in why or "functorch" in str(error):
            why = (
                "it cannot be mapped over clients: no `if`, .item() or float() on a tensor; use torch.where, or set "
                "`stacks = False`"
            )
        raise FedekdError(f"method {self.method.name!r}, {self.where}: {why}") from None


def _line(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return text if isinstance(error, FedekdError) else f"{type(error).__name__}: {text}"[:200]


def _kind(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"


def _plain(value: Any) -> Any:
    """Dicts of one kind, as torch.func wants them."""
    return {key: _plain(v) for key, v in value.items()} if isinstance(value, Mapping) else value


def _on_cpu(job: Job) -> Any:
    return replace(job.training, device="cpu", precision="fp32", batch_size=TRAINED, participation=1.0)


def _blank(federation: Federation, public: int) -> Federation:
    """Two clients with a few made-up rows: nothing of anyone's data is looked at."""
    dataset = federation.dataset
    rows, splits, start = CLIENTS * (TRAINED + 1 + 2 * HELD) + public, [], 0
    for k in range(CLIENTS):
        cuts = np.cumsum([start, TRAINED + k, HELD, HELD])  # one more row at the second: no shape may depend on it
        splits.append(Split(*(np.arange(a, b) for a, b in itertools.pairwise(cuts))))
        start = int(cuts[-1])
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, *dataset.x.shape[1:])).astype(np.float32)
    y = draw.integers(0, dataset.outputs, rows) if dataset.task == "classification" else draw.normal(size=rows)
    blank = replace(dataset, x=x, y=y.astype(dataset.y.dtype), sites=None, site_names=(), part=True)
    return replace(
        federation, dataset=blank, clients=tuple(splits), names=(*federation.names, "")[:CLIENTS],
        public=np.arange(rows - public, rows),
    )  # fmt: skip
