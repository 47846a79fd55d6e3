"""The stacked engine: rounds, exchanges and answers of many jobs whose clients are stacks, one for each architecture.

Jobs in a stack share the data, the factories of models, the training settings and the shape of their steps; seeds,
alphas, float hyper-parameters and variants of a method may differ. The method files are the serial engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedekd.engines import return_checks
from fedekd.engines.client import Client
from fedekd.engines.client_stack import ClientStack
from fedekd.engines.forward import RowTable
from fedekd.engines.job import (
    BINS,
    SERVER,
    Advance,
    Job,
    Measured,
    Rows,
    Scale,
    pick_device,
    precision,
    samples,
    trust_of_round,
)
from fedekd.engines.on_device import on_device
from fedekd.engines.schedule import numbered, participants
from fedekd.engines.server import server_facts
from fedekd.engines.stack import CHUNK, SHRINK_STAGES, Stack, StackMember, settle
from fedekd.engines.stackable import check, kinds
from fedekd.exchange import Aggregator, Door, answer_of, averaging_weights, exchanges, same_shapes, shares, up_together
from fedekd.methods.base import Exchange
from fedekd.trees import copied, moved

__all__ = ["CHUNK", "SHRINK_STAGES", "StackMember", "Stacked"]

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
        self._check_shapes()
        with precision(self.training.precision, self.device):
            for stack in self.stacks:
                stack.forward.try_mapping()
        self.doors = [Door(frozenset(self.exchanges)) for _ in jobs]
        self.alone = self.method.twin == "alone"
        """Whether every member is a federation of its own, with a server of its own."""
        owners = [member.job for member in self.members] if self.alone else range(len(jobs))
        self.servers = [self._aggregator(j) for j in owners]
        self.server_stack: Stack | None = None  # the servers, where they train models themselves
        self.latest: dict[str, list[Any]] = {}  # by exchange and job: the last answer to all, for whoever was absent
        self.missed: dict[str, list[int]] = {}  # by exchange: the members that do not have it
        self.trust: list[list[dict[str, Any]]] = [[] for _ in jobs]
        self.round_number = 0
        self.personal = False
        """Whether the members are as they answer, after ``personalise``."""

    def _check_shapes(self) -> None:
        for name, step in self.exchanges.items():
            if step.send is None and len(self.stacks) > 1:
                each = [stack.forward.plain[name].state_dict() for stack in self.stacks]
                same_shapes(each, name, [stack.members[0].name for stack in self.stacks])

    def _aggregator(self, j: int) -> Aggregator:
        (stack, first), job = self.place[self.by_job[j][0]], self.jobs[j]
        ends = {name: step for name, step in self.exchanges.items() if step.target is not None}
        start = {
            n: {k: t[first].clone() for k, t in stack.trainable_part(s.target, s.part).items()} for n, s in ends.items()
        }
        return Aggregator(start, **server_facts(job, self._rows(job)) | ({"clients": 1} if self.alone else {}))

    def _rows(self, job: Job) -> Rows:
        scale = Scale.of(job.federation, self.device)
        return Rows(self.x, scale.targets(self.y), scale)

    def _by_stack(self, here: Sequence[int]) -> Iterator[tuple[ClientStack, list[int], list[int]]]:
        """The stacks of these members: their places there, and their places in ``here``."""
        found: dict[int, tuple[ClientStack, list[int], list[int]]] = {}
        for at, i in enumerate(here):
            stack, k = self.place[i]
            _, places, order = found.setdefault(id(stack), (stack, [], []))
            places.append(k)
            order.append(at)
        return iter(found.values())

    def _gathered(self, found: Sequence[tuple[Sequence[int], dict[str, Tensor]]]) -> dict[str, Tensor]:
        """Trees of several stacks as one, whose rows come to the places named beside them."""
        if len(found) == 1:
            return found[0][1]
        order = on_device([at for places, _ in found for at in places], self.device).argsort()
        return {n: torch.cat([tree[n] for _, tree in found])[order] for n in found[0][1]}

    # --- a round -----------------------------------------------------------------------------------------

    def round(self) -> None:
        for door in self.doors:
            door.log.clear()
        here = self._present(self.round_number)
        for stack in self.stacks:
            stack.trust_log.clear()
            stack.round_number = self.round_number
        with precision(self.training.precision, self.device), self._at_work(here):
            self._catch_up(here)
            for index, (step, again) in enumerate(numbered(self.method.steps(self.round_number))):
                if isinstance(step, Exchange):
                    self._exchange(index, step, here)
                    continue
                for stack, places, _ in self._by_stack(here):
                    stack.perform(("step", index), step, places, again)
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
        mine, next_ = ({id(stack): places for stack, places, _ in self._by_stack(own)} for own in (here, then))
        with ExitStack() as every:
            for stack in self.stacks:
                stack.next_round = next_.get(id(stack), [])
                every.enter_context(stack.at_work(mine.get(id(stack), []), stack.next_round))
            yield

    # --- exchange ----------------------------------------------------------------------------------------

    def _catch_up(self, here: Sequence[int]) -> None:
        """Whoever was absent begins with the newest answers."""
        present = set(here)
        for name, behind in self.missed.items():
            back: dict[int, list[int]] = {}
            for i in sorted(present.intersection(behind)):
                back.setdefault(self.members[i].job, []).append(i)
            for job, own in back.items():
                self.doors[job].down(self.latest[name][job], len(own))
                self._hand_out(self.exchanges[name], own, self.latest[name][job])
            self.missed[name] = [i for i in behind if i not in present]

    def _exchange(self, index: int, step: Exchange, here: Sequence[int]) -> None:
        if self.alone:
            self._exchange_alone(index, step, here)
            return
        there = self._of_jobs(here)
        answers = self._answers(index, step, here, there)
        for j, answer in enumerate(answers):
            for place in range(len(there[j])) if step.each else range(1):
                self.doors[j].down(answer_of(answer, place, step.each), 1 if step.each else len(there[j]))
        if self._means_only(step):
            for stack, places, order in self._by_stack(here):
                stack.hand_out_one_of(step, places, answers, [self.members[here[at]].job for at in order])
        else:
            for own, answer in zip(there, answers, strict=True):
                self._hand_out(step, own, answer)
        if not step.each:
            present = set(here)
            self.latest[step.name] = answers if self.jobs[0].participation < 1 else []
            self.missed[step.name] = [i for i in range(len(self.members)) if i not in present]

    def _of_jobs(self, here: Sequence[int]) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.jobs]
        for i in here:
            found[self.members[i].job].append(i)
        return found

    def _means_only(self, step: Exchange) -> bool:
        """Whether every job's answer is the mean of models, so that many things can be done for all jobs at once."""
        return self.training.combine == "mean" and not (step.combine or step.send or step.refine or step.each)

    def _answers(self, index: int, step: Exchange, here: Sequence[int], there: list[list[int]]) -> list[Any]:
        """By job, what the server makes of its members' uploads."""
        names = [[self.members[i].name for i in own] for own in there]
        weights = [
            averaging_weights(self.training.weighting, [len(self.members[i].train) for i in own]) for own in there
        ]
        if self._means_only(step):
            every = self._every_upload(index, step, here)
            up_together(self.doors, step.name, names, every, self.unsettled)
            pieces = {n: t.split([len(own) for own in there]) for n, t in every.items()}
            share = {w: shares(w, self.device) for w in set(map(tuple, weights))}
            # A job's part is copied: where it begins in memory could decide in which order the GPU adds.
            return [
                server.mean(step.name, {n: each[j].clone() for n, each in pieces.items()}, share[tuple(weights[j])])
                for j, server in enumerate(self.servers)
            ]
        at_once = step.combine or step.send or step.refine or self.training.combine != "mean"
        if at_once:  # what a method or a robust mean makes of NaN is no one's to know
            settle(self.unsettled)
        uploads, answers = self._uploads(index, step, here, there), []
        for j, job in enumerate(self.jobs):
            mine = self.doors[j].up(step.name, names[j], uploads[j], None if at_once else self.unsettled)
            numbers = [self.members[i].client for i in there[j]]
            exchange = self._of_job(index, job)
            answers.append(self.servers[j].combine(exchange, mine, weights[j], numbers, self.round_number))
        if step.refine:
            self._refine(index, step, there, answers)
        return answers

    def _of_job(self, index: int, job: Job) -> Exchange:
        step = job.method.steps(self.round_number)[index]
        assert isinstance(step, Exchange)
        return step

    def _exchange_alone(self, index: int, step: Exchange, here: Sequence[int]) -> None:
        """Each member's upload is combined with nobody's, and comes back to it; nothing passes a door."""
        if not step.combine:  # the mean of one is itself
            for stack, places, _ in self._by_stack(here):
                stack.hand_out(replace(step, each=True), places, stack.uploads(index, step, places))
            return
        there = self._of_jobs(here)
        uploads = self._uploads(index, step, here, there)
        for j, (job, own) in enumerate(zip(self.jobs, there, strict=True)):
            exchange, answers = self._of_job(index, job), []
            for place, i in enumerate(own):
                upload = {n: t[place : place + 1] for n, t in uploads[j].items()}
                number = self.members[i].client
                answer = self.servers[i].combine(exchange, upload, [1.0], [number], self.round_number)
                answers.append(answer_of(answer, 0, step.each))
            if own:
                self._hand_out(replace(exchange, each=True), own, answers)

    def _uploads(
        self, index: int, step: Exchange, here: Sequence[int], there: Sequence[Sequence[int]]
    ) -> list[dict[str, Tensor]]:
        """By job, what its members that take part send, [members, ...]."""
        every = self._every_upload(index, step, here)
        row = {i: at for at, i in enumerate(here)}
        at = [on_device([row[i] for i in own], self.device) for own in there]
        return [{n: t[own] for n, t in every.items()} for own in at]

    def _every_upload(self, index: int, step: Exchange, here: Sequence[int]) -> dict[str, Tensor]:
        """[here, ...]"""
        return self._gathered(
            [(order, stack.uploads(index, step, places)) for stack, places, order in self._by_stack(here)]
        )

    def _hand_out(self, step: Exchange, indices: Sequence[int], answer: Any) -> None:
        """One answer to all of these members, who are of one job, or one for each of them."""
        for stack, places, order in self._by_stack(indices):
            mine = answer
            if step.each and len(places) < len(indices):
                mine = [answer_of(answer, at, True) for at in order]
            stack.hand_out(step, places, mine)

    def _refine(self, index: int, step: Exchange, there: list[list[int]], answers: list[Any]) -> None:
        """The servers' training on public rows: a stack of its own, whose members know nothing of the clients."""
        assert step.refine is not None
        assert step.target is not None
        if self.server_stack is None:
            none = np.empty(0, np.int64)
            servers = [
                StackMember(j, SERVER, "server", none, none, none, m.federation.public) for j, m in enumerate(self.jobs)
            ]
            self.server_stack = Stack(self.jobs, servers, data=(self.x, self.y), **self.options)
        stack, role = self.server_stack, step.target
        tied = stack.forward.tied[role]
        stack.round_number, stack.weights = self.round_number, stack.forward.initial()
        stack.steps.zero_()
        teachers = {}
        for j, own in enumerate(there):
            rows = getattr(stack.members[j], step.refine.split)
            found = [
                (order, {"": one.forward.outputs(role, RowTable(one, places, [rows] * len(places)))[0]})
                for one, places, order in self._by_stack(own)
            ]
            teachers[j] = self._gathered(found)[""]
            for n, t in answers[j].items():
                if n in stack.weights[role]:
                    stack.weights[role][n][j] = t
        for count in {len(own) for own in there}:
            alike = [j for j, own in enumerate(there) if len(own) == count]
            stack.train(("refine", index), step.refine, alike, 0, teachers)
        settle(stack.unsettled)
        for j, answer in enumerate(answers):
            answers[j] = {n: stack.weights[role][tied.get(n, n)][j].clone() for n in answer}
            self.servers[j].sent[step.name] = {n: answers[j][n] for n in self.servers[j].sent[step.name]}

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
        rows = self._rows(one)
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
            "servers": [server.state() for server in self.servers],
            "latest": self.latest if any(self.missed.values()) else {},
            "missed": self.missed,
            "bytes": [[door.bytes_up, door.bytes_down] for door in self.doors],
            "trust": self.trust,
        }

    def restore(self, state: dict[str, Any]) -> None:
        for stack, saved in zip(self.stacks, state["stacks"], strict=True):
            stack.restore(saved)
            stack.round_number = state["round"]
        self.round_number, self.trust, self.missed = state["round"], state["trust"], state["missed"]
        self.latest = moved(state["latest"], self.device)
        for server, saved in zip(self.servers, state["servers"], strict=True):
            server.restore(moved(saved, self.device))
        for door, (up, down) in zip(self.doors, state["bytes"], strict=True):
            door.bytes_up, door.bytes_down = up, down
