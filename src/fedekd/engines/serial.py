"""The serial engine: client by client, with any module, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

from fedekd.engines import step_checks
from fedekd.engines.client import Client
from fedekd.engines.client_models import ClientModels
from fedekd.engines.clients import Clients
from fedekd.engines.freed_memory import keep_freed_memory
from fedekd.engines.job import BINS, Advance, Job, Measured, Rows, trust_of_round
from fedekd.engines.schedule import numbered, participants
from fedekd.engines.server import ServerClient, server_facts
from fedekd.exchange import Aggregator, Door, Message, answer_of, averaging_weights, exchanges, same_shapes
from fedekd.methods.base import Exchange, Train
from fedekd.trees import copied, moved

T = TypeVar("T")


class Serial:
    """One job, round by round. ``state`` and ``restore`` carry it over an interruption to the bit.

    What it tells (``evaluate``, ``doors``, ``trust``) are lists over jobs, as in the stacked engine.
    """

    def __init__(
        self, job: Job, advance: Advance | None = None, *, first: int = 0, rows: Rows | None = None
    ) -> None:  # fmt: skip
        """``first``: the number of the first client in the random streams, at a site that is one of many."""
        self.job, self.method = job, job.method
        self.advance = advance or (lambda round, client, samples: None)
        self.method.check(job.task.name)
        step_checks.check_public(job)
        self.data = rows or Rows.of(job)
        if self.data.x.device.type == "cpu":
            keep_freed_memory()
        self.clients = Clients(job, first, self.data)
        self.exchanges = exchanges(self.method, job.training.rounds)
        self.door = Door(frozenset(self.exchanges))
        self.doors = [self.door]
        start, self.facts = self._start(), server_facts(job, self.data)
        self.alone = self.method.twin == "alone"
        """Whether every client is a federation of its own, with the server of its number."""
        self.start = start if self.alone else {}
        self.servers: dict[int, Aggregator] = {}
        self.server = Aggregator(start, **self.facts)
        self.latest: dict[str, Any] = {}  # by exchange: its last answer to all, for clients that were absent
        self.missed: dict[str, set[int]] = {}  # by exchange: who does not have it
        self.trust: list[list[dict[str, Any]]] = [[]]

    def _start(self) -> dict[str, Message]:
        """By exchange whose answer goes into a model: what all begin with. Averaged models must be of one shape."""
        names, first, start = self.job.federation.names, self.clients.first, dict[str, Message]()
        firsts = self.job.first_clients(first)
        one = self._begun(0)
        for name, step in self.exchanges.items():
            if step.send is None and len(firsts) > 1:
                same_shapes((self._begun(k).message(name) for k in firsts), name, [names[k] for k in firsts])
            if step.target is not None:
                start[name] = one.weights(step.target, step.part)
        return start

    def _begun(self, k: int) -> ClientModels:
        return ClientModels(self.job, self.clients.first + k, self.data)

    @property
    def round_number(self) -> int:
        """How many rounds are done."""
        return self.clients.round

    def round(self) -> None:
        self.door.log.clear()
        here = participants(self.job.seed, self.round_number, len(self.clients), self.job.participation)
        for k in here:
            self.clients[k].trust.clear()
        self._catch_up(here)
        for step, again in numbered(self.method.steps(self.round_number)):
            if isinstance(step, Exchange):
                self._exchange(step, here)
                continue
            for k in here:
                self.clients[k].perform(step, self.round_number, again)
                if isinstance(step, Train):
                    samples = len(self.clients[k].rows[step.split]) * self.job.training.of(step).epochs
                    self.advance(self.round_number, self.clients[k].name, samples)
        rows = torch.zeros(len(self.clients), BINS + 2, dtype=torch.float64)
        rows[here] = torch.cat([self.clients[k].trust.rows() for k in here])
        self.trust[0] += trust_of_round(self.round_number, rows)
        self.clients.after(self.round_number + 1)

    def _catch_up(self, here: Sequence[int]) -> None:
        """Whoever was absent begins with the newest answers."""
        for name, behind in self.missed.items():
            for k in behind & set(here):
                self.clients[k].receive(self.exchanges[name], self.latest[name])
                self.door.down(self.latest[name], 1)
            behind -= set(here)

    def _exchange(self, step: Exchange, here: Sequence[int]) -> None:
        if self.alone:
            for k in here:
                upload = self.clients[k].upload(step, self.round_number)
                answer = self._answer(self._server_of(k), step, [upload], [k])
                self.clients[k].receive(step, answer_of(answer, 0, step.each))
            return
        clients = [self.clients[k] for k in here]
        messages = []
        for client in clients:
            upload = {n: t.unsqueeze(0) for n, t in client.upload(step, self.round_number).items()}
            messages.append({n: t[0] for n, t in self.door.up(step.name, [client.name], upload).items()})
        answer = self._answer(self.server, step, messages, here)
        for place, client in enumerate(clients):
            one = answer_of(answer, place, step.each)
            self.door.down(one, 1)
            client.receive(step, one)
        if not step.each:
            self.latest[step.name] = answer
            self.missed[step.name] = set(range(len(self.clients))) - set(here)

    def _server_of(self, k: int) -> Aggregator:
        if k not in self.servers:
            self.servers[k] = Aggregator(self.start, **self.facts | {"clients": 1})
        return self.servers[k]

    def _answer(self, server: Aggregator, step: Exchange, messages: Sequence[Message], here: Sequence[int]) -> Any:
        sizes = [len(self.clients[k].rows["train"]) for k in here]
        weights = averaging_weights(self.job.training.weighting, sizes)
        numbers = [self.clients[k].number for k in here]
        answer = server.combine(step, messages, weights, numbers, self.round_number)
        if step.refine:
            answer = ServerClient(self.job, self.data).refined(step, messages, answer, self.round_number)
            server.sent[step.name] = {n: answer[n] for n in server.sent[step.name]}
        return answer

    def personalised(self) -> AbstractContextManager[None]:
        """All clients as they answer; what is measured and kept inside is of one and the same personalisation."""
        return self.clients.personalised()

    def evaluate(self, split: str = "test") -> list[list[float]]:
        """The task's metric per job and client."""
        return [self._of_each(range(len(self.clients)), lambda client: client.score(split))]

    def measure(self, training_rows: int = 0) -> list[list[Measured]]:
        """The same on test and validation rows, with what it is made of; the loss on so many training rows besides."""
        return [self._of_each(range(len(self.clients)), lambda client: client.measure(training_rows))]

    def clients_of(self, job: int) -> list[Client]:
        return list(self.clients)

    def states_of(self, job: int, positions: Sequence[int]) -> list[dict[str, Any]]:
        """Copies of what these clients are now, for ``Client.restore``."""
        return self._of_each(positions, lambda client: copied(client.state()))

    def _of_each(self, positions: Iterable[int], ask: Callable[[Client], T]) -> list[T]:
        found = []
        for k in positions:
            with self.clients.seen(k) as client:
                found.append(ask(client))
        return found

    def state(self) -> dict[str, Any]:
        """Clients and servers that are still as they began are None."""
        made, servers, count = self.clients.made, self.servers, len(self.clients)
        return {
            "round": self.round_number,
            "clients": [made[k].state() if k in made else None for k in range(count)],
            "server": self.server.state(),
            "servers": [servers[k].state() if k in servers else None for k in range(count)] if self.alone else [],
            "latest": self.latest if any(self.missed.values()) else {},
            "missed": {name: sorted(behind) for name, behind in self.missed.items()},
            "bytes": [self.door.bytes_up, self.door.bytes_down],
            "trust": self.trust,
        }

    def restore(self, state: dict[str, Any]) -> None:
        device = self.data.x.device
        if len(state["clients"]) != len(self.clients):
            raise ValueError("the checkpoint has other clients")
        for k, saved in enumerate(state["clients"]):
            if saved is None:
                self.clients.made.pop(k, None)
            else:
                self.clients[k].restore(saved)
        self.server.restore(moved(state["server"], device))
        self.servers.clear()
        for k, saved in enumerate(state.get("servers", [])):
            if saved is not None:
                self._server_of(k).restore(moved(saved, device))
        self.latest = moved(state["latest"], device)
        self.missed = {name: set(behind) for name, behind in state["missed"].items()}
        self.trust = state["trust"]
        self.clients.after(state["round"])
        self.door.bytes_up, self.door.bytes_down = state["bytes"]
