"""A chunk of the stack: the models that train together, sorted by size so that the small ones drop out early.

Its buffers stay in place from round to round, so that on a GPU a training step is captured once as a CUDA graph for
each size of the shrinking stack, and afterwards replayed without any work of the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedekd.engines import augment, return_checks, stacked_adam
from fedekd.engines.batch_tables import BatchTables
from fedekd.engines.cuda_graphs import WORTH_CAPTURING, Recorded, capturing
from fedekd.engines.groups import Find, MethodGroup, mapped
from fedekd.engines.lanes import Lane
from fedekd.engines.layers import TrainingPass, dropout_key, step_key
from fedekd.engines.on_device import fill, on_device
from fedekd.engines.schedule import Schedule, schedule
from fedekd.engines.segments import Segment, segments_of
from fedekd.methods.base import Method, Train
from fedekd.methods.batch import Batch
from fedekd.trees import pick

if TYPE_CHECKING:
    from fedekd.engines.forward import Both
    from fedekd.engines.stack import Stack

FEW_INPUTS = 2**24  # numbers in a chunk's rows, up to which a forward pass over them takes the host longer than a GPU


class Chunk:
    """Trains one step's roles for some members of a group, which are sorted by falling size."""

    def __init__(
        self, engine: Stack, find: Find, step: Train, group: MethodGroup, indices: list[int], again: int, lane: Lane
    ) -> None:
        self.engine, self.find, self.step, self.group, self.indices = engine, find, step, group, indices
        self.again, self.training, self.method = again, engine.training.of(step), group.method
        self.lane = lane
        self.features = group.method.needs_features
        self.lr: float | Tensor = engine.settings_of(step).lr
        if engine.graphs and self.training.lr_schedule != "constant":
            # A graph keeps every number that it was captured with. A tensor it reads anew at each replay, the fused
            # optimisers too, if it lies on the device and has 32 bits; `load` writes the round's rate into it.
            self.lr = torch.tensor(self.lr, dtype=torch.float32, device=engine.device)
        device = engine.device
        self.augmented = self.training.augments(step.split) or step.mixed
        splits = [getattr(engine.members[i], step.split) for i in indices]
        batches = (self.training.epochs, self.training.batch_size, group.method.drawn)
        self.tables = BatchTables(splits, *batches, self.augmented, step.mixed, device)
        self.steps = self.tables.steps
        self.clock = torch.zeros(1, dtype=torch.long, device=device)  # the step, on the device
        self.at = on_device(indices, device)
        self.steps_done = on_device(self.steps, device)
        self.scale = engine.scale_of(self.at)
        self.varying = pick(group.varying, on_device(group.places(indices), device)) if group.varying else {}
        trees = {role: engine.trainable_part(role, step.part) for role in step.roles}
        rest = {role: {n: engine.weights[role][n] for n in engine.forward.rest[role]} for role in step.roles}
        self.buffers, self.final_buffers = (
            {role: {n: torch.empty_like(t[self.at]) for n, t in tree.items()} for role, tree in rest.items()}
            for _ in range(2)
        )
        self.drops = any(engine.forward.drops[role] for role in step.roles)
        self.keys = torch.zeros(len(indices), dtype=torch.int32, device=device)  # of each member's dropout this round
        self.weights, self.final, self.moment, self.square, self.total, self.totals = (
            {r: {n: engine.forward.room(r, n, w[self.at]) for n, w in tree.items()} for r, tree in trees.items()}
            if wanted
            else {}
            for wanted in (
                True,
                True,
                self.training.optimizer != "sgd",
                self.training.optimizer == "adam",
                step.gradients,
                step.gradients,
            )
        )
        self.rate: Tensor | None = None
        """The learning rate where our own Adam reads it."""
        every = [w for tree in self.weights.values() for w in tree.values()]
        if engine.fused and self.square and stacked_adam.usable(every, device):
            self.rate = torch.zeros((), device=device)
            self.corrections = stacked_adam.corrections(int(self.steps.max()), device)
        self.trust: Tensor | None = None
        """Of all steps, [steps, models, batch], where the loss tells it: looked at once when the round ends."""
        self.each = torch.arange(len(indices), device=device)[:, None]
        self.inputs: dict[str, Any] = {}  # what else a step reads: frozen outputs, fixed weights, what clients know
        self.plans: tuple[int, list[Schedule]] | None = None  # of a round
        self.loaded = -1  # the last round for which it was
        self.models_read, self.given_back = Recorded(lane.pool), Recorded(lane.pool)
        self.segments = segments_of(self)

    # --- a round -----------------------------------------------------------------------------------------

    def draw(self, round: int) -> list[Schedule]:
        """A round's batches, which may be drawn while the device is still at work in the round before."""
        if self.plans is None or self.plans[0] != round:
            self.plans = round, [self._schedule(i, round) for i in self.indices]
        return self.plans[1]

    def _schedule(self, i: int, round: int) -> Schedule:
        member, engine = self.engine.members[i], self.engine
        return schedule(
            engine.jobs[member.job].seed,
            member.client,
            self.method.root(self.step.roles[0]),
            round,
            split=self.step.split,
            again=self.again,
            n=len(getattr(member, self.step.split)),
            epochs=self.training.epochs,
            batch_size=self.training.batch_size,
            draws=self.method.drawn,
            augment=self.augmented,
            mixed=self.step.mixed,
        )

    def _read_models(self) -> None:
        """What a round's steps begin with: the trained roles' weights, and what the other roles' weights give."""
        engine, step = self.engine, self.step
        below = [self.method.heads[role] for role in step.roles if role in self.method.heads]
        frozen = dict.fromkeys([*step.frozen, *(role for role in below if role not in step.roles)])
        fixed = {
            role: {n: w[self.at] for n, w in engine.weights[role].items() if self._stays(role, n)}
            for role in self.method.roles
            if role in {*step.roles, *self.method.reads_weights} or engine.forward.rest[role]
        }
        self._keep({"taught": {role: self._taught(role) for role in frozen}, "fixed": fixed})
        for role, tree in self.weights.items():
            for n, w in tree.items():
                w.copy_(engine.weights[role][n][self.at])
                for zeros in (self.moment, self.square, self.total):
                    if zeros:
                        zeros[role][n].zero_()
        for role, tree in self.buffers.items():
            for n, t in tree.items():
                t.copy_(engine.weights[role][n][self.at])

    def _keep(self, inputs: dict[str, Any]) -> None:
        """In the tensors that are there, which a CUDA graph reads."""
        if inputs.keys() <= self.inputs.keys():
            pytree.tree_map_(Tensor.copy_, {name: self.inputs[name] for name in inputs}, inputs)
        else:
            self.inputs |= inputs

    def _stays(self, role: str, name: str) -> bool:
        return name not in self.weights.get(role, {}) and name not in self.buffers.get(role, {})

    def _taught(self, role: str) -> Both:
        """What a frozen role gives for all rows; where rows are altered, for those of one epoch after another."""
        outputs, epochs = self.engine.forward.outputs, self.training.epochs if self.augmented else 0
        table = self.engine.table(self.step.split, self.indices)
        if not epochs:
            return outputs(role, table, self.features)
        found, plans = [], self.draw(self.engine.round_number)
        for epoch in range(epochs):
            moves = [plan.moves[epoch] for plan in plans]
            mixed = zip(self.tables.splits, plans, strict=True) if self.step.mixed else ()
            others = [rows[plan.partners[epoch]] for rows, plan in mixed] or None
            found.append(outputs(role, table, self.features, moves, others))
        whole = torch.cat([o for o, _ in found], dim=1)
        return whole, torch.cat([f for _, f in found], dim=1) if self.features else whole

    def fits(self, known: dict[str, Any]) -> bool:
        """Whether what clients know has the shape that the buffers were made for."""
        return not self.inputs or _shapes(known) == _shapes({name: self.inputs[name] for name in known})

    def load(self, known: dict[str, Any], teachers: dict[int, Tensor] | None) -> None:
        """Bring everything that a round changes into the chunk's buffers.

        ``known``: see ``Stack.known``; ``teachers``: by member, [uploads, rows, ...], where the server trains.
        """
        engine = self.engine
        self.loaded = engine.round_number
        self._set_rate(engine.settings_of(self.step).lr)
        self.tables.load(self.draw(engine.round_number))
        self._keep(known | {"steps": self.steps_done})
        if teachers is not None:
            self._keep({"teachers": torch.stack([teachers[i] for i in self.indices])})
        few = len(self.indices) * self.tables.longest * engine.x[0].numel() <= FEW_INPUTS
        stays = self._comes_again() and (few or not self.inputs.get("taught", self.step.frozen))
        self.models_read.do(self._read_models, self._lasting(), stays)
        if self.drops:
            fill(self.keys, [self._dropout_key(i) for i in self.indices])
        self._take(np.flatnonzero(self.steps == 0))
        self.clock.zero_()

    def _lasting(self) -> list[Tensor]:
        """The engine's tensors that a round reads and changes, which have to be the same ones for a graph."""
        weights = [w for tree in self.engine.weights.values() for w in tree.values()]
        return [*weights, self.engine.steps, self.engine.trust_log.counts, self.engine.trust_log.sums]

    def _comes_again(self) -> bool:
        """Whether graphs of what a round begins and ends with would save the host's time in more than one round."""
        engine, left = self.engine, self.engine.training.rounds - self.engine.round_number
        stays = engine.participation == 1 and not (self.augmented or engine.personal)
        return engine.graphs and stays and left > 2

    def _dropout_key(self, i: int) -> int:
        member, root = self.engine.members[i], self.method.root(self.step.roles[0])
        seed = self.engine.jobs[member.job].seed
        return dropout_key(seed, root, member.client, self.engine.round_number, self.again)

    def _set_rate(self, lr: float) -> None:
        if self.rate is not None:
            self.rate.fill_(lr)
        if isinstance(self.lr, Tensor):
            self.lr.fill_(lr)
            return
        self.lr = lr
        for segment in self.segments:
            for group in segment.optimizer.param_groups:
                group["lr"] = lr

    def train(self) -> None:
        """All steps of the round, after ``load``; the engine gets the new weights at the end."""
        engine = self.engine
        engine.forward.learning = frozenset(self.step.roles)
        for segment in self.segments:
            for state in segment.optimizer.state.values():
                if "step" in state:
                    state["step"].fill_(segment.first)
            for t in range(segment.first, segment.last):
                if segment.graph:
                    segment.graph.replay()
                elif segment.warm and self._worth_capturing(segment, t):
                    segment.graph = torch.cuda.CUDAGraph()
                    with capturing(segment.graph, self.lane.pool):
                        self._advance(segment)
                    segment.optimizer.zero_grad()  # gives the gradients' memory back to the pool
                    segment.graph.replay()
                else:
                    self._advance(segment)
                    segment.warm = True
                self._take(np.flatnonzero(self.steps == t + 1))
        self.given_back.do(self._give_back, self._lasting(), self._comes_again())
        for i, steps in zip(self.indices, self.steps, strict=True):
            member = engine.members[i]
            if steps:
                samples = len(getattr(member, self.step.split)) * self.training.epochs
                engine.advance(engine.round_number, member.name, samples)

    def _give_back(self) -> None:
        """To the engine, what the round has made of the members."""
        engine = self.engine
        if self.trust is not None:
            trust, real = (t.transpose(0, 1).flatten(1) for t in (self.trust, self.tables.whole.real))
            engine.trust_log.add(trust, self.at, real)
        for final in (self.final, self.final_buffers):
            for role, tree in final.items():
                for n, w in tree.items():
                    engine.weights[role][n][self.at] = w
        engine.steps[self.at] = self.steps_done

    def _worth_capturing(self, segment: Segment, now: int) -> bool:
        """Small clients have few steps of one size in a round; where the chunk stays as it is, all rounds' count."""
        engine = self.engine
        rounds = engine.training.rounds - 1 - engine.round_number if engine.participation == 1 else 0
        return engine.graphs and segment.last - now + rounds * (segment.last - segment.first) > WORTH_CAPTURING

    def gradients(self) -> dict[str, dict[str, Tensor]]:
        """Their means over the steps of the round, where the step keeps them."""
        count = self.inputs["steps"].clamp(min=1)
        return {
            role: {n: total / count.view(-1, *[1] * (total.dim() - 1)) for n, total in tree.items()}
            for role, tree in self.totals.items()
        }

    def _advance(self, segment: Segment) -> None:
        segment.optimizer.zero_grad()
        self.loss(segment).backward()
        if self.step.gradients:
            for role, tree in segment.leaves.items():
                for n, w in tree.items():
                    if w.grad is not None:
                        self.total[role][n][: segment.active] += w.grad
        segment.optimizer.step()
        self.clock += 1

    def _take(self, done: np.ndarray) -> None:
        """Keep the weights of models that have finished their steps."""
        if len(done):
            rows = slice(int(done[0]), int(done[-1]) + 1)  # sorted by steps, so they lie together
            pairs = ((self.final, self.weights), (self.final_buffers, self.buffers), (self.totals, self.total))
            for kept, now in pairs:
                for role, tree in now.items():
                    for n, w in tree.items():
                        kept[role][n][rows] = w[rows]

    def loss(self, segment: Segment) -> Tensor:
        """The sum of the active models' losses on the batches that the clock points to."""
        engine, active, known = self.engine, segment.active, self.inputs
        rows, positions, lessons, real, uniform, moves, partners = self.tables.at(self.clock, active)
        scale, mine = self.scale.first(active), slice(0, active)
        altered = moves if self.augmented else None, partners if self.step.mixed else None
        x, y = augment.inputs(engine.x, scale, rows, *altered), scale.targets(engine.y[rows])
        fixed = pick(known["fixed"], mine)
        buffers = pick(self.buffers, mine)
        weights = {role: {**fixed[role], **buffers.get(role, {}), **segment.leaves.get(role, {})} for role in fixed}
        taught = {role: self._lesson(whole, lessons) for role, whole in known["taught"].items()}
        key = step_key(self.keys[:active], self.clock) if self.drops else None
        training = TrainingPass(key, real)
        out = engine.forward.through(self.step.roles, weights, x, taught, self.features, training)
        self._move(active)
        named = (*self.step.roles, *self.step.frozen)
        seen = {
            **{name: pick(known[name], mine) for name in ("received", "memory", "gradients", "counts", "steps")},
            "x": x,
            "y": y,
            "outputs": {role: out[role][0] for role in named},
            "features": {role: out[role][1] for role in named} if self.features else {},
            "weights": {role: engine.forward.only_trainable(role, weights[role]) for role in self.method.reads_weights},
            "rest": {role: {n: tree[n] for n in engine.forward.rest[role]} for role, tree in weights.items()},
            "uniform": uniform,
            "rows": positions,
            "groups": engine.groups_of(self.at[:active], rows, positions, real),
            "mask": real,
        }
        if "teachers" in known:
            given, each = known["teachers"][:active], self.each[:active]
            seen["teachers"] = torch.stack([given[each, k, positions] for k in range(given.shape[1])], dim=1)
        if key is not None:
            seen["dropout"] = key
        losses, extra = mapped(
            engine, self.group, self.indices[:active], self._one, seen, self.lr, pick(self.varying, mine), training
        )
        if "trust" in extra:
            if self.trust is None:
                self.trust = torch.zeros(self.tables.whole.real.shape, device=engine.device)
            self.trust[:, :active].index_copy_(0, self.clock, extra["trust"].detach().float().unsqueeze(0))
        return losses.sum()

    def _lesson(self, whole: Both, places: Tensor) -> Both:
        """What a frozen role gave for the rows at these places of every model."""
        (outputs, features), each = whole, self.each[: len(places)]
        taken = outputs[each, places]
        return taken, taken if features is outputs else features[each, places]

    @torch.no_grad()
    def _move(self, active: int) -> None:
        """Update the batch norms' running statistics."""
        for role, tree in self.engine.forward.statistics.items():
            for n, t in tree.items():
                self.buffers[role][n][:active] = t
        self.engine.forward.statistics.clear()

    def _one(self, method: Method, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """One model's loss; mapped over the stack."""
        return return_checks.loss_of(method, self.find(method), batch)


def _shapes(tree: Any) -> Any:
    leaves, spec = pytree.tree_flatten(tree)
    return [leaf.shape for leaf in leaves], spec
