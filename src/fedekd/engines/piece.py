"""A piece of the stack: the models that train together, sorted by size so that the small ones drop out early.

Its buffers stay in place from round to round, so that on a GPU a training step is captured once as a CUDA graph for
each size of the shrinking stack, and afterwards replayed without any work of the host.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedekd.methods.base import Batch, Method, Train
from fedekd.trees import with_values

if TYPE_CHECKING:
    from fedekd.engines.stacked import Stacked

WORTH_CAPTURING = 4  # steps of one size under which a CUDA graph does not pay


@dataclass
class Group:
    """Members whose losses are one mapped function: one method, differing in float parameters at most."""

    method: Method
    indices: list[int]  # into the engine's members
    varying: dict[str, Tensor]  # float parameters that differ: [members of the group]
    memory: dict[str, Any]  # trees of [members of the group, ...]


@dataclass
class Segment:
    """Steps in which the same models are active."""

    first: int
    last: int
    active: int
    leaves: dict[str, dict[str, Tensor]]
    optimizer: torch.optim.Adam
    graph: torch.cuda.CUDAGraph | None = None


class Piece:
    """Trains one step's roles for some members of a group, which are sorted by falling size."""

    def __init__(self, engine: Stacked, index: int, step: Train, group: Group, indices: list[int]) -> None:
        self.engine, self.index, self.step, self.group, self.indices = engine, index, step, group, indices
        self.features = group.method.needs_features
        device, size = engine.device, engine.training.batch_size
        lengths = np.array([len(engine.members[i].train) for i in indices])
        self.steps = engine.training.epochs * -(-lengths // size)
        shape = (int(self.steps.max()), len(indices), size)
        self.positions, self.rows = (torch.zeros(shape, dtype=torch.int32, device=device) for _ in range(2))
        self.real = torch.zeros(shape, dtype=torch.bool, device=device)
        self.uniform = torch.zeros((*shape, engine.method.draws), device=device)
        self.clock = torch.zeros(1, dtype=torch.long, device=device)  # the step, on the device
        self.at = torch.tensor(indices, device=device)
        where = {i: k for k, i in enumerate(group.indices)}
        self.own = torch.tensor([where[i] for i in indices], device=device)  # rows of the group's tensors
        self.scale = engine.scale_of(self.at)
        self.varying = {name: v[self.own] for name, v in group.varying.items()}
        self.weights, self.final, self.moment, self.square = (
            {role: {n: torch.empty_like(w[self.at]) for n, w in engine.weights[role].items()} for role in step.roles}
            for _ in range(4)
        )
        self.inputs: dict[str, Any] = {}  # what else a step reads: frozen outputs, received weights, memory
        self.segments = self._segments()

    def _segments(self) -> list[Segment]:
        """Models leave from the end of the stack when they are done, on a GPU several at a time.

        Leaving in bunches keeps the number of distinct sizes small. A model that waits for its bunch goes on with
        empty batches, but its weights were taken when it was done.
        """
        whole, bunches = len(self.indices), self.engine.bunches
        bunch = max(1, whole // bunches) if bunches else 1
        sizes = [min(whole, -(-int((self.steps > t).sum()) // bunch) * bunch) for t in range(len(self.rows))]
        edges = [0, *(t for t in range(1, len(sizes)) if sizes[t] != sizes[t - 1]), len(sizes)]
        return [self._segment(a, b, sizes[a]) for a, b in itertools.pairwise(edges)]

    def _segment(self, first: int, last: int, active: int) -> Segment:
        """Adam works on views of the first weights and moments; fresh moments are zeros, its step is set by `train`."""
        trees, device = self.weights.items(), self.engine.device
        leaves = {r: {n: w[:active].detach().requires_grad_() for n, w in tree.items()} for r, tree in trees}
        every = [w for tree in leaves.values() for w in tree.values()]
        optimizer = torch.optim.Adam(every, lr=self.engine.lr, fused=True, capturable=device.type == "cuda")
        for role, tree in leaves.items():
            for n, w in tree.items():
                moments = {"exp_avg": self.moment[role][n][:active], "exp_avg_sq": self.square[role][n][:active]}
                optimizer.state[w] = {"step": torch.zeros((), device=device), **moments}
        return Segment(first, last, active, leaves, optimizer)

    # --- a round -----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Bring everything that a round changes into the piece's buffers."""
        engine, size = self.engine, self.engine.training.batch_size
        positions, rows = (np.zeros(self.rows.shape, np.int32) for _ in range(2))
        real, uniform = np.zeros(self.rows.shape, bool), np.zeros(self.uniform.shape, np.float32)
        for at, i in enumerate(self.indices):
            plan, train = engine.plan(i, self.step.roles[0]), engine.members[i].train
            epochs, n = plan.order.shape
            full = -(-n // size) * size
            for whole, part in (
                (positions, plan.order), (rows, train[plan.order]), (real, np.True_), (uniform, plan.uniform)
            ):  # fmt: skip
                padded = np.zeros((epochs, full, *whole.shape[3:]), whole.dtype)
                padded[:, :n] = part
                whole[: self.steps[at], at] = padded.reshape(self.steps[at], *whole.shape[2:])
        self.positions.copy_(torch.from_numpy(positions))
        self.rows.copy_(torch.from_numpy(rows))
        self.real.copy_(torch.from_numpy(real))
        self.uniform.copy_(torch.from_numpy(uniform))
        trains = [engine.members[i].train for i in self.indices]
        inputs: dict[str, Any] = {
            "taught": {r: engine.outputs(r, self.indices, trains, self.features) for r in self.step.frozen},
            "received": engine.received_by(self.indices),
            "memory": pick(self.group.memory, self.own),
        }
        if self.inputs:
            _copy_into(self.inputs, inputs)
        else:
            self.inputs = inputs
        for role, tree in self.weights.items():
            for n, w in tree.items():
                w.copy_(engine.weights[role][n][self.at])
                self.moment[role][n].zero_()
                self.square[role][n].zero_()
        self.clock.zero_()

    def train(self) -> None:
        """All steps of the round; the engine gets the new weights at the end."""
        engine = self.engine
        self.load()
        for role in self.step.roles:
            engine.templates[role].train()
        for segment in self.segments:
            for state in segment.optimizer.state.values():
                state["step"].fill_(segment.first)
            for t in range(segment.first, segment.last):
                if segment.graph:
                    segment.graph.replay()
                elif engine.graphs and t == segment.first + 1 and segment.last - t > WORTH_CAPTURING:
                    segment.graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(segment.graph, pool=engine.pool):
                        self._advance(segment)
                    segment.optimizer.zero_grad()  # gives the gradients' memory back to the pool
                    segment.graph.replay()
                else:
                    self._advance(segment)
                self._take(np.flatnonzero(self.steps == t + 1))
        for role, tree in self.final.items():
            for n, w in tree.items():
                engine.weights[role][n][self.at] = w
        for i in self.indices:
            member = engine.members[i]
            engine.advance(engine.round_number, member.name, len(member.train) * engine.training.epochs)

    def _advance(self, segment: Segment) -> None:
        segment.optimizer.zero_grad()
        self.loss(segment).backward()
        segment.optimizer.step()
        self.clock += 1

    def _take(self, done: np.ndarray) -> None:
        """Keep the weights of models that have finished their steps."""
        if len(done):
            rows = slice(int(done[0]), int(done[-1]) + 1)  # sorted by steps, so they lie together
            for role, tree in self.weights.items():
                for n, w in tree.items():
                    self.final[role][n][rows] = w[rows]

    def loss(self, segment: Segment) -> Tensor:
        """The sum of the active models' losses on the batches that the clock points to."""
        engine, active = self.engine, segment.active
        rows, positions, real, uniform = (
            table.index_select(0, self.clock)[0, :active]
            for table in (self.rows, self.positions, self.real, self.uniform)
        )
        scale = self.scale.first(active)
        x, y = scale.inputs(engine.x[rows]), scale.targets(engine.y[rows])
        out = {role: engine.forward(role, segment.leaves[role], x, self.features) for role in self.step.roles}
        for role, whole in self.inputs["taught"].items():
            out[role] = (_taken(whole[0][:active], positions), _taken(whole[1][:active], positions))
        outputs, features = ({role: both[part] for role, both in out.items()} for part in (0, 1))
        read = [role for role in self.group.method.anchors if role in segment.leaves]
        mine = slice(0, active)
        losses, extra = vmap(self._one)(
            pick(self.varying, mine),
            y,
            real,
            outputs,
            features if self.features else {},
            {role: segment.leaves[role] for role in read},
            pick(self.inputs["received"], mine),
            pick(self.inputs["memory"], mine),
            uniform,
        )
        if "trust" in extra:
            engine.trust_log.add(extra["trust"], self.at[:active], real)
        return losses.sum()

    def _one(
        self, varying: Any, y: Tensor, mask: Tensor, out: Any, features: Any, weights: Any, received: Any, memory: Any,
        uniform: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        """One model's loss; mapped over the stack."""
        step = with_values(self.group.method, varying).steps(self.engine.round_number)[self.index]
        assert isinstance(step, Train)
        batch = Batch(self.engine.task, y, out, features, weights, received, memory, uniform, mask)
        result = step.loss(batch)
        return result if isinstance(result, tuple) else (result, {})


def pick(tree: Any, at: Any) -> Any:
    """Rows ``at`` of every tensor of a tree."""
    return {key: pick(v, at) for key, v in tree.items()} if isinstance(tree, dict) else tree[at]


def _copy_into(old: Any, new: Any) -> None:
    """Fill the tensors of one tree with those of another, in place."""
    if isinstance(old, Tensor):
        old.copy_(new)
    else:
        for key in old if isinstance(old, dict) else range(len(old)):
            _copy_into(old[key], new[key])


def _taken(whole: Tensor, positions: Tensor) -> Tensor:
    """whole[i, positions[i]] for every model i."""
    return whole[torch.arange(len(whole), device=whole.device)[:, None], positions.long()]
