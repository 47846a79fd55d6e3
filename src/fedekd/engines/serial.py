"""The serial engine: client by client, with any module, on a CPU or a GPU."""

from __future__ import annotations

from typing import Any

import torch

from fedekd.engines.client import Client, Rows, moved
from fedekd.engines.job import Advance, Job, trust_of_round
from fedekd.exchange import Door, Server, averaging_weights, same_shapes, shared_roles
from fedekd.methods.base import Exchange, Remember, Train


class Serial:
    """One job, round by round. ``state`` and ``restore`` carry it over an interruption to the bit.

    What it tells (``evaluate``, ``doors``, ``trust``) are lists over jobs, as in the stacked engine.
    """

    def __init__(self, job: Job, advance: Advance | None = None) -> None:
        self.job, self.method = job, job.method
        self.advance = advance or (lambda round, client, samples: None)
        self.method.check(job.task.name)
        rows = Rows.of(job)
        self.clients = [Client(job, k, rows=rows) for k in range(len(job.federation.clients))]
        self.door = Door(shared_roles(self.method, job.training.rounds))
        self.doors = [self.door]
        for role in self.door.roles:
            same_shapes([client.message(role) for client in self.clients], role, job.federation.names)
        self.server = Server({role: self.clients[0].weights(role) for role in self.door.roles})
        self.round_number = 0
        self.trust: list[list[dict[str, Any]]] = [[]]

    def round(self) -> None:
        self.door.log.clear()
        for client in self.clients:
            client.trust.clear()
        for step in self.method.steps(self.round_number):
            if isinstance(step, Train):
                for client in self.clients:
                    client.train(step, self.round_number)
                    samples = len(client.rows["train"]) * self.job.training.epochs
                    self.advance(self.round_number, client.name, samples)
            elif isinstance(step, Remember):
                for client in self.clients:
                    client.remember(step, self.round_number)
            else:
                self._exchange(step)
        self.trust[0] += trust_of_round(self.round_number, torch.cat([c.trust.rows() for c in self.clients]))
        self.round_number += 1

    def _exchange(self, step: Exchange) -> None:
        sizes = [len(client.rows["train"]) for client in self.clients]
        messages = [self.door.up(step.role, client.name, client.message(step.role)) for client in self.clients]
        answer = self.server.combine(step, messages, averaging_weights(self.job.training.weighting, sizes))
        self.door.down(answer, len(self.clients))
        for client in self.clients:
            client.receive(step.role, answer)

    def evaluate(self, split: str = "test") -> list[list[float]]:
        """The task's metric per job and client."""
        return [[client.score(split) for client in self.clients]]

    def clients_of(self, job: int) -> list[Client]:
        return self.clients

    def state(self) -> dict[str, Any]:
        return {
            "round": self.round_number,
            "clients": [client.state() for client in self.clients],
            "server": self.server.state(),
            "bytes": [self.door.bytes_up, self.door.bytes_down],
            "trust": self.trust,
        }

    def restore(self, state: dict[str, Any]) -> None:
        for client, saved in zip(self.clients, state["clients"], strict=True):
            client.restore(saved)
        self.server.restore(moved(state["server"], self.clients[0].device))
        self.round_number, self.trust = state["round"], state["trust"]
        self.door.bytes_up, self.door.bytes_down = state["bytes"]
