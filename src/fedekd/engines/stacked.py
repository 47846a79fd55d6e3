"""The stacked engine: rounds and answers of many jobs whose clients are stacks, one for each architecture.

Jobs in a stack share the data, the factories of models, the training settings and the shape of their steps; seeds,
alphas, float hyper-parameters and variants of a method may differ. The method files are the serial engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedekd.engines import return_checks
from fedekd.engines.client import Client
from fedekd.engines.client_stack import ClientStack
from fedekd.engines.job import (
    BINS,
    Advance,
    Job,
    Measured,
    Rows,
    pick_device,
    precision,
    samples,
    trust_of_round,
)
from fedekd.engines.schedule import numbered, participants
from fedekd.engines.stack import StackMember, settle
from fedekd.engines.stackable import check, kinds
from fedekd.engines.stacked_exchange import StackedExchange
from fedekd.exchange import exchanges
from fedekd.methods.base import Exchange
from fedekd.trees import copied

T = TypeVar("T")


class Stacked:
    """Several jobs, round by round; the interface is the serial engine's, with lists over jobs."""

    def __init__(self, jobs: Sequence[Job], advance: Advance | None = None, **options: Any) -> None:
        """``options`` are those of ``Stack``."""
        check(jobs)
        self.jobs, first = list(jobs), jobs[0]
        self.method, self.training, self.task = first.method, first.training, first.task
        self.device, self.options = pick_device(first.training.device), options
        self.members = [
            StackMember(j, k, name, one.train, one.val, one.test, job.federation.public)
            for j, job in enumerate(jobs)
            for k, (name, one) in enumerate(zip(job.federation.names, job.federation.clients, strict=True))
        ]
        self.by_job = [[i for i, m in enumerate(self.members) if m.job == j] for j in range(len(jobs))]
        self.exchanges = exchanges(self.method, self.training.rounds)
        self.kinds = kinds(jobs, [(m.job, m.client) for m in self.members])
        """The members of each stack."""
        self.x, self.y = samples(first.federation.dataset, self.device)
        self.stacks = [
            ClientStack(jobs, [self.members[i] for i in own], advance, data=(self.x, self.y), **options)
            for own in self.kinds
        ]
        self.unsettled: list[Callable[[], None]] = []
        for stack in self.stacks:
            stack.unsettled = self.unsettled
        self.place = {
            i: (stack, k) for stack, own in zip(self.stacks, self.kinds, strict=True) for k, i in enumerate(own)
        }
        self.round_number = 0
        self.exchange = StackedExchange(self)
        self.doors = self.exchange.doors
        with precision(self.training.precision, self.device):
            for stack in self.stacks:
                stack.forward.try_mapping()
        self.trust: list[list[dict[str, Any]]] = [[] for _ in jobs]
        self.personal = False
        """Whether the members are as they answer, after ``personalise``."""

    def rows(self, job: Job) -> Rows:
        return Rows.of(job, (self.x, self.y))

    def by_stack(self, here: Sequence[int]) -> Iterator[tuple[ClientStack, list[int], list[int]]]:
        """The stacks of these members: their places there, and their places in ``here``."""
        found: dict[int, tuple[ClientStack, list[int], list[int]]] = {}
        for at, i in enumerate(here):
            stack, k = self.place[i]
            _, places, order = found.setdefault(id(stack), (stack, [], []))
            places.append(k)
            order.append(at)
        return iter(found.values())

    # --- a round -----------------------------------------------------------------------------------------

    def round(self) -> None:
        for door in self.doors:
            door.log.clear()
        here = self._present(self.round_number)
        for stack in self.stacks:
            stack.trust_log.clear()
            stack.round_number = self.round_number
        with precision(self.training.precision, self.device), self._at_work(here):
            self.exchange.catch_up(here)
            for index, (step, again) in enumerate(numbered(self.method.steps(self.round_number))):
                if isinstance(step, Exchange):
                    self.exchange.perform(index, step, here)
                    continue
                for stack, places, _ in self.by_stack(here):
                    stack.perform(("step", index), step, places, again)
        for stack in self.stacks:
            stack.draw_ahead()  # before anything waits for the device
        settle(self.unsettled)
        rows = torch.zeros(len(self.members), BINS + 2, dtype=torch.float64)
        for stack, own in zip(self.stacks, self.kinds, strict=True):
            rows[own] = stack.trust_log.rows()
        if rows.any():
            for own, history in zip(self.by_job, self.trust, strict=True):
                history += trust_of_round(self.round_number, rows[own])
        self.round_number += 1
        for stack in self.stacks:
            stack.round_number = self.round_number

    def _present(self, round: int) -> list[int]:
        here = []
        for job, members in zip(self.jobs, self.by_job, strict=True):
            taking = participants(job.seed, round, len(members), job.participation)
            here += [members[k] for k in taking]
        return here

    @contextmanager
    def _at_work(self, here: Sequence[int]) -> Iterator[None]:
        """Each stack knows meanwhile who takes part, and who does in the next round."""
        last = self.round_number + 1 >= self.training.rounds
        then = [] if last else self._present(self.round_number + 1)
        mine, next_ = ({id(stack): places for stack, places, _ in self.by_stack(own)} for own in (here, then))
        with ExitStack() as every:
            for stack in self.stacks:
                stack.next_round = next_.get(id(stack), [])
                every.enter_context(stack.at_work(mine.get(id(stack), []), stack.next_round))
            yield

    # --- answers -----------------------------------------------------------------------------------------

    @contextmanager
    def personalised(self) -> Iterator[None]:
        """The clients as they answer: after the method's ``personalise``, which is undone in the end."""
        if self.personal or not return_checks.personal(self.method):
            yield
            return
        with ExitStack() as every:
            with precision(self.training.precision, self.device):
                for stack in self.stacks:
                    every.enter_context(stack.personalised())
            self.personal = True
            try:
                yield
            finally:
                self.personal = False

    def evaluate(self, split: str = "test") -> list[list[float]]:
        """The task's metric per job and client."""
        with precision(self.training.precision, self.device), self.personalised():
            found = self._answered(split)
        return self._by_job([self.task.value(errors) for errors, *_ in found])

    def measure(self, training_rows: int = 0) -> list[list[Measured]]:
        """The same on test and validation rows, with what it is made of; of training rows it tells nothing."""
        with precision(self.training.precision, self.device), self.personalised():
            test, val = self._answered("test"), self._answered("val")

        def answers(i: int) -> Callable[[str], np.ndarray]:
            pairs, job = {"test": test[i][2], "val": val[i][2]}, self.jobs[self.members[i].job]
            return lambda split: job.task.answers(*pairs[split]()).cpu().numpy()

        return self._by_job(
            [
                Measured.of_rows(self.task, test[i][0], val[i][0], val[i][1], answers(i))
                for i in range(len(self.members))
            ]
        )

    def _by_job(self, of_members: Sequence[T]) -> list[list[T]]:
        return [[of_members[i] for i in own] for own in self.by_job]

    def _answered(self, split: str) -> list[tuple[np.ndarray, np.ndarray, Callable[[], tuple[Tensor, Tensor]]]]:
        """By member: see ``ClientStack.answered``."""
        found = {
            own[k]: tuple(rest)
            for stack, own in zip(self.stacks, self.kinds, strict=True)
            for k, *rest in stack.answered(split)
        }
        return [found[i] for i in range(len(self.members))]  # type: ignore[misc]

    def clients_of(self, job: int) -> list[Client]:
        """A job's clients with their models as they are now, one by one; inside ``personalised`` as they answer."""
        one, clients = self.jobs[job], []
        rows = self.rows(one)
        for i in self.by_job[job]:
            stack, k = self.place[i]
            client = Client(one, self.members[i].client, rows=rows)
            client.restore(stack.state_of(k))
            client.personal = self.personal
            clients.append(client)
        return clients

    def states_of(self, job: int, positions: Sequence[int]) -> list[dict[str, Any]]:
        """Copies of what these clients of a job are now, for ``Client.restore``."""
        placed = [self.place[self.by_job[job][k]] for k in positions]
        return [copied(stack.state_of(k)) for stack, k in placed]

    # --- interruption ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "round": self.round_number,
            "stacks": [stack.state() for stack in self.stacks],
            **self.exchange.state(),
            "trust": self.trust,
        }

    def restore(self, state: dict[str, Any]) -> None:
        for stack, saved in zip(self.stacks, state["stacks"], strict=True):
            stack.restore(saved)
            stack.round_number = state["round"]
        self.round_number, self.trust = state["round"], state["trust"]
        self.exchange.restore(state)
