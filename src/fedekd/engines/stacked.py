"""The stacked engine: every client of many jobs trains in one tensor program.

Weights are held as [models, ...]; a forward pass is the module mapped over that axis (``torch.func.vmap``), and the
sum of the models' losses is differentiated once, which gives each model its own gradient. Jobs in a stack share the
data, the architecture, the training settings and the shape of their steps; seeds, alphas, float hyper-parameters and
variants of a method may differ. The method files are the serial engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedekd import parts, rng
from fedekd.engines.client import Client, Rows, moved
from fedekd.engines.forward import Forward
from fedekd.engines.groups import Find, Group, make_groups, mapped, split
from fedekd.engines.job import Advance, Job, Scale, TrustLog, pick_device, precision, trust_of_round
from fedekd.engines.piece import Piece
from fedekd.engines.schedule import numbered, participants
from fedekd.engines.serial import server_facts
from fedekd.engines.stackable import check
from fedekd.engines.stacking import graph_pool, not_finite, padded, pick, put, rows_of
from fedekd.engines.view import label_counts
from fedekd.errors import FedekdError
from fedekd.exchange import Aggregator, Door, answer_of, averaging_weights, exchanges
from fedekd.methods.base import Copy, Exchange, Method, Remember, Step, Train

BUNCHES = 12  # stack sizes that a piece goes through on a GPU
PIECE = 96  # models trained at once: more gain little speed, and clients of like size waste less padding


@dataclass(frozen=True)
class Member:
    """One model of the stack: a client of a job."""

    job: int
    client: int
    name: str
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    public: np.ndarray


class Stacked:
    """Several jobs, round by round; the interface is the serial engine's, with lists over jobs."""

    def __init__(
        self,
        jobs: Sequence[Job],
        advance: Advance | None = None,
        *,
        piece: int = PIECE,
        fused: bool = True,
        graphs: bool = True,
    ) -> None:
        """``fused`` and ``graphs`` switch the GPU's own kernels and CUDA graphs off, to measure what they give."""
        self.jobs, first = list(jobs), jobs[0]
        self.task, self.training, self.method = first.task, first.training, first.method
        self.device = pick_device(first.training.device)
        self.advance = advance or (lambda round, client, samples: None)
        check(jobs)
        self.limit = piece
        self.graphs = graphs and self.device.type == "cuda"
        self.bunches = BUNCHES if self.graphs else None
        self.pool: Any = None
        if self.graphs:
            self.pool, self.pool_keeper = graph_pool(self.device)
        dataset = first.federation.dataset
        self.x, self.y = (torch.from_numpy(np.ascontiguousarray(a)).to(self.device) for a in (dataset.x, dataset.y))
        self.scales = Scale.stack([Scale.of(job.federation, self.device) for job in jobs])
        self.members = [
            Member(j, k, name, one.train, one.val, one.test, job.federation.public)
            for j, job in enumerate(jobs)
            for k, (name, one) in enumerate(zip(job.federation.names, job.federation.clients, strict=True))
        ]
        self.job_of = torch.tensor([m.job for m in self.members], device=self.device)
        outputs = dataset.outputs
        targets = [torch.from_numpy(dataset.y[m.train]) for m in self.members]
        self.counts = torch.stack([label_counts(self.task.name, y, outputs) for y in targets]).to(self.device)
        self.forward = Forward(self, fused)
        self.weights = self.forward.initial()
        self.forward.try_mapping()
        self.groups = make_groups(self)
        self.exchanges = exchanges(self.method, self.training.rounds)
        self.doors = [Door(frozenset(self.exchanges)) for _ in jobs]
        self.received = {
            name: dict(self.part(step.target, step.part))
            for name, step in self.exchanges.items()
            if step.target in self.method.anchors
        }
        self.received = {n: {k: t.clone() for k, t in tree.items()} for n, tree in self.received.items()}
        self.servers = [self._aggregator(j) for j in range(len(jobs))]
        self.gradients: dict[str, dict[str, Tensor]] = {}
        self.steps = torch.zeros(len(self.members), dtype=torch.long, device=self.device)
        self.latest: dict[str, list[Any]] = {}  # by exchange and job: the last answer to all, for whoever was absent
        self.missed: dict[str, list[int]] = {}  # by exchange: the members that do not have it
        self.pieces: dict[tuple[Any, ...], tuple[Any, Piece]] = {}
        self.trust_log = TrustLog(len(self.members), self.device)
        self.round_number = 0
        self.personal = False
        self.trust: list[list[dict[str, Any]]] = [[] for _ in jobs]

    def _aggregator(self, j: int) -> Aggregator:
        first, job = self._members_of(j)[0], self.jobs[j]
        ends = {name: step for name, step in self.exchanges.items() if step.target is not None}
        start = {n: {k: t[first].clone() for k, t in self.part(s.target, s.part).items()} for n, s in ends.items()}
        scale = Scale.of(job.federation, self.device)
        return Aggregator(start, **server_facts(job, Rows(self.x, scale.targets(self.y), scale)))

    def part(self, role: str | None, part: Any) -> dict[str, Tensor]:
        """The stacked weights of a role, or of a part of it."""
        assert role is not None
        tree = self.weights[role]
        return {n: tree[n] for n in parts.names(part, self.forward.plain[role]) if n in tree}  # tied: one name

    def _members_of(self, job: int) -> list[int]:
        return [i for i, m in enumerate(self.members) if m.job == job]

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
                    self._perform(("step", index), step, here, again)
        rows = self.trust_log.rows()
        for j, history in enumerate(self.trust):
            history += trust_of_round(self.round_number, rows[self._members_of(j)])
        self.round_number += 1

    def _present(self) -> list[int]:
        here = []
        for j, job in enumerate(self.jobs):
            members = self._members_of(j)
            taking = participants(job.seed, self.round_number, len(members), self.training.participation)
            here += [members[k] for k in taking]
        return here

    def _perform(self, where: tuple[Any, ...], step: Train | Remember | Copy, here: Sequence[int], again: int) -> None:
        if isinstance(step, Train):
            self._train(where, step, here, again)
        elif isinstance(step, Remember):
            self._remember(where, step, here)
        else:
            self._copy(where, step, here)

    def find(self, where: tuple[Any, ...]) -> Find:
        """How to get a step from a method: by its place in a round, or among what is done before answering."""
        round = self.round_number

        def found(method: Method) -> Any:
            steps: Sequence[Step] = method.personalise() if where[0] == "personalise" else method.steps(round)
            step = steps[where[1]]
            return step.refine if where[0] == "refine" and isinstance(step, Exchange) else step

        return found

    def _train(
        self, where: tuple[Any, ...], step: Train, here: Sequence[int], again: int, teachers: Any = None
    ) -> None:
        """Group by group, largest clients first, in pieces of like size; one that does not fit is cut in two."""
        waiting = [
            (group, sorted(set(group.indices) & set(here), key=lambda i: -self._length(i, step)))
            for group in self.groups
        ]
        while waiting:
            group, indices = waiting.pop(0)
            while indices:
                now, before = indices[: self.limit], self.trust_log.copy()
                try:
                    self._piece(where, step, group, now, again, teachers).train()
                except torch.OutOfMemoryError:
                    self._shrink(len(now))
                    self.trust_log.restore(before)
                    continue
                except RuntimeError as error:
                    if "vmap" not in str(error) or not group.varying:
                        raise
                    self.trust_log.restore(before)
                    alike = split(self.groups, group)  # an `if` on a parameter that differs within the group
                    waiting = [(one, [i for i in indices if i in one.indices]) for one in alike] + waiting
                    break
                indices = indices[self.limit :]
        self._check_finite(step.roles)

    def _length(self, i: int, step: Train) -> int:
        return len(getattr(self.members[i], step.split))

    def _check_finite(self, roles: Iterable[str]) -> None:
        """For all models at once: asking one by one makes the host wait for the device as often."""
        bad = [i for role in roles for w in self.weights[role].values() for i in not_finite(w)]
        if bad:
            member = self.members[bad[0]]
            raise FedekdError(
                f"{self.jobs[member.job].method.name}: client {member.name} diverged in round "
                f"{self.round_number + 1} (seed {self.jobs[member.job].seed}); lower --lr"
            )

    def _piece(
        self, where: tuple[Any, ...], step: Train, group: Group, indices: list[int], again: int, teachers: Any
    ) -> Piece:
        """The piece of an earlier round, if its step is the same, with its buffers and graphs."""
        key, own = (where, *indices), self.find(where)(group.method)
        known = self.pieces.get(key)
        if known is None or known[0] != own or not known[1].fits():
            if self.training.participation < 1:
                self.pieces.clear()  # other members each round: earlier pieces would only take memory
            known = self.pieces[key] = own, Piece(self, self.find(where), step, group, indices, again)
        known[1].teachers = teachers
        return known[1]

    def _shrink(self, models: int) -> None:
        if models == 1:
            raise FedekdError("one model's batch does not fit on the device; lower --batch-size") from None
        self.limit = (models + 1) // 2
        self.pieces.clear()
        if self.graphs:
            self.pool, self.pool_keeper = graph_pool(self.device)
        torch.cuda.empty_cache()

    def _remember(self, where: tuple[Any, ...], step: Remember, here: Sequence[int]) -> None:
        find = self.find(where)
        for group in self.groups:
            indices = [i for i in group.indices if i in set(here)]
            if indices:
                seen = self._whole(group, indices, step.split, step.roles)
                with torch.no_grad():
                    found = mapped(self, group, indices, lambda method, batch: find(method).compute(batch), seen)
                group.memory = put(group.memory, found, group.places(indices), len(group.indices))

    def _copy(self, where: tuple[Any, ...], step: Copy, here: Sequence[int]) -> None:
        target, at = self.part(step.target, step.part), torch.tensor(here, device=self.device)
        if isinstance(step.source, str):
            for n, w in target.items():
                w[at] = self.weights[step.source][n][at]
            return
        find = self.find(where)
        for group in self.groups:
            indices = [i for i in group.indices if i in set(here)]
            if indices:
                seen = self._whole(group, indices, None, ())
                with torch.no_grad():
                    made = mapped(self, group, indices, lambda method, batch: find(method).source(batch), seen)
                for n in target.keys() & made.keys():
                    target[n][torch.tensor(indices, device=self.device)] = made[n]

    def _whole(self, group: Group, indices: Sequence[int], split: str | None, roles: Sequence[str]) -> dict[str, Any]:
        """What some members of a group see of a whole split, or of no rows at all."""
        rows = [getattr(self.members[i], split) if split else np.empty(0, int) for i in indices]
        table, mask = padded(rows, self.device)
        uniform = torch.zeros((*table.shape, self.method.draws))
        for row, (i, r) in enumerate(zip(indices, rows, strict=True)):
            key = (self.jobs[self.members[i].job].seed, "remember", self.members[i].client, self.round_number)
            uniform[row, : len(r)] = torch.from_numpy(rng.stream(*key).random((len(r), self.method.draws))).float()
        needs = group.method.needs_features
        out = {role: self.forward.outputs(role, indices, rows, needs) for role in roles}
        at = torch.tensor(indices, device=self.device)
        return {
            **self.known(group, indices),
            "y": self.scale_of(at).targets(self.y[table]),
            "outputs": {role: o for role, (o, _) in out.items()},
            "features": {role: f for role, (_, f) in out.items()} if needs else {},
            "weights": {role: pick(self.weights[role], at) for role in self.method.anchors},
            "uniform": uniform.to(self.device),
            "rows": torch.arange(table.shape[1], device=self.device).expand(table.shape),
            "mask": mask,
        }

    def known(self, group: Group, indices: Sequence[int]) -> dict[str, Any]:
        """What these members know beside their rows and models."""
        at = torch.tensor(indices, device=self.device)
        return {
            "received": pick(self.received, at),
            "memory": pick(group.memory, group.places(indices)),
            "gradients": pick(self.gradients, at),
            "counts": self.counts[at],
            "steps": self.steps[at],
        }

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
        uploads = self.part(step.name, step.part) if step.send is None else self._made(index, step, here)
        answers = []
        for j, job in enumerate(self.jobs):
            own = [i for i in here if self.members[i].job == j]
            mine = self.doors[j].up(step.name, [self.members[i].name for i in own], rows_of(uploads, own))
            weights = averaging_weights(self.training.weighting, [len(self.members[i].train) for i in own])
            numbers = [self.members[i].client for i in own]
            exchange = job.method.steps(self.round_number)[index]
            assert isinstance(exchange, Exchange)
            answers.append(self.servers[j].combine(exchange, mine, weights, numbers, self.round_number))
        if step.refine:
            self._refine(index, step, here, answers)
        for j, answer in enumerate(answers):
            own = [i for i in here if self.members[i].job == j]
            for place in range(len(own)) if step.each else range(1):
                self.doors[j].down(answer_of(answer, place, step.each), 1 if step.each else len(own))
            self._hand_out(step, own, answer)
        if not step.each:
            self.latest[step.name] = answers if self.training.participation < 1 else []
            self.missed[step.name] = [i for i in range(len(self.members)) if i not in set(here)]

    def _made(self, index: int, step: Exchange, here: Sequence[int]) -> dict[str, Tensor]:
        """What ``send`` makes for the members that take part, at their places in the stack."""
        find, uploads = self.find(("step", index)), dict[str, Tensor]()
        for group in self.groups:
            indices = [i for i in group.indices if i in set(here)]
            if indices:
                seen = self._whole(group, indices, step.split, step.roles)
                with torch.no_grad():
                    made = mapped(self, group, indices, lambda method, batch: dict(find(method).send(batch)), seen)
                uploads = put(uploads, made, torch.tensor(indices, device=self.device), len(self.members))
        return uploads

    def _hand_out(self, step: Exchange, indices: Sequence[int], answer: Any) -> None:
        """One answer to all of these members, or with a row for each of them."""
        at, role = torch.tensor(indices, device=self.device), step.target
        if not isinstance(answer, dict):
            answer = {n: torch.stack([one[n] for one in answer]) for n in answer[0]}
        if role is not None:
            for n, t in answer.items():
                self.weights[role][n][at] = t
            if role not in self.method.anchors:
                return
        wide = {n: t if step.each else t.expand(len(indices), *t.shape) for n, t in answer.items()}
        self.received[step.name] = put(self.received.get(step.name, {}), wide, at, len(self.members))

    def _refine(self, index: int, step: Exchange, here: Sequence[int], answers: list[Any]) -> None:
        """The server's training on public rows, done in the place of each job's first member."""
        assert step.refine is not None
        assert step.target is not None
        role, rows = step.target, [getattr(m, step.refine.split) for m in self.members]
        teachers, firsts = {}, []
        for j in range(len(self.jobs)):
            own = [i for i in here if self.members[i].job == j]
            teachers[own[0]] = self.forward.outputs(role, own, [rows[i] for i in own])[0]
            firsts.append(own[0])
        for first, answer in zip(firsts, answers, strict=True):
            self._hand_out(step, [first], answer)
        for count in {len(t) for t in teachers.values()}:
            alike = [i for i in firsts if len(teachers[i]) == count]
            self._train(("refine", index), step.refine, alike, 0, teachers)
        for j, first in enumerate(firsts):
            answers[j] = {n: self.weights[role][n][first].clone() for n in answers[j]}
            self.servers[j].sent[step.name] = {n: answers[j][n] for n in self.servers[j].sent[step.name]}

    # --- answers -----------------------------------------------------------------------------------------

    def scale_of(self, indices: Tensor) -> Scale:
        """Each member's scale, to be applied to [models, B, ...]."""
        return self.scales.of_rows(self.job_of[indices])

    @contextmanager
    def personalised(self) -> Iterator[None]:
        """The clients as they answer: after the method's ``personalise``, which is undone in the end."""
        steps = () if self.personal else self.method.personalise()
        if not steps:
            yield
            return
        names = ("weights", "received", "gradients", "steps")
        before = {name: _cloned(getattr(self, name)) for name in names}
        groups, trust = [(group, group.memory) for group in self.groups], self.trust_log.copy()
        self.personal = True
        try:
            for index, (step, again) in enumerate(numbered(steps)):
                assert not isinstance(step, Exchange)
                self._perform(("personalise", index), step, range(len(self.members)), again)
            yield
        finally:
            self.personal = False
            for name, value in before.items():
                setattr(self, name, value)
            self.groups = [group for group, _ in groups]
            for group, memory in groups:
                group.memory = memory
            self.trust_log.restore(trust)

    def evaluate(self, split: str = "test") -> list[list[float]]:
        """The task's metric per job and client."""
        values: dict[int, float] = {}
        with precision(self.training.precision, self.device), self.personalised():
            for group in self.groups:
                for start in range(0, len(group.indices), self.limit):
                    here = group.indices[start : start + self.limit]
                    rows = [getattr(self.members[i], split) for i in here]
                    out = self.forward.predictions(group, here, rows)
                    for at, i in enumerate(here):
                        job = self.jobs[self.members[i].job]
                        raw = self.y[torch.from_numpy(rows[at]).to(self.device)]
                        y = Scale.of(job.federation, self.device).targets(raw)
                        values[i] = job.task.score(out[at, : len(rows[at])], y)
        return [[values[i] for i in self._members_of(j)] for j in range(len(self.jobs))]

    def clients_of(self, job: int) -> list[Client]:
        """A job's clients with their models as they are now, one by one; inside ``personalised`` as they answer."""
        one, clients = self.jobs[job], []
        scale = Scale.of(one.federation, self.device)
        rows = Rows(self.x, scale.targets(self.y), scale)
        for i in self._members_of(job):
            client = Client(one, self.members[i].client, rows=rows)
            for role, tree in self.weights.items():
                client.models[role].load_state_dict(pick(tree, i), strict=False)  # tied: one name
            client.received = pick(self.received, i)
            client.gradients = pick(self.gradients, i)
            client.steps, client.round, client.personal = int(self.steps[i]), self.round_number, self.personal
            group = next(group for group in self.groups if i in group.indices)
            client.memory = pick(group.memory, group.indices.index(i))
            clients.append(client)
        return clients

    # --- interruption ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "round": self.round_number,
            "weights": self.weights,
            "memory": [[group.indices, group.memory] for group in self.groups],
            "received": self.received,
            "gradients": self.gradients,
            "steps": self.steps,
            "servers": [server.state() for server in self.servers],
            "latest": self.latest,
            "missed": self.missed,
            "bytes": [[door.bytes_up, door.bytes_down] for door in self.doors],
            "trust": self.trust,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.round_number, self.trust, self.missed = state["round"], state["trust"], state["missed"]
        for name in ("weights", "received", "gradients", "steps", "latest"):
            setattr(self, name, moved(state[name], self.device))
        for server, saved in zip(self.servers, state["servers"], strict=True):
            server.restore(moved(saved, self.device))
        saved_groups = [indices for indices, _ in state["memory"]]
        for group in [group for group in self.groups if group.indices not in saved_groups]:
            split(self.groups, group)
        if [group.indices for group in self.groups] != saved_groups:
            raise ValueError("the checkpoint's clients are grouped in another way")
        for group, (_, memory) in zip(self.groups, state["memory"], strict=True):
            group.memory = moved(memory, self.device)
        for door, (up, down) in zip(self.doors, state["bytes"], strict=True):
            door.bytes_up, door.bytes_down = up, down


def _cloned(tree: Any) -> Any:
    return {key: _cloned(value) for key, value in tree.items()} if isinstance(tree, dict) else tree.clone()
