"""The stacked engine's exchanges: what members send, what their job's server makes of it, and who gets the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedekd.engines.cuda_graphs import Recorded
from fedekd.engines.forward import RowTable
from fedekd.engines.job import SERVER, Job
from fedekd.engines.on_device import on_device
from fedekd.engines.server import server_facts
from fedekd.engines.stack import Stack, StackMember, settle
from fedekd.exchange import (
    Aggregator,
    Door,
    answer_of,
    averaging_weights,
    finite,
    same_shapes,
    shares,
    size,
    up_together,
)
from fedekd.methods.base import Exchange
from fedekd.robust import average
from fedekd.trees import moved

if TYPE_CHECKING:
    from fedekd.engines.stacked import Stacked


Means = tuple[int, tuple[list[str], Tensor], list[dict[str, Tensor]]]
FEW_NUMBERS = 2**26  # that members send, up to which their means take the host longer than a GPU


class StackedExchange:
    def __init__(self, engine: Stacked) -> None:
        self.engine, self.jobs, self.members, self.exchanges = engine, engine.jobs, engine.members, engine.exchanges
        self.training, self.device, self.unsettled = engine.training, engine.device, engine.unsettled
        self._check_shapes()
        self.doors = [Door(frozenset(self.exchanges)) for _ in self.jobs]
        self.alone = engine.method.twin == "alone"
        """Whether every member is a federation of its own, with a server of its own."""
        owners = [member.job for member in self.members] if self.alone else range(len(self.jobs))
        self.servers = [self._aggregator(j) for j in owners]
        self.server_stack: Stack | None = None  # the servers, where they train models themselves
        self.latest: dict[str, list[Any]] = {}  # by exchange and job: the last answer to all, for whoever was absent
        self.missed: dict[str, list[int]] = {}  # by exchange: the members that do not have it
        self.recorded = {name: Recorded() for name in self.exchanges}
        self.shares: dict[tuple[float, ...], Tensor] = {}
        """By the weights of a job's members, which graphs read."""

    def _check_shapes(self) -> None:
        for name, step in self.exchanges.items():
            if step.send is None and len(self.engine.stacks) > 1:
                each = [stack.forward.plain[name].state_dict() for stack in self.engine.stacks]
                same_shapes(each, name, [stack.members[0].name for stack in self.engine.stacks])

    def _aggregator(self, j: int) -> Aggregator:
        (stack, first), job = self.engine.place[self.engine.by_job[j][0]], self.jobs[j]
        ends = {name: step for name, step in self.exchanges.items() if step.target is not None}
        start = {
            n: {k: t[first].clone() for k, t in stack.trainable_part(s.target, s.part).items()} for n, s in ends.items()
        }
        return Aggregator(start, **server_facts(job, self.engine.rows(job)) | ({"clients": 1} if self.alone else {}))

    def catch_up(self, here: Sequence[int]) -> None:
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

    def perform(self, index: int, step: Exchange, here: Sequence[int]) -> None:
        if self.alone:
            self._perform_alone(index, step, here)
            return
        there = self._of_jobs(here)
        answers = self._answers(index, step, here, there)
        for j, answer in enumerate(answers):
            for place in range(len(there[j])) if step.each else range(1):
                self.doors[j].down(answer_of(answer, place, step.each), 1 if step.each else len(there[j]))
        if self._means_only(step):
            for stack, places, order in self.engine.by_stack(here):
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
            bytes_, (floats, good), means = self._means(index, step, here, weights)
            up_together(self.doors, step.name, names, bytes_, (floats, good.clone()), self.unsettled)
            for server, mean in zip(self.servers, means, strict=True):
                server.gives(step.name, mean)
            return means
        at_once = step.combine or step.send or step.refine or self.training.combine != "mean"
        if at_once:  # what a method or a robust mean makes of NaN is no one's to know
            settle(self.unsettled)
        uploads, answers = self._uploads(index, step, here, there), []
        for j, job in enumerate(self.jobs):
            mine = self.doors[j].up(step.name, names[j], uploads[j], None if at_once else self.unsettled)
            numbers = [self.members[i].client for i in there[j]]
            exchange = self._of_job(index, job)
            answers.append(self.servers[j].combine(exchange, mine, weights[j], numbers, self.engine.round_number))
        if step.refine:
            self._refine(index, step, there, answers)
        return answers

    def _means(self, index: int, step: Exchange, here: Sequence[int], weights: Sequence[Sequence[float]]) -> Means:
        """The bytes that these members send, whether they are finite, and the mean of each job."""
        known, self.shares = self.shares, {}
        for each in set(map(tuple, weights)):
            self.shares[each] = known[each] if each in known else shares(each, self.device)
        by_job = [self.shares[tuple(each)] for each in weights]

        def work() -> Means:
            every = self._every_upload(index, step, here)
            pieces = {n: t.split([len(each) for each in weights]) for n, t in every.items()}
            # A job's part is copied: where it begins in memory could decide in which order the GPU adds.
            parts = [{n: each[j].clone() for n, each in pieces.items()} for j in range(len(weights))]
            means = [average(part, share) for part, share in zip(parts, by_job, strict=True)]
            return size(every), finite(every), means

        read = [w for stack in self.engine.stacks for w in stack.weights[step.name].values()]
        return self.recorded[step.name].do(work, read, self._worth_recording(read, here))

    def _worth_recording(self, read: Sequence[Any], here: Sequence[int]) -> bool:
        """Whether it takes the host longer than the device, and the same members come again."""
        stack, left = self.engine.stacks[0], self.training.rounds - self.engine.round_number
        stays = len(self.engine.stacks) == 1 and stack.all_stay(here) and self.jobs[0].participation == 1
        return stack.graphs and stays and left > 2 and sum(w.numel() for w in read) <= FEW_NUMBERS

    def _of_job(self, index: int, job: Job) -> Exchange:
        step = job.method.steps(self.engine.round_number)[index]
        assert isinstance(step, Exchange)
        return step

    def _perform_alone(self, index: int, step: Exchange, here: Sequence[int]) -> None:
        """Each member's upload is combined with nobody's, and comes back to it; nothing passes a door."""
        if not step.combine:  # the mean of one is itself
            for stack, places, _ in self.engine.by_stack(here):
                stack.hand_out(replace(step, each=True), places, stack.uploads(index, step, places))
            return
        there = self._of_jobs(here)
        uploads = self._uploads(index, step, here, there)
        for j, (job, own) in enumerate(zip(self.jobs, there, strict=True)):
            exchange, answers = self._of_job(index, job), []
            for place, i in enumerate(own):
                upload = {n: t[place : place + 1] for n, t in uploads[j].items()}
                number = self.members[i].client
                answer = self.servers[i].combine(exchange, upload, [1.0], [number], self.engine.round_number)
                answers.append(answer_of(answer, 0, step.each))
            if own:
                self._hand_out(replace(exchange, each=True), own, answers)

    def _refine(self, index: int, step: Exchange, there: list[list[int]], answers: list[Any]) -> None:
        """The servers' training on public rows: a stack of its own, whose members know nothing of the clients."""
        assert step.refine is not None
        assert step.target is not None
        if self.server_stack is None:
            none = np.empty(0, np.int64)
            servers = [
                StackMember(j, SERVER, "server", none, none, none, m.federation.public) for j, m in enumerate(self.jobs)
            ]
            self.server_stack = Stack(self.jobs, servers, data=(self.engine.x, self.engine.y), **self.engine.options)
        stack, role = self.server_stack, step.target
        tied = stack.forward.tied[role]
        stack.round_number, stack.weights = self.engine.round_number, stack.forward.initial()
        stack.steps.zero_()
        teachers = {}
        for j, own in enumerate(there):
            rows = getattr(stack.members[j], step.refine.split)
            found = [
                (order, {"": one.forward.outputs(role, RowTable(one, places, [rows] * len(places)))[0]})
                for one, places, order in self.engine.by_stack(own)
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
            [(order, stack.uploads(index, step, places)) for stack, places, order in self.engine.by_stack(here)]
        )

    def _gathered(self, found: Sequence[tuple[Sequence[int], dict[str, Tensor]]]) -> dict[str, Tensor]:
        """Trees of several stacks as one, whose rows come to the places named beside them."""
        if len(found) == 1:
            return found[0][1]
        order = on_device([at for places, _ in found for at in places], self.device).argsort()
        return {n: torch.cat([tree[n] for _, tree in found])[order] for n in found[0][1]}

    def _hand_out(self, step: Exchange, indices: Sequence[int], answer: Any) -> None:
        """One answer to all of these members, who are of one job, or one for each of them."""
        for stack, places, order in self.engine.by_stack(indices):
            mine = answer
            if step.each and len(places) < len(indices):
                mine = [answer_of(answer, at, True) for at in order]
            stack.hand_out(step, places, mine)

    # --- interruption ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "servers": [server.state() for server in self.servers],
            "latest": self.latest if any(self.missed.values()) else {},
            "missed": self.missed,
            "bytes": [[door.bytes_up, door.bytes_down] for door in self.doors],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.missed, self.latest = state["missed"], moved(state["latest"], self.device)
        for server, saved in zip(self.servers, state["servers"], strict=True):
            server.restore(moved(saved, self.device))
        for door, (up, down) in zip(self.doors, state["bytes"], strict=True):
            door.bytes_up, door.bytes_down = up, down
