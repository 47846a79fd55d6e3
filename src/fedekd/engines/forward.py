"""Forward passes of a stack: templates mapped over the models' weights, and the outputs on whole splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedekd import models
from fedekd.engines import augment, stacked_linear
from fedekd.engines.client_models import EVALUATION_BATCH
from fedekd.engines.groups import MethodGroup, mapped
from fedekd.engines.layers import TrainingPass, drops, training_pass
from fedekd.engines.member_rows import MemberRows, home_of
from fedekd.engines.on_device import on_device
from fedekd.engines.stackable import NotStackable, built_for, make_template
from fedekd.methods.base import Method
from fedekd.trees import pick

if TYPE_CHECKING:
    from fedekd.engines.stack import Stack

GPU_BATCH = 1024  # rows that frozen models answer at once: what a pass takes is the host's time
EVALUATION_VALUES = 2**29  # of the inputs at most at once: large images go in smaller batches
Both = tuple[Tensor, Tensor]  # outputs, and features where they are asked for (else the outputs again)


class RowTable:
    """The rows that some members are asked about, on the device: what of it no round changes."""

    def __init__(
        self, engine: Stack, indices: Sequence[int], rows: Sequence[np.ndarray], longest: int | None = None
    ) -> None:
        self.indices, self.lengths = list(indices), [len(r) for r in rows]
        self.rows, self.mask = padded(rows, engine.device, longest)
        self.at = on_device(self.indices, engine.device)
        self.scale = engine.scale_of(self.at)
        self.order = on_device(sorted(range(len(rows)), key=lambda i: -self.lengths[i]), engine.device)
        """Those with the most rows first."""
        self.sorted = self.at[self.order]
        self.sorted_scale = engine.scale_of(self.sorted)

    def __len__(self) -> int:
        return len(self.indices)


class Forward:
    def __init__(self, engine: Stack, fused: bool) -> None:
        self.engine, self.method, self.fused = engine, engine.method, fused
        first = engine.members[0]
        job = engine.jobs[first.job]
        plain = {root: make_template(job, root, k).to(engine.device) for root, k in job.like_clients(first.client)}
        quick = {root: self._lowered(module) for root, module in plain.items()}
        outputs = engine.jobs[0].federation.dataset.outputs
        heads = {
            role: models.zero_head(plain[self.method.root(below)], outputs).to(engine.device)
            for role, below in self.method.heads.items()
        }
        self.plain = {role: heads.get(role) or plain[self.method.root(role)] for role in self.method.roles}
        """By role, the module as the user wrote it; the one below may have been rewritten for the GPU."""
        self.templates = {role: heads.get(role) or quick[self.method.root(role)] for role in self.method.roles}
        self.ordered = {role: self._ordered(module) for role, module in self.templates.items()}
        """By role, the weights that kernels read in an order of their own: see ``fused_conv.taps_first``."""
        self.trainable = {role: frozenset(models.trainable(module)) for role, module in self.plain.items()}
        self.rest = {
            role: [n for n in _state(module) if n not in self.trainable[role]] for role, module in self.plain.items()
        }
        """By role, what no gradient moves: buffers, and weights that are not trained."""
        self.tied = {role: _tied(module) for role, module in self.plain.items()}
        """By role, further names of tensors that a module has under several, and the name by which they are stacked."""
        self.kept = {role: _kept(module) for role, module in self.plain.items()}
        """By role, the names of a module's state by which it is stacked; some buffers are no part of the state."""
        self.drops = {role: drops(module) for role, module in self.plain.items()}
        self.learning: frozenset[str] = frozenset()
        """The roles that are being trained, whose modules are in training mode."""
        self.statistics: dict[str, dict[str, Tensor]] = {}
        """By role, what its batch norms' buffers become after the last forward pass in training mode."""

    def _lowered(self, module: nn.Module) -> nn.Module:
        if self.engine.device.type == "cuda" and self.fused:
            from fedekd.engines import fused_conv

            if fused_conv.available(self.engine.device):
                module = fused_conv.lower(module, self.engine.training.precision)
            return stacked_linear.lower(module)
        return module

    def _ordered(self, module: nn.Module) -> frozenset[str]:
        if self.engine.device.type != "cuda":
            return frozenset()
        from fedekd.engines import fused_conv

        return fused_conv.ordered_weights(module)

    def room(self, role: str, name: str, weights: Tensor) -> Tensor:
        """For such stacked weights to train in."""
        if name not in self.ordered[role]:
            return torch.empty_like(weights)
        from fedekd.engines import fused_conv

        return fused_conv.taps_first(weights)

    def initial(self) -> dict[str, dict[str, Any]]:
        """What all members begin with, weights and buffers, [members, ...]."""
        engine, found = self.engine, dict[str, dict[str, Any]]()
        alike = [dict(engine.jobs[member.job].like_clients(member.client)) for member in engine.members]
        for role in self.method.roles:
            places: dict[tuple[int, int], int] = {}
            trees: list[dict[str, Tensor]] = []
            which = []
            for member, like in zip(engine.members, alike, strict=True):
                job, root = engine.jobs[member.job], self.method.root(role)
                head = role in self.method.heads
                start = (0, 0) if head else (job.seed, like[root])
                if start not in places:
                    places[start] = len(trees)
                    trees.append(_state(self.plain[role] if head else built_for(job, root, start[1])))
                which.append(places[start])
            at = torch.tensor(which)
            there = on_device(at, engine.device)
            starts = {n: torch.stack([tree[n] for tree in trees]) for n in trees[0]}
            if engine.in_turns:
                each = sum(t[0].numel() * t.element_size() for t in starts.values())
                home = home_of(len(at) * each * len(self.method.roles), engine.device)
                found[role] = {n: MemberRows(t, at, home, engine.device) for n, t in starts.items()}
            else:
                found[role] = {n: t.to(engine.device)[there] for n, t in starts.items()}
        return found

    def try_mapping(self) -> None:
        """One small forward pass in either mode, to learn whether torch.func can map the user's modules."""
        engine = self.engine
        rows = [member.train[:2] for member in engine.members[:2]]
        table = RowTable(engine, range(len(rows)), rows)
        for role, template in self.templates.items():
            try:
                self.outputs(role, table)
                if role not in self.method.heads:
                    x = table.scale.inputs(engine.x[table.rows])
                    with torch.no_grad():
                        key = torch.zeros(len(rows), dtype=torch.int32, device=engine.device)
                        self(role, pick(engine.weights[role], table.at), x, False, TrainingPass(key, table.mask))
            except (RuntimeError, ValueError, TypeError) as error:
                reason = str(error).strip().split("\n")[0][:120]
                raise NotStackable(f"torch.func cannot map {type(template).__name__} ({reason})") from None
        self.statistics.clear()

    def autocast(self) -> torch.autocast:
        engine = self.engine
        return torch.autocast(engine.device.type, torch.bfloat16, enabled=engine.training.precision == "bf16")

    def applied(self, role: str, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """One model's output with any weights; called inside a mapped function."""
        with self.autocast():
            return self.engine.task.read(models.call(_in_mode(self.plain[role], role in self.learning), weights, x))

    def __call__(
        self,
        role: str,
        weights: Mapping[str, Tensor],
        x: Tensor,
        features: bool,
        training: TrainingPass | None = None,
    ) -> Both:
        """Outputs [models, B, ...], and the features if asked for.

        In a ``training`` pass, of keys [models] and rows [models, B], the module is in training mode.
        """
        template, task = _in_mode(self.templates[role], training is not None), self.engine.task
        given = {} if training is None else {"key": training.key, "real": training.real}

        def one(
            weights: dict[str, Tensor], x: Tensor, given: dict[str, Tensor]
        ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            caught: list[Tensor] = []
            now = TrainingPass(given.get("key"), given.get("real"), training.calls if training else 0)
            hook = None
            if features:
                head = models.last_linear(template)
                hook = head.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
            try:
                with training_pass(now):
                    output = task.read(models.call(template, weights, x))
            finally:
                if hook:
                    hook.remove()
            if training:
                training.calls = now.calls
            return output, caught[-1].float() if features else output, now.statistics

        with self.autocast():
            mapped_ = vmap(one, randomness="error")  # a stream that is not the client's own would not be the serial one
            output, feature, statistics = mapped_(dict(weights), x, {n: t for n, t in given.items() if t is not None})
        if training:
            self.statistics[role] = statistics
        return output, feature

    def through(
        self,
        roles: Iterable[str],
        weights: Mapping[str, Mapping[str, Tensor]],
        x: Tensor,
        known: Mapping[str, Both],
        features: bool,
        training: TrainingPass | None = None,
    ) -> dict[str, Both]:
        """The outputs of these roles beside those that are known; a head's from the features of the model below it."""
        out, heads, roles = dict(known), self.method.heads, list(roles)
        for role in roles:
            if role not in heads:
                out[role] = self(role, weights[role], x, features, training)
        for role in roles:
            if role in heads:
                out[role] = self._head(role, weights[role], out[heads[role]][1])
        return out

    def only_trainable(self, role: str, tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: t for name, t in tree.items() if name in self.trainable[role]}

    def _head(self, role: str, weights: Mapping[str, Tensor], features: Tensor) -> Both:
        features = features.detach()
        return self(role, weights, features, False)[0], features

    @torch.no_grad()
    def outputs(
        self,
        role: str,
        table: RowTable,
        features: bool = False,
        moves: Sequence[np.ndarray] | None = None,
        partners: Sequence[np.ndarray] | None = None,
    ) -> Both:
        """Frozen models' outputs on all rows of a table: [models, n, ...].

        With ``moves``, on the rows as they are altered.
        """
        engine = self.engine
        if role in self.method.heads:
            below = self.outputs(self.method.heads[role], table, True, moves, partners)[1]
            return self._head(role, pick(engine.weights[role], table.at), below)
        lengths, drawn, others = table.lengths, None, None
        if partners is not None:
            others, _ = padded(partners, engine.device, table.rows.shape[1])
        if moves is not None:
            drawn = torch.zeros(*table.rows.shape, moves[0].shape[-1])
            for i, own in enumerate(moves):
                drawn[i, : len(own)] = torch.from_numpy(own)
            drawn = on_device(drawn, engine.device)
        weights, scale = pick(engine.weights[role], table.sorted), table.sorted_scale
        found: list[Tensor] = []
        size = self._at_once(len(table))
        for start in range(0, max(1, *lengths, 1), size):
            active = max(1, sum(n > start for n in lengths))
            here = table.order[:active]
            part = table.rows[here, start : start + size]
            altered = [t if t is None else t[here, start : start + size] for t in (drawn, others)]
            x = augment.inputs(engine.x, scale.first(active), part, *altered)
            out = self(role, {n: w[:active] for n, w in weights.items()}, x, features)[: 1 + features]
            if not found:
                found = [o.new_zeros(*table.rows.shape, *o.shape[2:]) for o in out]
            for whole, o in zip(found, out, strict=True):
                whole[here, start : start + part.shape[1]] = o
        return found[0], found[-1]

    def _at_once(self, models: int) -> int:
        most = EVALUATION_BATCH if self.engine.device.type == "cpu" else GPU_BATCH
        return max(1, min(most, EVALUATION_VALUES // (models * self.engine.x[0].numel())))

    def answering(self, method: Method) -> tuple[str, ...]:
        """The roles whose models ``predictions`` reads."""
        return ("private",) if _private_answers(method) else method.roles

    @torch.no_grad()
    def predictions(self, group: MethodGroup, table: RowTable, split: str = "") -> Tensor:
        """What the method answers for a table's rows: [models, n, ...]."""
        engine, method = self.engine, group.method
        if _private_answers(method):
            return self.outputs("private", table)[0]
        self.learning = frozenset()
        indices, scale, features = table.indices, table.scale, method.needs_features
        answers = [role for role in method.answers if role in method.roles]
        roles = (*answers, *(below for role, below in method.heads.items() if role in answers))
        weights: dict[str, Any] = {role: pick(engine.weights[role], table.at) for role in method.roles}
        found, size = [], self._at_once(len(table))
        for start in range(0, table.rows.shape[1], size):
            part, real = table.rows[:, start : start + size], table.mask[:, start : start + size]
            places = torch.arange(start, start + part.shape[1], device=engine.device).expand(part.shape)
            x = scale.inputs(engine.x[part])
            out = self.through(dict.fromkeys(roles), weights, x, {}, features)
            seen = {
                **engine.known(group, indices),
                "x": x,
                "y": torch.zeros_like(scale.targets(engine.y[part])),
                "outputs": {role: out[role][0] for role in answers},
                "features": {role: out[role][1] for role in answers} if features else {},
                "weights": {role: self.only_trainable(role, weights[role]) for role in method.reads_weights},
                "rest": {role: {n: weights[role][n] for n in self.rest[role]} for role in method.roles},
                "uniform": torch.zeros(*part.shape, method.uniforms, device=engine.device),
                "rows": places,
                "groups": engine.groups_of(table.at, part, places, real),
                "mask": real,
            }
            found.append(mapped(engine, group, indices, lambda m, batch: m.predict(replace(batch, split=split)), seen))
        return torch.cat(found, dim=1)


def _private_answers(method: Method) -> bool:
    return type(method).predict is Method.predict and "private" in method.answers


def _state(module: nn.Module) -> dict[str, Tensor]:
    """All tensors of a module, each under one name."""
    return {n: t.detach() for n, t in (*module.named_parameters(), *module.named_buffers())}


def _tied(module: nn.Module) -> dict[str, str]:
    first = dict[int, str]()
    weights, buffers = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    return {name: own for name, t in (*weights, *buffers) if (own := first.setdefault(id(t), name)) != name}


def _kept(module: nn.Module) -> list[str]:
    held = _state(module)
    return [name for name in module.state_dict() if name in held]


def _in_mode(module: nn.Module, training: bool) -> nn.Module:
    return module if module.training == training else module.train(training)


def padded(rows: Sequence[np.ndarray], device: torch.device, longest: int | None = None) -> tuple[Tensor, Tensor]:
    """Ragged row lists as a table [models, longest] and the mask of its real entries."""
    table = np.zeros((len(rows), max(1, *map(len, rows)) if longest is None else longest), np.int64)
    mask = np.zeros(table.shape, bool)
    for i, r in enumerate(rows):
        table[i, : len(r)], mask[i, : len(r)] = r, True
    return on_device(table, device), on_device(mask, device)
