"""The stacked engine: rounds, exchanges and answers of many jobs whose clients are one stack.

Jobs in a stack share the data, the architecture, the training settings and the shape of their steps; seeds, alphas,
float hyper-parameters and variants of a method may differ. The method files are the serial engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedekd import parts
from fedekd.engines import return_checks
from fedekd.engines.client import Client
from fedekd.engines.forward import padded
from fedekd.engines.groups import MethodGroup, split
from fedekd.engines.job import SERVER, Advance, Job, Measured, Rows, Scale, precision, trust_of_round
from fedekd.engines.schedule import numbered, participants
from fedekd.engines.server import server_facts
from fedekd.engines.stack import CHUNK, SHRINK_STAGES, Stack, StackMember
from fedekd.engines.stackable import check
from fedekd.exchange import Aggregator, Door, answer_of, averaging_weights
from fedekd.methods.base import Exchange
from fedekd.tasks import make_task
from fedekd.trees import copied, moved, pick

__all__ = ["CHUNK", "SHRINK_STAGES", "StackMember", "Stacked"]

T = TypeVar("T")


class Stacked(Stack):
    """Several jobs, round by round; the interface is the serial engine's, with lists over jobs."""

    def __init__(self, jobs: Sequence[Job], advance: Advance | None = None, **options: Any) -> None:
        """``options`` are those of ``Stack``."""
        check(jobs)
        members = [
            StackMember(j, k, name, one.train, one.val, one.test, job.federation.public)
            for j, job in enumerate(jobs)
            for k, (name, one) in enumerate(zip(job.federation.names, job.federation.clients, strict=True))
        ]
        super().__init__(jobs, members, advance, **options)
        self.forward.try_mapping()
        self.doors = [Door(frozenset(self.exchanges)) for _ in jobs]
        self.alone = self.method.twin == "alone"
        """Whether every member is a federation of its own, with a server of its own."""
        owners = [member.job for member in self.members] if self.alone else range(len(jobs))
        self.servers = [self._aggregator(j) for j in owners]
        self.server_stack: Stack | None = None  # the servers, where they train models themselves
        self.latest: dict[str, list[Any]] = {}  # by exchange and job: the last answer to all, for whoever was absent
        self.missed: dict[str, list[int]] = {}  # by exchange: the members that do not have it
        self.trust: list[list[dict[str, Any]]] = [[] for _ in jobs]

    def _aggregator(self, j: int) -> Aggregator:
        first, job = self.members_of(j)[0], self.jobs[j]
        ends = {name: step for name, step in self.exchanges.items() if step.target is not None}
        start = {n: {k: t[first].clone() for k, t in self.part(s.target, s.part).items()} for n, s in ends.items()}
        scale = Scale.of(job.federation, self.device)
        facts = server_facts(job, Rows(self.x, scale.targets(self.y), scale))
        return Aggregator(start, **facts | ({"clients": 1} if self.alone else {}))

    # --- a round -----------------------------------------------------------------------------------------

    def round(self) -> None:
        self.trust_log.clear()
        for door in self.doors:
            door.log.clear()
        here = self._present()
        with precision(self.training.precision, self.device):
            self._catch_up(here)
            for index, (step, again) in enumerate(numbered(self.method.steps(self.round_number))):
                if isinstance(step, Exchange):
                    self._exchange(index, step, here)
                else:
                    self.perform(("step", index), step, here, again)
        rows = self.trust_log.rows()
        for j, history in enumerate(self.trust):
            history += trust_of_round(self.round_number, rows[self.members_of(j)])
        self.round_number += 1

    def _present(self) -> list[int]:
        here = []
        for j, job in enumerate(self.jobs):
            members = self.members_of(j)
            taking = participants(job.seed, self.round_number, len(members), self.training.participation)
            here += [members[k] for k in taking]
        return here

    # --- exchange ----------------------------------------------------------------------------------------

    def _catch_up(self, here: Sequence[int]) -> None:
        """Whoever was absent begins with the newest answers."""
        for name, behind in self.missed.items():
            for i in sorted(set(behind) & set(here)):
                job = self.members[i].job
                self.doors[job].down(self.latest[name][job], 1)
                self._hand_out(self.exchanges[name], [i], self.latest[name][job])
            self.missed[name] = [i for i in behind if i not in set(here)]

    def _exchange(self, index: int, step: Exchange, here: Sequence[int]) -> None:
        if self.alone:
            self._exchange_alone(index, step, here)
            return
        uploads, answers = self._uploads(index, step, here), []
        there = [[i for i in here if self.members[i].job == j] for j in range(len(self.jobs))]
        for j, job in enumerate(self.jobs):
            names = [self.members[i].name for i in there[j]]
            mine = self.doors[j].up(step.name, names, uploads[j])
            weights = averaging_weights(self.training.weighting, [len(self.members[i].train) for i in there[j]])
            numbers = [self.members[i].client for i in there[j]]
            exchange = self._of_job(index, job)
            answers.append(self.servers[j].combine(exchange, mine, weights, numbers, self.round_number))
        if step.refine:
            self._refine(index, step, there, answers)
        for j, answer in enumerate(answers):
            for place in range(len(there[j])) if step.each else range(1):
                self.doors[j].down(answer_of(answer, place, step.each), 1 if step.each else len(there[j]))
            self._hand_out(step, there[j], answer)
        if not step.each:
            self.latest[step.name] = answers if self.training.participation < 1 else []
            self.missed[step.name] = [i for i in range(len(self.members)) if i not in set(here)]

    def _of_job(self, index: int, job: Job) -> Exchange:
        step = job.method.steps(self.round_number)[index]
        assert isinstance(step, Exchange)
        return step

    def _exchange_alone(self, index: int, step: Exchange, here: Sequence[int]) -> None:
        """Each member's upload is combined with nobody's, and comes back to it; nothing passes a door."""
        uploads = self._uploads(index, step, here)
        for j, job in enumerate(self.jobs):
            own, exchange = [i for i in here if self.members[i].job == j], self._of_job(index, job)
            answers: Any = [] if exchange.combine else uploads[j]  # the mean of one is itself
            for place, i in enumerate(own if exchange.combine else ()):
                upload = {n: t[place : place + 1] for n, t in uploads[j].items()}
                number = self.members[i].client
                answer = self.servers[i].combine(exchange, upload, [1.0], [number], self.round_number)
                answers.append(answer_of(answer, 0, step.each))
            if own:
                self._hand_out(replace(exchange, each=True), own, answers)

    def _uploads(self, index: int, step: Exchange, here: Sequence[int]) -> list[dict[str, Tensor]]:
        """By job, what its members that take part send, [members, ...]."""
        made: dict[int, dict[str, Tensor]] = {}
        if step.send is None:
            tied = self.forward.tied(step.name)  # a model travels under all its names
            names = parts.names(step.part, self.forward.plain[step.name])
            tree = {n: self.weights[step.name][tied.get(n, n)] for n in names}
        else:
            find = self.find(("step", index))

            def work(group: MethodGroup, indices: list[int]) -> None:
                found = self.over_split(
                    group, indices, step, lambda m, batch: return_checks.made(m, step.name, find(m).send(batch))
                )
                made.update({i: pick(found, k) for k, i in enumerate(indices)})

            self.by_group(here, work)
        uploads = []
        for j in range(len(self.jobs)):
            own = [i for i in here if self.members[i].job == j]
            if step.send is None:
                uploads.append({n: t[torch.tensor(own, device=self.device)] for n, t in tree.items()})
            else:
                uploads.append({n: torch.stack([made[i][n] for i in own]) for n in made[own[0]]})
        return uploads

    def _hand_out(self, step: Exchange, indices: Sequence[int], answer: Any) -> None:
        """One answer to all of these members, who are of one job, or one for each of them."""
        role, group = step.target, next(g for g in self.groups if indices[0] in g.indices)
        if role is not None:
            tied = self.forward.tied(role)
            shapes = {n: w.shape[1:] for n, w in self.weights[role].items()}
            shapes |= {n: shapes[own] for n, own in tied.items()}
            for place in range(len(indices)) if step.each else range(1):
                return_checks.fits(group.method, role, answer_of(answer, place, step.each), shapes)
        if not isinstance(answer, dict):
            answer = {n: torch.stack([one[n] for one in answer]) for n in answer[0]}
        if role is not None:
            answer = {n: t for n, t in answer.items() if n not in tied}
        at = torch.tensor(indices, device=self.device)
        if role is not None:
            for n, t in answer.items():
                self.weights[role][n][at] = t
            if role not in self.method.reads_weights:
                return
        wide = {n: t if step.each else t.expand(len(indices), *t.shape) for n, t in answer.items()}
        what = f"method {group.method.name!r}: received"
        group.received.put({step.name: wide}, group.places(indices), what)

    def _refine(self, index: int, step: Exchange, there: list[list[int]], answers: list[Any]) -> None:
        """The servers' training on public rows: a stack of its own, whose members know nothing of the clients."""
        assert step.refine is not None
        assert step.target is not None
        if self.server_stack is None:
            none = np.empty(0, np.int64)
            servers = [
                StackMember(j, SERVER, "server", none, none, none, m.federation.public) for j, m in enumerate(self.jobs)
            ]
            self.server_stack = Stack(self.jobs, servers, fused=self.fused, graphs=self.graphs, chunk=self.limit)
        stack, role, tied = self.server_stack, step.target, self.forward.tied(step.target)
        stack.round_number, stack.weights = self.round_number, stack.forward.initial()
        stack.steps.zero_()
        teachers = {}
        for j, own in enumerate(there):
            rows = [getattr(stack.members[j], step.refine.split)] * len(own)
            teachers[j] = self.forward.outputs(role, own, rows)[0]
            for n, t in answers[j].items():
                if n in stack.weights[role]:
                    stack.weights[role][n][j] = t
        for count in {len(own) for own in there}:
            alike = [j for j, own in enumerate(there) if len(own) == count]
            stack.train(("refine", index), step.refine, alike, 0, teachers)
        for j, answer in enumerate(answers):
            answers[j] = {n: stack.weights[role][tied.get(n, n)][j].clone() for n in answer}
            self.servers[j].sent[step.name] = {n: answers[j][n] for n in self.servers[j].sent[step.name]}

    # --- answers -----------------------------------------------------------------------------------------

    @contextmanager
    def personalised(self) -> Iterator[None]:
        """The clients as they answer: after the method's ``personalise``, which is undone in the end."""
        steps = [] if self.personal else return_checks.personal(self.method)
        if not steps:
            yield
            return
        weights = {role: {n: w.clone() for n, w in tree.items()} for role, tree in self.weights.items()}
        count, trust = self.steps.clone(), self.trust_log.copy()
        known = [(group, group.memory.copy(), group.gradients.copy()) for group in self.groups]
        self.personal = True
        try:
            with precision(self.training.precision, self.device):
                for index, (step, again) in enumerate(steps):
                    self.perform(("personalise", index), step, range(len(self.members)), again)
            yield
        finally:
            self.personal = False
            self.weights, self.steps = weights, count
            self.groups = [group for group, *_ in known]
            for group, memory, gradients in known:
                group.memory, group.gradients = memory, gradients
            self.trust_log.restore(trust)

    def evaluate(self, split: str = "test") -> list[list[float]]:
        """The task's metric per job and client."""
        with precision(self.training.precision, self.device), self.personalised():
            errors, *_ = self._rows_of(split)
        return self._by_job([self.task.value(errors[i]) for i in range(len(self.members))])

    def measure(self, training_rows: int = 0) -> list[list[Measured]]:
        """The same on test and validation rows, with what it is made of; of training rows it tells nothing."""
        with precision(self.training.precision, self.device), self.personalised():
            (errors, _, test), (val_errors, losses, val) = self._rows_of("test"), self._rows_of("val")

        def answers(i: int) -> Callable[[str], np.ndarray]:
            pairs, task = {"test": test[i], "val": val[i]}, self.jobs[self.members[i].job].task
            return lambda split: task.answers(*pairs[split]).cpu().numpy()

        found = [
            Measured.of_rows(self.task, errors[i], val_errors[i], losses[i], answers(i))
            for i in range(len(self.members))
        ]
        return self._by_job(found)

    def _by_job(self, of_members: Sequence[T]) -> list[list[T]]:
        return [[of_members[i] for i in self.members_of(j)] for j in range(len(self.jobs))]

    def _rows_of(
        self, split: str
    ) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray], dict[int, tuple[Tensor, Tensor]]]:
        """By member, row by row of a split: the errors of its answers, their losses, and outputs with targets.

        The latter stay on the device. The others are found there for many members at once: one by one they would take
        longer than the training.
        """
        errors, losses, pairs = dict[int, np.ndarray](), dict[int, np.ndarray](), dict[int, tuple[Tensor, Tensor]]()

        def work(group: MethodGroup, indices: list[int]) -> None:
            for start in range(0, len(indices), self.limit):
                here = indices[start : start + self.limit]
                rows = [getattr(self.members[i], split) for i in here]
                out, (table, _) = self.forward.predictions(group, here, rows, split), padded(rows, self.device)
                scale = self.scale_of(torch.tensor(here, device=self.device))
                y = scale.targets(self.y[table])
                unit = scale.std.reshape(len(here), 1)
                wrong = make_task(self.task.name, unit).errors(out, y).cpu().numpy()
                loss = self.task.loss(out.flatten(0, 1), y.flatten()).view(table.shape).double().cpu().numpy()
                for at, i in enumerate(here):
                    n = len(rows[at])
                    errors[i], losses[i], pairs[i] = wrong[at, :n], loss[at, :n], (out[at, :n], y[at, :n])

        self.by_group(range(len(self.members)), work)
        return errors, losses, pairs

    def clients_of(self, job: int) -> list[Client]:
        """A job's clients with their models as they are now, one by one; inside ``personalised`` as they answer."""
        one, clients = self.jobs[job], []
        scale = Scale.of(one.federation, self.device)
        rows = Rows(self.x, scale.targets(self.y), scale)
        for i in self.members_of(job):
            client = Client(one, self.members[i].client, rows=rows)
            client.restore(self._state_of(i))
            client.personal = self.personal
            clients.append(client)
        return clients

    def states_of(self, job: int, positions: Sequence[int]) -> list[dict[str, Any]]:
        """Copies of what these clients of a job are now, for ``Client.restore``."""
        members = self.members_of(job)
        return [copied(self._state_of(members[k])) for k in positions]

    def _state_of(self, i: int) -> dict[str, Any]:
        group = next(group for group in self.groups if i in group.indices)
        (place,) = group.places([i])
        models = {}
        for role, tree in self.weights.items():
            own = {name: w[i] for name, w in tree.items()}
            models[role] = own | {name: own[first] for name, first in self.forward.tied(role).items()}
        known = {name: getattr(group, name).one(place) for name in ("memory", "received", "gradients")}
        return {"models": models, **known, "steps": int(self.steps[i]), "round": self.round_number}

    # --- interruption ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "round": self.round_number,
            "weights": self.weights,
            "steps": self.steps,
            "groups": [[group.indices, group.state()] for group in self.groups],
            "servers": [server.state() for server in self.servers],
            "latest": self.latest if any(self.missed.values()) else {},
            "missed": self.missed,
            "bytes": [[door.bytes_up, door.bytes_down] for door in self.doors],
            "trust": self.trust,
        }

    def restore(self, state: dict[str, Any]) -> None:
        saved_groups = [indices for indices, _ in state["groups"]]
        for group in [group for group in self.groups if group.indices not in saved_groups and group.varying]:
            split(self.groups, group)
        if [group.indices for group in self.groups] != saved_groups:
            raise ValueError("the checkpoint's clients are grouped in another way")
        for group, (_, saved) in zip(self.groups, state["groups"], strict=True):
            group.restore(moved(saved, self.device))
        self.round_number, self.trust, self.missed = state["round"], state["trust"], state["missed"]
        for name in ("weights", "steps", "latest"):
            setattr(self, name, moved(state[name], self.device))
        for server, saved in zip(self.servers, state["servers"], strict=True):
            server.restore(moved(saved, self.device))
        for door, (up, down) in zip(self.doors, state["bytes"], strict=True):
            door.bytes_up, door.bytes_down = up, down
