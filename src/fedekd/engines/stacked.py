"""The stacked engine: every client of many jobs trains in one tensor program.

Weights are held as [models, ...]; a forward pass is the module mapped over that axis (``torch.func.vmap``), and the
sum of the models' losses is differentiated once, which gives each model its own gradient. Jobs in a stack share the
data, the architecture, the training settings and the shape of their steps; seeds, alphas, float hyper-parameters and
variants of a method may differ. The method files are the serial engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedekd import models, rng
from fedekd.engines.client import EVALUATION_BATCH, Client, Rows, moved
from fedekd.engines.job import Advance, Job, Scale, TrustLog, pick_device, precision, trust_of_round
from fedekd.engines.piece import Group, Piece, pick
from fedekd.engines.schedule import schedule
from fedekd.engines.stackable import NotStackable, check, make_template
from fedekd.engines.stacking import graph_pool, not_finite, padded, stack_trees
from fedekd.errors import FedekdError
from fedekd.exchange import Door, averaging_weights, shared_roles
from fedekd.methods.base import Batch, Beginning, Exchange, Method, Remember, Train
from fedekd.trees import with_values

EVALUATION_VALUES = 2**29  # of the inputs at most at once: large images go in smaller batches
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
        self.fused = fused
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
        self.lr = self.training.lr
        dataset = first.federation.dataset
        self.x, self.y = (torch.from_numpy(np.ascontiguousarray(a)).to(self.device) for a in (dataset.x, dataset.y))
        self.scales = Scale.stack([Scale.of(job.federation, self.device) for job in jobs])
        self.members = [
            Member(j, k, name, split.train, split.val, split.test)
            for j, job in enumerate(jobs)
            for k, (name, split) in enumerate(zip(job.federation.names, job.federation.clients, strict=True))
        ]
        self.job_of = torch.tensor([m.job for m in self.members], device=self.device)
        self.templates = {role: self._template(role) for role in self.method.roles}
        self.weights = {role: self._initial(role) for role in self.method.roles}
        self._try_mapping()
        self.groups = self._group()
        self.doors = [Door(shared_roles(job.method, self.training.rounds)) for job in jobs]
        roles = self.doors[0].roles
        starts = torch.tensor([self._members_of(j)[0] for j in range(len(jobs))], device=self.device)
        self.received = {role: {n: w[starts] for n, w in self.weights[role].items()} for role in roles}
        self.server: dict[str, list[dict[str, Tensor]]] = {role: [{} for _ in jobs] for role in roles}
        self.pieces: dict[tuple[int, ...], tuple[Any, Piece]] = {}
        self.trust_log = TrustLog(len(self.members), self.device)
        self.round_number = 0
        self.trust: list[list[dict[str, Any]]] = [[] for _ in jobs]

    # --- setting up --------------------------------------------------------------------------------------

    def _template(self, role: str) -> nn.Module:
        module = make_template(self.jobs[0], role).to(self.device)
        if self.device.type == "cuda" and self.fused:
            from fedekd.engines import kernels

            if kernels.available(self.device):
                return kernels.lower(module, self.training.precision)
        return module

    def _try_mapping(self) -> None:
        """One small forward pass, to learn whether torch.func can map the user's modules."""
        rows = [member.train[:2] for member in self.members[:2]]
        for role, template in self.templates.items():
            try:
                self.outputs(role, range(len(rows)), rows)
            except (RuntimeError, ValueError, TypeError) as error:
                reason = str(error).strip().split("\n")[0][:120]
                raise NotStackable(f"torch.func cannot map {type(template).__name__} ({reason})") from None

    def _initial(self, role: str) -> dict[str, Tensor]:
        dataset, by_seed = self.jobs[0].federation.dataset, {}
        for job in self.jobs:
            if job.seed not in by_seed:
                module = models.build(role, job.factory(role), dataset.x.shape[1:], dataset.outputs, job.seed, 0)
                by_seed[job.seed] = {n: w.detach() for n, w in module.named_parameters()}
        seeds = [self.jobs[m.job].seed for m in self.members]
        names = by_seed[seeds[0]]
        return {n: torch.stack([by_seed[s][n] for s in seeds]).to(self.device) for n in names}

    def _group(self) -> list[Group]:
        """Members whose losses are one mapped function: same class, differing only in float parameters."""
        sorted_: dict[tuple[Any, ...], list[int]] = {}
        for i, member in enumerate(self.members):
            method = self.jobs[member.job].method
            fixed = tuple((f.name, v) for f in fields(method) if not isinstance(v := getattr(method, f.name), float))
            sorted_.setdefault((type(method), fixed), []).append(i)
        groups = []
        for indices in sorted_.values():
            methods = [self.jobs[self.members[i].job].method for i in indices]
            values = {f.name: [getattr(m, f.name) for m in methods] for f in fields(methods[0])}
            varying = {
                name: torch.tensor(column, device=self.device)
                for name, column in values.items()
                if isinstance(column[0], float) and len(set(column)) > 1
            }
            groups.append(Group(methods[0], indices, varying, self._begin(methods[0], indices)))
        return groups

    def _begin(self, method: Method, indices: list[int]) -> dict[str, Any]:
        widths: dict[str, int] = {}
        if method.needs_features:
            one = [self.members[indices[0]].train[:1]]
            widths = {role: self.outputs(role, indices[:1], one, features=True)[1].shape[-1] for role in method.roles}
        memories = []
        for i in indices:
            weights = {role: {n: w[i] for n, w in tree.items()} for role, tree in self.weights.items()}
            memories.append(method.begin(Beginning(weights, widths, self.jobs[self.members[i].job].seed)))
        return stack_trees(memories, self.device)

    def _members_of(self, job: int) -> list[int]:
        return [i for i, m in enumerate(self.members) if m.job == job]

    # --- a round -----------------------------------------------------------------------------------------

    def round(self) -> None:
        self.trust_log.clear()
        for door in self.doors:
            door.log.clear()
        with precision(self.training.precision, self.device):
            for index, step in enumerate(self.method.steps(self.round_number)):
                if isinstance(step, Train):
                    self._train(index, step)
                elif isinstance(step, Remember):
                    self._remember(index, step)
                else:
                    self._exchange(index, step)
        rows = self.trust_log.rows()
        for j, history in enumerate(self.trust):
            history += trust_of_round(self.round_number, rows[self._members_of(j)])
        self.round_number += 1

    def _train(self, index: int, step: Train) -> None:
        """Group by group, largest clients first, in pieces of like size; one that does not fit is cut in two."""
        for group in self.groups:
            waiting = sorted(group.indices, key=lambda i: -len(self.members[i].train))
            while waiting:
                now, before = waiting[: self.limit], self.trust_log.copy()
                try:
                    self._piece(index, step, group, now).train()
                except torch.OutOfMemoryError:
                    self._shrink(len(now))
                    self.trust_log.restore(before)
                    continue
                waiting = waiting[self.limit :]
        self._check_finite(step.roles)

    def _check_finite(self, roles: Iterable[str]) -> None:
        """For all models at once: asking one by one makes the host wait for the device as often."""
        bad = [i for role in roles for w in self.weights[role].values() for i in not_finite(w)]
        if bad:
            member = self.members[bad[0]]
            raise FedekdError(
                f"{self.jobs[member.job].method.name}: client {member.name} diverged in round "
                f"{self.round_number + 1} (seed {self.jobs[member.job].seed}); lower --lr"
            )

    def _piece(self, index: int, step: Train, group: Group, indices: list[int]) -> Piece:
        """The piece of an earlier round, if its step is the same, with its buffers and graphs."""
        key, own = (index, *indices), group.method.steps(self.round_number)[index]
        known = self.pieces.get(key)
        if known is None or known[0] != own:
            known = self.pieces[key] = own, Piece(self, index, step, group, indices)
        return known[1]

    def _shrink(self, models: int) -> None:
        if models == 1:
            raise FedekdError("one model's batch does not fit on the device; lower --batch-size") from None
        self.limit = (models + 1) // 2
        self.pieces.clear()
        if self.graphs:
            self.pool, self.pool_keeper = graph_pool(self.device)
        torch.cuda.empty_cache()

    def plan(self, i: int, role: str) -> Any:
        member, training = self.members[i], self.training
        return schedule(
            self.jobs[member.job].seed, member.client, role, self.round_number,
            n=len(member.train), epochs=training.epochs, batch_size=training.batch_size, draws=self.method.draws,
        )  # fmt: skip

    def _remember(self, index: int, step: Remember) -> None:
        for group in self.groups:
            rows = [getattr(self.members[i], step.split) if step.split else np.empty(0, int) for i in group.indices]
            table, mask = padded(rows, self.device)
            out = {role: self.outputs(role, group.indices, rows)[0] for role in step.roles}
            uniform = torch.zeros((*table.shape, self.method.draws))
            for row, (i, r) in enumerate(zip(group.indices, rows, strict=True)):
                key = (self.jobs[self.members[i].job].seed, "remember", self.members[i].client, self.round_number)
                uniform[row, : len(r)] = torch.from_numpy(rng.stream(*key).random((len(r), self.method.draws))).float()
            at = torch.tensor(group.indices, device=self.device)
            weights = {role: {n: w[at] for n, w in self.weights[role].items()} for role in self.method.anchors}
            received = self.received_by(group.indices)

            def compute(
                varying: Any, y: Tensor, mask: Tensor, out: Any, weights: Any, received: Any, memory: Any,
                uniform: Tensor, method: Method = group.method,
            ) -> Any:  # fmt: skip
                own = with_values(method, varying).steps(self.round_number)[index]
                assert isinstance(own, Remember)
                return own.compute(Batch(self.task, y, out, {}, weights, received, memory, uniform, mask))

            y = self.scale_of(at).targets(self.y[table])
            with torch.no_grad():
                args = (group.varying, y, mask, out, weights, received, group.memory, uniform.to(self.device))
                group.memory = {**group.memory, **vmap(compute)(*args)}

    def received_by(self, indices: Sequence[int]) -> dict[str, dict[str, Tensor]]:
        """What each of these members last received, for the roles that the method reads."""
        at = self.job_of[torch.tensor(indices, device=self.device)]
        return {role: {n: w[at] for n, w in self.received[role].items()} for role in self.method.anchors}

    def _exchange(self, index: int, step: Exchange) -> None:
        role, stack = step.role, self.weights[step.role]
        self._check_finite([role])
        new: dict[str, list[Tensor]] = {n: [] for n in stack}
        for j, job in enumerate(self.jobs):
            here = self._members_of(j)
            for i in here:
                self.doors[j].admit(role, self.members[i].name)
                self.doors[j].count(role, self.members[i].name, {n: w[i] for n, w in stack.items()})
            weights = averaging_weights(self.training.weighting, [len(self.members[i].train) for i in here])
            share = torch.tensor(weights, device=self.device)
            share = share / share.sum()
            mean = {n: torch.einsum("k,k...->...", share, w[here[0] : here[-1] + 1]) for n, w in stack.items()}
            own = job.method.steps(self.round_number)[index]
            assert isinstance(own, Exchange)
            if own.server:
                previous = {n: w[j] for n, w in self.received[role].items()}
                changed, memory = own.server(mean, previous, self.server[role][j])
                mean, self.server[role][j] = dict(changed), dict(memory)
            self.doors[j].down(mean, len(here))
            for n, w in mean.items():
                new[n].append(w)
        self.received[role] = {n: torch.stack(w) for n, w in new.items()}
        for n, w in self.received[role].items():
            stack[n].copy_(w[self.job_of])

    # --- outputs -----------------------------------------------------------------------------------------

    def forward(self, role: str, weights: dict[str, Tensor], x: Tensor, features: bool) -> tuple[Tensor, Tensor]:
        """Outputs [models, B, ...], and the features if asked for (else the outputs again)."""
        template = self.templates[role]

        def one(weights: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
            caught: list[Tensor] = []
            hook = None
            if features:
                head = models.last_linear(template)
                hook = head.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
            try:
                output = self.task.read(functional_call(template, weights, (x,)))
            finally:
                if hook:
                    hook.remove()
            return output, caught[-1].float() if features else output

        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.training.precision == "bf16"):
            return vmap(one, randomness="different")(weights, x)

    @torch.no_grad()
    def outputs(
        self, role: str, indices: Sequence[int], rows: Sequence[np.ndarray], features: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Frozen models' outputs on whole splits, padded to the longest: [models, n, ...]."""
        self.templates[role].eval()
        at = torch.tensor(indices, device=self.device)
        weights = {n: w[at] for n, w in self.weights[role].items()}
        table, _ = padded(rows, self.device)
        lengths = [len(r) for r in rows]
        order = sorted(range(len(rows)), key=lambda i: -lengths[i])
        sorted_ = torch.tensor(order, device=self.device)
        weights = {n: w[sorted_] for n, w in weights.items()}
        scale = self.scale_of(at[sorted_])
        result: tuple[Tensor, Tensor] | None = None
        size = max(1, min(EVALUATION_BATCH, EVALUATION_VALUES // (len(rows) * self.x[0].numel())))
        for start in range(0, max(lengths), size):
            active = sum(n > start for n in lengths)
            here = sorted_[:active]
            part = table[here, start : start + size]
            x = scale.first(active).inputs(self.x[part])
            out = self.forward(role, {n: w[:active] for n, w in weights.items()}, x, features)
            if result is None:
                result = tuple(o.new_zeros(len(rows), table.shape[1], *o.shape[2:]) for o in out)  # type: ignore[assignment]
            assert result is not None
            for whole, o in zip(result, out, strict=True):
                whole[here, start : start + part.shape[1]] = o
        assert result is not None
        return result

    def scale_of(self, indices: Tensor) -> Scale:
        """Each member's scale, to be applied to [models, B, ...]."""
        return self.scales.of_rows(self.job_of[indices])

    def evaluate(self, split: str = "test") -> list[list[float]]:
        """The task's metric per job and client."""
        values: list[list[float]] = [[] for _ in self.jobs]
        with precision(self.training.precision, self.device):
            for start in range(0, len(self.members), self.limit):
                here = list(range(start, min(start + self.limit, len(self.members))))
                rows = [getattr(self.members[i], split) for i in here]
                out = self.outputs("private", here, rows)[0]
                for at, i in enumerate(here):
                    member = self.members[i]
                    job = self.jobs[member.job]
                    y = Scale.of(job.federation, self.device).targets(
                        self.y[torch.from_numpy(rows[at]).to(self.device)]
                    )
                    values[member.job].append(job.task.score(out[at, : len(rows[at])], y))
        return values

    def clients_of(self, job: int) -> list[Client]:
        """A job's clients with their models as they are now, one by one."""
        one, clients = self.jobs[job], []
        rows = Rows(
            self.x, Scale.of(one.federation, self.device).targets(self.y), Scale.of(one.federation, self.device)
        )
        for i in self._members_of(job):
            client = Client(one, self.members[i].client, rows=rows)
            for role, tree in self.weights.items():
                client.models[role].load_state_dict({n: w[i] for n, w in tree.items()}, strict=False)  # tied: one name
            client.received = {role: pick(tree, job) for role, tree in self.received.items()}
            group = next(group for group in self.groups if i in group.indices)
            client.memory = pick(group.memory, group.indices.index(i))
            clients.append(client)
        return clients

    # --- interruption ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "round": self.round_number,
            "weights": self.weights,
            "memory": [group.memory for group in self.groups],
            "received": self.received,
            "server": self.server,
            "bytes": [[door.bytes_up, door.bytes_down] for door in self.doors],
            "trust": self.trust,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.round_number, self.trust = state["round"], state["trust"]
        self.weights, self.received, self.server = (
            moved(state[key], self.device) for key in ("weights", "received", "server")
        )
        for group, memory in zip(self.groups, moved(state["memory"], self.device), strict=True):
            group.memory = memory
        for door, (up, down) in zip(self.doors, state["bytes"], strict=True):
            door.bytes_up, door.bytes_down = up, down
