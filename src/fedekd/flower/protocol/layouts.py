"""What an upload looks like before anybody has trained: the names, shapes and types that server and site agree on.

A model's are those of the module. What a method's ``send`` makes is found by having it made, from blank rows, by two
clients that differ only in how many rows they have: a shape that differs would tell the number of rows, or the rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedekd.engines import return_checks, step_checks
from fedekd.engines.client import Client
from fedekd.engines.job import Job, Rows
from fedekd.engines.server import server_facts
from fedekd.errors import FedekdError
from fedekd.exchange import Aggregator, Message, answer_of, exchanges
from fedekd.federation import Split
from fedekd.flower.protocol.visits import called, visits
from fedekd.methods.base import Exchange, Train
from fedekd.methods.batch import Batch

COUNTS = (5, 7)  # rows of each split at the two blank clients


def layouts(job: Job) -> dict[str, Message]:
    """By exchange with a ``send``: an example of what it makes. The job's rows are not looked at.

    Raises for steps that break the rules, such as one that asks for the test rows.
    """
    for round in range(job.training.rounds):
        step_checks.check_steps(job, step_checks.steps_of(job.method, round))
    step_checks.check_steps(job, [step for step, _ in return_checks.personal(job.method)])
    wanted = {name for name, step in exchanges(job.method, job.training.rounds).items() if step.send}
    if not wanted:
        return {}
    try:
        return _tried(job, wanted)
    except FedekdError:
        raise
    except Exception as error:  # a method may raise anything
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise FedekdError(f"method {job.method.name!r} cannot make what it sends from blank rows: {problem}") from None


def text(found: Mapping[str, Message]) -> str:
    """Layouts as one text, equal where they are equal."""
    plain = {
        name: {key: [str(t.dtype).removeprefix("torch."), list(t.shape)] for key, t in tree.items()}
        for name, tree in found.items()
    }
    return json.dumps(plain, sort_keys=True)


class _UntrainedClient(Client):
    """Does every step except for the training."""

    unseen: frozenset[str] = frozenset()
    """What is answered in the same message, and cannot be read before that."""

    def train(self, step: Train, round: int, again: int = 0) -> None:
        self.steps = 1
        if step.gradients:
            trained = {role: self._part(role, step) for role in step.roles}
            zeros = {r: {n: torch.zeros_like(w) for n, w in tree.items()} for r, tree in trained.items()}
            self.gradients = {**self.gradients, **zeros}

    def _batch(self, *given: Any, **more: Any) -> Batch:
        batch = super()._batch(*given, **more)
        for tree in (batch.received, batch.weights):
            for name in self.unseen & set(tree):
                del tree[name]  # type: ignore[attr-defined]
        return batch


def _tried(job: Job, wanted: set[str]) -> dict[str, Message]:
    clients = [_UntrainedClient(_blank(job, rows), 0) for rows in COUNTS]
    first = clients[0].job
    steps = exchanges(job.method, job.training.rounds)
    start = {name: clients[0].weights(s.target, s.part) for name, s in steps.items() if s.target}
    server = Aggregator(start, **{**server_facts(first, Rows.of(first)), "clients": len(clients)})
    found: dict[str, Message] = {}
    for visit in visits(job.method, job.training.rounds):
        for round, work, again in visit.work:
            for client in clients:
                client.perform(work, round, again)
        sent = {}
        for place, step in enumerate(visit.sends):
            before = visit.sends[:place]
            unseen = frozenset({one.name for one in before} | {one.target for one in before if one.target})
            sent[step.name] = [_sent(client, step, visit.round or 0, unseen) for client in clients]
            if step.name in wanted:
                found.setdefault(step.name, _same(job, step, sent[step.name]))
        if wanted <= set(found):
            break
        for step in visit.sends:
            answer = server.combine(step, sent[step.name], [1.0, 1.0], (0, 1), visit.round or 0)
            for place, client in enumerate(clients):
                client.receive(step, answer_of(answer, place, step.each))
    return found


def _blank(job: Job, rows: int) -> Job:
    """The job on rows of zeros; as many of them are public as there are in earnest."""
    federation, public = job.federation, len(job.federation.public)
    dataset, count = federation.dataset, 3 * rows + public
    y = np.arange(count) % dataset.outputs if dataset.task == "classification" else np.zeros(count)
    x = np.zeros((count, *dataset.x.shape[1:]), dataset.x.dtype)
    blank = replace(dataset, x=x, y=y.astype(dataset.y.dtype), sites=None, site_names=(), part=True)
    split = Split(*np.arange(3 * rows).reshape(3, rows))
    every = np.arange(3 * rows, count)
    own = replace(federation, dataset=blank, clients=(split,), names=federation.names[:1], public=every)
    return replace(job, federation=own, training=replace(job.training, device="cpu"))


def _sent(client: _UntrainedClient, step: Exchange, round: int, unseen: frozenset[str]) -> dict[str, Tensor]:
    client.unseen = unseen
    try:
        return client.upload(step, round)
    except FedekdError as error:
        if not unseen:
            raise
        raise FedekdError(
            f"method {client.method.name!r} makes {step.name!r} from an answer that comes in the same message "
            f"({error}); put a Remember step between the two exchanges"
        ) from None
    finally:
        client.unseen = frozenset()


def _same(job: Job, step: Exchange, sent: list[dict[str, Tensor]]) -> Message:
    one, other = ({name: (t.shape, t.dtype) for name, t in tree.items()} for tree in sent)
    if one != other:
        raise FedekdError(
            f"method {job.method.name!r} sends {called(step)} in a shape that depends on a client's number of rows; "
            "what is sent may not"
        )
    return {name: torch.zeros_like(t, memory_format=torch.contiguous_format) for name, t in sent[0].items()}
