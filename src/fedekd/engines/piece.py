"""A piece of the stack: the models that train together, sorted by size so that the small ones drop out early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedekd.engines.job import TrustLog
from fedekd.methods.base import Batch, Method, Train
from fedekd.trees import with_values

if TYPE_CHECKING:
    from fedekd.engines.stacked import Stacked

Leaves = dict[str, dict[str, Tensor]]
WORTH_CAPTURING = 4  # steps of one size under which a CUDA graph does not pay


@dataclass
class Group:
    """Members whose losses are one mapped function: one method, differing in float parameters at most."""

    method: Method
    indices: list[int]  # into the engine's members
    varying: dict[str, Tensor]  # float parameters that differ: [members of the group]
    memory: dict[str, Any]  # trees of [members of the group, ...]


@dataclass
class Part:
    """The members of one group within a piece."""

    method: Method
    rows: np.ndarray  # of the piece, ascending, so that the active ones are a prefix
    places: Tensor  # the same on the device
    jobs: Tensor  # of each
    alone: bool  # whether the piece holds no other group
    varying: dict[str, Tensor]
    memory: dict[str, Any]
    received: dict[str, dict[str, Tensor]]


class Piece:
    """Trains one step's roles for members ``indices``, which are sorted by falling size."""

    def __init__(self, engine: Stacked, index: int, step: Train, indices: list[int]) -> None:
        self.engine, self.index, self.step, self.indices = engine, index, step, indices
        self.features = any(group.method.needs_features for group in engine.groups)
        device, size = engine.device, engine.training.batch_size
        plans = [engine.plan(i, step.roles[0]) for i in indices]
        self.steps = np.array([plan.steps for plan in plans])
        shape = (int(self.steps.max()), len(indices), size)
        positions, rows, real = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, bool)
        uniform = np.zeros((*shape, engine.method.draws), np.float32)
        for at, (i, plan) in enumerate(zip(indices, plans, strict=True)):
            epochs, n = plan.order.shape
            places = np.arange(epochs)[:, None] * (-(-n // size) * size) + np.arange(n)
            step_, slot = np.divmod(places, size)
            positions[step_, at, slot] = plan.order
            rows[step_, at, slot] = engine.members[i].train[plan.order]
            real[step_, at, slot] = True
            uniform[step_, at, slot] = plan.uniform
        self.clock = torch.zeros(1, dtype=torch.long, device=device)  # the step, on the device
        arrays = (positions, rows, real, uniform)
        self.positions, self.rows, self.real, self.uniform = (torch.from_numpy(a).to(device) for a in arrays)
        trains = [engine.members[i].train for i in indices]
        self.taught = {role: engine.outputs(role, indices, trains, self.features) for role in step.frozen}
        self.at = torch.tensor(indices, device=device)
        self.weights = {role: {n: w[self.at] for n, w in engine.weights[role].items()} for role in step.roles}
        self.final = {role: {n: torch.empty_like(w) for n, w in tree.items()} for role, tree in self.weights.items()}
        self.scale = engine.scale_of(self.at)
        self.parts = [part for group in engine.groups if (part := self._part(group))]

    def _part(self, group: Group) -> Part | None:
        where = {i: k for k, i in enumerate(group.indices)}
        places = [at for at, i in enumerate(self.indices) if i in where]
        if not places:
            return None
        here = [self.indices[at] for at in places]
        device = self.engine.device
        own = torch.tensor([where[i] for i in here], device=device)
        return Part(
            group.method,
            np.array(places),
            torch.tensor(places, device=device),
            self.engine.job_of[torch.tensor(here, device=device)],
            len(places) == len(self.indices),
            {name: v[own] for name, v in group.varying.items()},
            pick(group.memory, own),
            self.engine.received_by(here),
        )

    def train(self, trust: TrustLog) -> None:
        """Step after step; models that are done leave from the end of the stack, on a GPU several at a time.

        Leaving in bunches keeps the number of distinct stack sizes small, each of which is captured as a CUDA graph.
        A model that waits for its bunch goes on with empty batches, but its weights were taken when it was done.
        """
        engine, t = self.engine, 0
        for role in self.step.roles:
            engine.templates[role].train()
        bunch = max(1, len(self.indices) // engine.bunches) if engine.bunches else 1
        sizes = [-(-int((self.steps > t).sum()) // bunch) * bunch for t in range(len(self.rows))]
        optimizer: torch.optim.Adam | None = None
        while t < len(sizes):
            active = min(sizes[t], len(self.indices))
            last = len(sizes) - sizes[::-1].index(sizes[t])
            leaves = {r: {n: _leaf(w[:active]) for n, w in tree.items()} for r, tree in self.weights.items()}
            optimizer = _narrowed(optimizer, [w for tree in leaves.values() for w in tree.values()], engine.lr)
            advance = self._stepper(active, leaves, optimizer, trust)
            for now in range(t, last):
                advance() if last - t > WORTH_CAPTURING else self._advance(active, leaves, optimizer, trust)
                self._take(np.flatnonzero(self.steps == now + 1))
            t = last
        for role, tree in self.final.items():
            for name, w in tree.items():
                engine.weights[role][name][self.at] = w
        for i in self.indices:
            member = engine.members[i]
            engine.advance(engine.round_number, member.name, len(member.train) * engine.training.epochs)

    def _stepper(self, active: int, leaves: Leaves, optimizer: torch.optim.Adam, trust: TrustLog) -> Callable[[], None]:
        """One training step as a call: eager first, then, on a GPU, replayed from a graph without any host work."""
        graph: torch.cuda.CUDAGraph | None = None
        calls = 0

        def call() -> None:
            nonlocal graph, calls
            calls += 1
            if self.engine.graphs and calls == 2:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self.engine.pool):
                    self._advance(active, leaves, optimizer, trust)
            if graph:
                graph.replay()
            else:
                self._advance(active, leaves, optimizer, trust)

        return call

    def _advance(self, active: int, leaves: Leaves, optimizer: torch.optim.Adam, trust: TrustLog) -> None:
        optimizer.zero_grad()
        self.loss(active, leaves, trust).backward()
        optimizer.step()
        self.clock += 1

    def _take(self, done: np.ndarray) -> None:
        """Keep the weights of models that have finished their steps."""
        if len(done):
            rows = slice(int(done[0]), int(done[-1]) + 1)  # sorted by steps, so they lie together
            for role, tree in self.weights.items():
                for name, w in tree.items():
                    self.final[role][name][rows] = w[rows]

    def loss(self, active: int, leaves: Leaves, trust: TrustLog) -> Tensor:
        """The sum of the first ``active`` models' losses on the batches that the clock points to."""
        engine = self.engine
        rows, positions, real, uniform = (
            table.index_select(0, self.clock)[0, :active]
            for table in (self.rows, self.positions, self.real, self.uniform)
        )
        scale = self.scale.first(active)
        x, y = scale.inputs(engine.x[rows]), scale.targets(engine.y[rows])
        out = {role: engine.forward(role, leaves[role], x, self.features) for role in self.step.roles}
        for role, whole in self.taught.items():
            out[role] = (_taken(whole[0][:active], positions), _taken(whole[1][:active], positions))
        total = torch.zeros((), device=engine.device)
        for part in self.parts:
            count = int((part.rows < active).sum())
            if not count:
                continue
            at = slice(0, count) if part.alone else part.places[:count]
            outputs = {role: o[at] for role, (o, _) in out.items()}
            features = {role: f[at] for role, (_, f) in out.items()} if self.features else {}
            read = [role for role in part.method.anchors if role in leaves]
            weights = {role: {n: w[at] for n, w in leaves[role].items()} for role in read}
            own = slice(0, count)
            mapped = (
                pick(part.varying, own),
                y[at],
                real[at],
                outputs,
                features,
                weights,
                pick(part.received, own),
                pick(part.memory, own),
                uniform[at],
            )
            losses, extra = vmap(self._one(part.method))(*mapped)
            total = total + losses.sum()
            if "trust" in extra:
                trust.add(extra["trust"], part.jobs[:count], real[at])
        return total

    def _one(self, method: Method) -> Any:
        task, index, round = self.engine.task, self.index, self.engine.round_number

        def one(
            varying: Any, y: Tensor, mask: Tensor, out: Any, features: Any, weights: Any, received: Any, memory: Any,
            uniform: Tensor,
        ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
            step = with_values(method, varying).steps(round)[index]
            assert isinstance(step, Train)
            result = step.loss(Batch(task, y, out, features, weights, received, memory, uniform, mask))
            return result if isinstance(result, tuple) else (result, {})

        return one


def pick(tree: Any, at: Any) -> Any:
    """Rows ``at`` of every tensor of a tree."""
    return {key: pick(v, at) for key, v in tree.items()} if isinstance(tree, dict) else tree[at]


def _leaf(weights: Tensor) -> Tensor:
    """A view that collects gradients of its own and is updated in place."""
    return weights.detach().requires_grad_()


def _taken(whole: Tensor, positions: Tensor) -> Tensor:
    """whole[i, positions[i]] for every model i."""
    return whole[torch.arange(len(whole), device=whole.device)[:, None], positions.long()]


def _narrowed(before: torch.optim.Optimizer | None, leaves: list[Tensor], lr: float) -> torch.optim.Adam:
    """Adam on fewer models, with the moments that it had gathered for them."""
    optimizer = torch.optim.Adam(leaves, lr=lr, fused=True, capturable=leaves[0].is_cuda)
    if before:
        for old, new in zip(before.param_groups[0]["params"], leaves, strict=True):
            state = before.state[old]
            moments = {key: state[key][: len(new)] for key in ("exp_avg", "exp_avg_sq")}
            optimizer.state[new] = {"step": state["step"], **moments}
    return optimizer
