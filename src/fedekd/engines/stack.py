"""Stacked models: every client of many jobs trains in one tensor program.

Weights are held as [members, ...]; a forward pass is the module mapped over that axis (``torch.func.vmap``), and the
sum of the models' losses is differentiated once, which gives each model its own gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedekd import parts, rng
from fedekd.engines import return_checks
from fedekd.engines.batch import label_counts
from fedekd.engines.chunk import Chunk
from fedekd.engines.forward import Forward, RowTable
from fedekd.engines.groups import Find, MethodGroup, make_groups, mapped, split
from fedekd.engines.job import Advance, Job, Scale, Training, TrustLog, pick_device
from fedekd.engines.lanes import Lane, Lanes
from fedekd.engines.member_rows import MANY, MemberRows, worth_bringing
from fedekd.engines.on_device import on_device
from fedekd.errors import FedekdError
from fedekd.exchange import exchanges, finite_rows
from fedekd.methods.base import Copy, Exchange, Method, Remember, Step, Train
from fedekd.trees import pick

SHRINK_STAGES = 12  # stack sizes that a chunk goes through on a GPU
LANES = 3  # chunks that train side by side on a GPU
CHUNK = 96  # models trained at once: more gain little speed, and clients of like size waste less padding


@dataclass(frozen=True)
class StackMember:
    """One model of the stack: a client of a job, or a job's server."""

    job: int
    client: int
    name: str
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    public: np.ndarray


class Stack:
    """The members of some jobs, their models and what they know, and the steps that they do by themselves."""

    def __init__(
        self,
        jobs: Sequence[Job],
        members: Sequence[StackMember],
        advance: Advance | None = None,
        *,
        data: tuple[Tensor, Tensor],
        chunk: int = CHUNK,
        fused: bool = True,
        graphs: bool = True,
        lanes: int = LANES,
    ) -> None:
        """``data``: the dataset's rows on the device, which stacks share.

        ``fused`` and ``graphs`` switch our kernels of layers and Adam and CUDA graphs off, to measure what they give.
        """
        self.jobs, self.members, first = list(jobs), list(members), jobs[0]
        self.task, self.training, self.method = first.task, first.training, first.method
        self.device = pick_device(first.training.device)
        self.advance = advance or (lambda round, client, samples: None)
        self.limit, self.fused = chunk, fused
        self.graphs = graphs and self.device.type == "cuda"
        self.shrink_stages = SHRINK_STAGES if self.graphs else None
        self.lanes = Lanes(self.device, lanes, self.graphs)
        dataset, (self.x, self.y) = first.federation.dataset, data
        self.scales = Scale.stack([Scale.of(job.federation, self.device) for job in jobs])
        self.job_of = torch.tensor([m.job for m in self.members], device=self.device)
        numbers = [found for job in jobs if (found := job.federation.groups) is not None]
        self.row_groups = torch.from_numpy(np.stack(numbers)).to(self.device) if numbers else None
        """[jobs, rows of the dataset]: see ``Federation.groups``."""
        targets = [torch.from_numpy(dataset.y[m.train]) for m in self.members]
        counts = [label_counts(self.task.name, y, dataset.outputs) for y in targets]
        self.counts = torch.stack(counts).to(self.device)
        self.exchanges = exchanges(self.method, self.training.rounds)
        self.participation = min(job.participation for job in jobs)
        self.in_turns = self.participation < 1 and len(self.members) >= MANY
        """Whether members get rows of their own as they come: see ``member_rows``."""
        self.forward = Forward(self, fused)
        self.weights = self.forward.initial()
        every = [w for tree in self.weights.values() for w in tree.values()]
        self.brings = self.in_turns and worth_bringing(every, self.participation, self.device)
        """Whether the rows of those at work go to the device together, and the next ones' meanwhile."""
        self.brought: list[MemberRows] = []  # while someone is at work
        self.next_round: Sequence[int] = []  # who takes part in it
        self.groups = make_groups(self)
        self.steps = torch.zeros(len(self.members), dtype=torch.long, device=self.device)
        self.chunks: dict[tuple[Any, ...], tuple[Any, Chunk]] = {}
        self.tables: dict[tuple[Any, ...], RowTable] = {}
        self.trust_log = TrustLog(len(self.members), self.device)
        self.unsettled: list[Callable[[], None]] = []
        """Checks whose answers the device still works on; whoever trains the stack has to ``settle`` them."""
        self.round_number = 0
        self.personal = False
        """Whether the members are as they answer, after ``personalise``."""

    def all_stay(self, here: Sequence[int]) -> bool:
        """Whether these members are all, in their order, with rows that stay where they are."""
        return not self.in_turns and list(here) == list(range(len(self.members)))

    def settings_of(self, step: Train | None = None) -> Training:
        """The settings of a step in this round; without a step, the stack's own."""
        training = self.training.of(step) if step else self.training
        return training.at(None if self.personal else self.round_number)

    def part(self, role: str | None, part: Any) -> dict[str, Any]:
        """The stacked weights and buffers of a role, or of a part of it."""
        assert role is not None
        tree = self.weights[role]
        return {n: tree[n] for n in parts.names(part, self.forward.plain[role]) if n in tree}  # tied: one name

    def trainable_part(self, role: str | None, part: Any) -> dict[str, Any]:
        assert role is not None
        return self.forward.only_trainable(role, self.part(role, part))

    def scale_of(self, indices: Tensor) -> Scale:
        """Each member's scale, to be applied to [models, B, ...]."""
        return self.scales.of_rows(self.job_of[indices])

    def groups_of(self, indices: Tensor, rows: Tensor, places: Tensor, real: Tensor) -> Tensor:
        """[models, B]: the numbers of rows' groups, given what the rows are in the dataset and in their split."""
        if self.row_groups is None:
            return places
        return torch.where(real, self.row_groups[self.job_of[indices].unsqueeze(1), rows], places)

    def table(self, split: str | None, indices: Sequence[int], longest: int | None = None) -> RowTable:
        """These members' rows of a split, or none; kept where the same members come again in every round."""
        key = (split, longest, *indices)
        found = self.tables.get(key)
        if found is None:
            none = np.empty(0, np.int64)
            rows = [getattr(self.members[i], split) if split else none for i in indices]
            found = RowTable(self, indices, rows, longest)
            if self.participation == 1:
                self.tables[key] = found
        return found

    def find(self, where: tuple[Any, ...]) -> Find:
        """How to get a step from a method: by its place in a round, or among what is done before answering."""
        round = self.round_number

        def found(method: Method) -> Any:
            step = self._steps(where, method, round)[where[1]]
            return step.refine if where[0] == "refine" and isinstance(step, Exchange) else step

        return found

    @staticmethod
    def _steps(where: tuple[Any, ...], method: Method, round: int) -> Sequence[Step]:
        return method.personalise() if where[0] == "personalise" else method.steps(round)

    def by_group(self, here: Iterable[int], work: Callable[[MethodGroup, list[int]], None]) -> None:
        """Call ``work`` for members whose functions are one mapped function: one group, in which all know the same.

        A parameter that differs within a group is a tensor there. Where a method cannot do with one, as in an `if`, its
        group is split by value and the parameter is a number again.
        """
        left, waiting = set(here), list(self.groups)
        while waiting:
            group = waiting.pop(0)
            for indices in group.alike([i for i in group.indices if i in left]):
                try:
                    work(group, indices)
                except (RuntimeError, TypeError, ValueError) as error:
                    if not group.varying or isinstance(error, torch.OutOfMemoryError):
                        raise
                    waiting = split(self.groups, group) + waiting
                    break
                left -= set(indices)

    def perform(self, where: tuple[Any, ...], step: Train | Remember | Copy, here: Sequence[int], again: int) -> None:
        if isinstance(step, Train):
            self.train(where, step, here, again)
        elif isinstance(step, Remember):
            self._remember(where, step, here)
        else:
            self._copy(where, step, here)

    # --- training ----------------------------------------------------------------------------------------

    def train(self, where: tuple[Any, ...], step: Train, here: Iterable[int], again: int, teachers: Any = None) -> None:
        """Largest clients first, in chunks of like size; one that does not fit is cut in two."""
        return_checks.to_train(self.method, step, {role: self.trainable_part(role, step.part) for role in step.roles})

        def work(group: MethodGroup, indices: list[int]) -> None:
            left = sorted(indices, key=lambda i: -len(getattr(self.members[i], step.split)))
            while left:
                now = left[: self.limit]
                self.lanes.in_turn |= self._moves_when_written(step)
                lane = self._lane(where, step, now)
                with self.lanes.within(lane):
                    before = self.trust_log.copy()
                    try:
                        gradients = self._train_chunk(where, step, group, now, again, teachers, lane)
                    except torch.OutOfMemoryError:
                        self._shrink(len(now))
                        self.trust_log.restore(before, now)
                        self._wait()  # the next try may be in another lane
                        continue
                left_behind.append((now, gradients))
                left = left[self.limit :]

        here, left_behind = list(here), list[tuple[list[int], dict[str, Any]]]()
        with self._seeded(step.roles[0], again), self.lanes.side_by_side():
            self.by_group(here, work)
        for members, gradients in left_behind:  # to one tensor for all, which no lane may write while others read
            self.put("gradients", gradients, members)
        self._ask_whether_finite(step.roles, here)

    @contextmanager
    def _seeded(self, role: str, again: int) -> Iterator[None]:
        """torch's own generators, which a method's loss may draw from: they are the caller's again afterwards."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            seed = rng.integer(self.jobs[0].seed, "dropout of a stack", role, self.round_number, again)
            torch.default_generator.manual_seed(seed)
            if self.device.type == "cuda":
                torch.cuda.manual_seed(seed)
            yield

    def _ask_whether_finite(self, roles: Iterable[str], here: Sequence[int]) -> None:
        at, whole = on_device(here, self.device), self.all_stay(here)
        every = [w for role in roles for w in self.weights[role].values() if w.dtype.is_floating_point]
        found = finite_rows(w if whole else w[at] for w in every).all(0)
        self.unsettled.append(lambda: self._check_finite(found, here))

    def _check_finite(self, found: Tensor, asked: Sequence[int]) -> None:
        bad = (~found).nonzero().flatten().tolist()
        if bad:
            member = self.members[asked[bad[0]]]
            raise FedekdError(
                f"{self.jobs[member.job].method.name}: client {member.name} diverged in round "
                f"{self.round_number + 1} (seed {self.jobs[member.job].seed}); lower --lr"
            )

    def _chunk(
        self, where: Any, step: Train, group: MethodGroup, indices: list[int], again: int, teachers: Any, lane: Lane
    ) -> Chunk:
        """Ready to train: the chunk of an earlier round, if its step is the same, with its buffers and graphs."""
        key, known = (where, *indices), self.known(group, indices)
        own = self.find(where)(group.method), again
        made = self.chunks.get(key)
        if made is None or made[0] != own or made[1].group is not group or not made[1].fits(known):
            if self.participation < 1:
                self.chunks.clear()  # other members each round: earlier chunks would only take memory
            made = self.chunks[key] = own, Chunk(self, self.find(where), step, group, indices, again, lane)
        made[1].load(known, teachers)
        return made[1]

    def _moves_when_written(self, step: Train) -> bool:
        """Whether writing some members' weights may move all members' to a larger tensor."""
        own = (w for role in step.roles for w in self.weights[role].values())
        return any(isinstance(w, MemberRows) and w.near is None for w in own)

    def _lane(self, where: tuple[Any, ...], step: Train, indices: list[int]) -> Lane:
        """Where these members train: where they have trained before, else where there is least to do in this step."""
        known = self.chunks.get((where, *indices))
        if known is not None:
            return known[1].lane
        return self.lanes.least(where, sum(len(getattr(self.members[i], step.split)) for i in indices))

    def _train_chunk(self, *about: Any) -> dict[str, Any]:
        """The gradients that it leaves. Nobody else keeps the chunk, so that it makes room when it is forgotten."""
        chunk = self._chunk(*about)
        chunk.train()
        return chunk.gradients()

    def draw_ahead(self) -> None:
        """The next round's batches, for the chunks that trained in this one and whose step comes again."""
        then = self.round_number + 1
        if self.participation < 1 or then >= self.training.rounds:
            return
        for (where, *_), ((step, _), chunk) in self.chunks.items():
            if chunk.loaded == self.round_number:
                steps = self._steps(where, chunk.method, then)
                if list(steps[where[1] : where[1] + 1]) == [step]:
                    chunk.draw(then)

    def put(self, what: str, found: Mapping[str, Any], members: Sequence[int]) -> None:
        """What these members know of one kind, in whatever groups they are by now."""
        for group in self.groups:
            mine = [k for k, i in enumerate(members) if i in group]
            if mine:
                own = found if len(mine) == len(members) else pick(found, on_device(mine, self.device))
                places = group.places([members[k] for k in mine])
                getattr(group, what).put(own, places, f"method {group.method.name!r}: {what}")

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _shrink(self, models: int) -> None:
        """Make room: rows that were brought go first, then chunks train one by one, then a chunk has fewer models."""
        lanes = len(self.lanes)
        self._wait()  # other lanes may be at work in what is given back
        if self.brings:
            self.brings = False
            for rows in self.brought:
                rows.give_up()
        elif lanes > 1:
            lanes = 1
        elif models == 1:
            raise FedekdError("one model's batch does not fit on the device; lower --batch-size") from None
        else:
            self.limit = (models + 1) // 2
        self.chunks.clear()
        self.tables.clear()
        self.lanes = Lanes(self.device, lanes, self.graphs)
        torch.cuda.empty_cache()

    # --- the other steps ---------------------------------------------------------------------------------

    def _remember(self, where: tuple[Any, ...], step: Remember, here: Sequence[int]) -> None:
        find = self.find(where)

        def work(group: MethodGroup, indices: list[int]) -> None:
            found = self.over_split(
                group, indices, step, lambda method, batch: return_checks.remembered(method, find(method), batch)
            )
            group.memory.put(found, group.places(indices), f"method {group.method.name!r}: memory")

        self.by_group(here, work)

    def _copy(self, where: tuple[Any, ...], step: Copy, here: Sequence[int]) -> None:
        find, target = self.find(where), self.part(step.target, step.part)
        wanted = {n: w.shape[1:] for n, w in target.items()}

        def work(group: MethodGroup, indices: list[int]) -> None:
            at = on_device(indices, self.device)
            if isinstance(step.source, str):
                found = return_checks.copied(group.method, step, pick(self.weights[step.source], indices[0]), wanted)
                made = {n: self.weights[step.source][n][at] for n in found}
            else:
                made = self.over_split(
                    group,
                    indices,
                    None,
                    lambda method, batch: return_checks.copied(method, step, find(method).source(batch), wanted),
                )
            for n, w in made.items():
                target[n][at] = w

        self.by_group(here, work)

    @torch.no_grad()
    def over_split(
        self,
        group: MethodGroup,
        indices: list[int],
        step: Remember | Exchange | None,
        call: Callable[[Method, Any], Any],
    ) -> Any:
        """``call(method, batch)`` for what these members see of a whole split, or of no rows at all.

        A split is padded to the longest of all members, whoever is here: what is kept of it has one shape.
        """
        name, roles = (step.split, step.roles) if step else (None, ())
        table = self.table(name, indices, max(len(getattr(m, name)) for m in self.members) if name else 0)
        uniform = torch.zeros((*table.rows.shape, self.method.uniforms))
        if self.method.uniforms:
            for row, (i, n) in enumerate(zip(indices, table.lengths, strict=True)):
                key = (self.jobs[self.members[i].job].seed, "remember", self.members[i].client, self.round_number)
                uniform[row, :n] = torch.from_numpy(rng.stream(*key).random((n, self.method.uniforms))).float()
        needs, places = group.method.needs_features, torch.arange(table.rows.shape[1], device=self.device)
        places = places.expand(table.rows.shape)
        out = {role: self.forward.outputs(role, table, needs) for role in roles}
        seen = {
            **self.known(group, indices),
            "y": table.scale.targets(self.y[table.rows]),
            "outputs": {role: o for role, (o, _) in out.items()},
            "features": {role: f for role, (_, f) in out.items()} if needs else {},
            "weights": {
                role: self.forward.only_trainable(role, pick(self.weights[role], table.at))
                for role in self.method.reads_weights
            },
            "uniform": on_device(uniform, self.device),
            "rows": places,
            "groups": self.groups_of(table.at, table.rows, places, table.mask),
            "mask": table.mask,
        }
        return mapped(self, group, indices, call, seen, self.settings_of().lr)

    def known(self, group: MethodGroup, indices: Sequence[int]) -> dict[str, Any]:
        """What these members know beside their rows and models."""
        at, places = on_device(list(indices), self.device), group.places(indices)
        kept = {name: getattr(group, name).of(places) for name in ("received", "memory", "gradients")}
        return {**kept, "counts": self.counts[at], "steps": self.steps[at]}


def settle(checks: list[Callable[[], None]]) -> None:
    """Look at what the device was asked for, the oldest first; this waits for the device."""
    while checks:
        checks.pop(0)()
