"""Members of a stack whose losses are one mapped function: one method, differing in float parameters at most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from fedekd import models
from fedekd.engines.batch import make_batch
from fedekd.engines.job import SERVER
from fedekd.engines.layers import TrainingPass, training_pass
from fedekd.engines.member_rows import MemberRows, home_of, rows_of
from fedekd.engines.on_device import on_device
from fedekd.errors import FedekdError
from fedekd.methods.base import ClientInit, Method
from fedekd.methods.batch import Batch
from fedekd.trees import map_tree, pick, stack_trees, with_values

if TYPE_CHECKING:
    from fedekd.engines.stack import Stack

Find = Callable[[Method], Any]  # a step of a method


class MemberState:
    """What members know by name: trees of [members, ...], and who has which.

    Not everyone takes part in every round, so that some may lack what others have.
    """

    def __init__(self, rows: int, trees: Mapping[str, Any] | None = None, in_turns: bool = False) -> None:
        self.rows, self.trees, self.in_turns = rows, dict(trees or {}), in_turns
        self.owners = {name: frozenset(range(rows)) for name in self.trees}

    def names(self, place: int) -> frozenset[str]:
        return frozenset(name for name, owners in self.owners.items() if place in owners)

    @property
    def complete(self) -> bool:
        """Whether everyone has everything."""
        return all(len(owners) == self.rows for owners in self.owners.values())

    def of(self, places: Sequence[int]) -> dict[str, Any]:
        """Copies of what these members have; all of them must have the same names."""
        at, known = torch.tensor(places), self.names(places[0])
        return {
            name: map_tree(lambda whole: whole[_beside(whole, at)], t)
            for name, t in self.trees.items()
            if name in known
        }

    def one(self, place: int) -> dict[str, Any]:
        return {name: pick(self.trees[name], place) for name in self.trees if name in self.names(place)}

    def put(self, found: Mapping[str, Any], places: Sequence[int], what: str) -> None:
        """Replace what these members have under these names."""
        at = torch.tensor(places)
        for name, tree in found.items():
            others = self.owners.get(name, frozenset()) - set(places)
            alike = name in self.trees and _structure(self.trees[name]) == _structure(tree)
            if others and not alike:
                raise FedekdError(
                    f"{what}[{name!r}] changes its shape while some clients are absent: keep its shape, or let the "
                    "method say `stacks = False`"
                )
            if not alike:
                self.trees[name] = pytree.tree_map(self._blank, tree)
            for whole, new in zip(pytree.tree_leaves(self.trees[name]), pytree.tree_leaves(tree), strict=True):
                whole[_beside(whole, at)] = new
            self.owners[name] = others | frozenset(places)

    def _blank(self, like: Tensor) -> Any:
        if not self.in_turns:
            return like.new_zeros(self.rows, *like.shape[1:])
        home = home_of(self.rows * like[0].numel() * like.element_size() * 4, like.device)
        return MemberRows(like.new_zeros(1, *like.shape[1:]), [0] * self.rows, home, like.device)

    def part(self, places: Sequence[int]) -> MemberState:
        """A copy that holds some of the members alone."""
        part, at = MemberState(len(places), in_turns=self.in_turns), torch.tensor(places)
        part.trees = map_tree(lambda whole: rows_of(whole, at), self.trees)
        part.owners = {n: frozenset(k for k, p in enumerate(places) if p in own) for n, own in self.owners.items()}
        return part

    def copy(self) -> MemberState:
        return self.part(range(self.rows))

    def state(self) -> dict[str, Any]:
        return {"trees": self.trees, "owners": {name: sorted(owners) for name, owners in self.owners.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.trees = dict(state["trees"])
        self.owners = {name: frozenset(owners) for name, owners in state["owners"].items()}


@dataclass(eq=False)
class MethodGroup:
    method: Method
    indices: list[int]  # into the engine's members
    varying: dict[str, Tensor]  # float parameters that differ: [members of the group]
    values: Sequence[Mapping[str, float]]  # the same parameters as numbers, by member
    received: MemberState
    memory: MemberState
    gradients: MemberState

    def __post_init__(self) -> None:
        self._place = {i: k for k, i in enumerate(self.indices)}

    def __contains__(self, i: int) -> bool:
        return i in self._place

    def places(self, indices: Sequence[int]) -> list[int]:
        """The rows that these members have in the group's tensors."""
        return [self._place[i] for i in indices]

    def alike(self, indices: Sequence[int]) -> list[list[int]]:
        """Members who know the same things by name, so that one function can be mapped over them."""
        if indices and all(kept.complete for kept in (self.received, self.memory, self.gradients)):
            return [list(indices)]
        found: dict[Any, list[int]] = {}
        for i, place in zip(indices, self.places(indices), strict=True):
            known = tuple(kept.names(place) for kept in (self.received, self.memory, self.gradients))
            found.setdefault(known, []).append(i)
        return list(found.values())

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name).state() for name in ("received", "memory", "gradients")}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, saved in state.items():
            getattr(self, name).restore(saved)


def make_groups(engine: Stack) -> list[MethodGroup]:
    found: dict[tuple[Any, ...], list[int]] = {}
    for i, member in enumerate(engine.members):
        method = engine.jobs[member.job].method
        fixed = tuple((f.name, v) for f in fields(method) if not isinstance(v := getattr(method, f.name), float))
        found.setdefault((type(method), fixed), []).append(i)
    groups = []
    for indices in found.values():
        methods = [engine.jobs[engine.members[i].job].method for i in indices]
        columns = {f.name: [getattr(m, f.name) for m in methods] for f in fields(methods[0])}
        differ = {n: c for n, c in columns.items() if isinstance(c[0], float) and len(set(c)) > 1}
        values = [{name: column[k] for name, column in differ.items()} for k in range(len(indices))]
        varying = {name: torch.tensor(column, device=engine.device) for name, column in differ.items()}
        at, own = torch.tensor(indices, device=engine.device), {}
        for name, step in engine.exchanges.items():
            if step.target in engine.method.reads_weights:
                part = engine.trainable_part(step.target, step.part)
                own[name] = {n: rows_of(t, at) for n, t in part.items()}
        known: tuple[dict[str, Any], ...] = (own, _begin(engine, methods[0], indices), {})
        groups.append(
            MethodGroup(
                methods[0],
                indices,
                varying,
                values,
                *(MemberState(len(indices), trees, engine.in_turns) for trees in known),
            )
        )
    return groups


def _begin(engine: Stack, method: Method, indices: list[int]) -> dict[str, Any]:
    if type(method).begin is Method.begin:
        return {}
    widths: dict[str, int] = {}
    if method.needs_features:
        bodies = {role: engine.forward.plain[role] for role in method.roles if role not in method.heads}
        widths = {role: models.last_linear(module).in_features for role, module in bodies.items()}
    memories = []
    for i in indices:
        member = engine.members[i]
        if member.client == SERVER:  # it has no rows of its own to begin with
            return {}
        weights = {role: engine.forward.only_trainable(role, pick(tree, i)) for role, tree in engine.weights.items()}
        rows = torch.from_numpy(member.train).to(engine.device)
        targets = engine.scale_of(torch.tensor([i], device=engine.device)).targets(engine.y[rows][None])[0]
        job = engine.jobs[member.job]
        memories.append(job.method.begin(ClientInit(weights, widths, job.seed, targets)))
    return stack_trees(memories, engine.device)


def split(groups: list[MethodGroup], group: MethodGroup) -> list[MethodGroup]:
    """Replace a group by one for each value of its parameters, which are plain numbers there."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for k, values in enumerate(group.values):
        alike.setdefault(tuple(values.items()), []).append(k)
    found = []
    for values_, places in alike.items():
        method, indices = with_values(group.method, dict(values_)), [group.indices[k] for k in places]
        kept = [one.part(places) for one in (group.received, group.memory, group.gradients)]
        found.append(MethodGroup(method, indices, {}, [{} for _ in places], *kept))
    at = groups.index(group)
    groups[at : at + 1] = found
    return found


def mapped(
    engine: Stack,
    group: MethodGroup,
    indices: Sequence[int],
    call: Callable[[Method, Batch], Any],
    seen: dict[str, Any],
    lr: float | Tensor | None = None,
    varying: dict[str, Tensor] | None = None,
    passed: TrainingPass | None = None,
) -> Any:
    """``call(method, batch)`` for each of these members, as one program.

    Beside what a batch has, ``seen`` may hold what models that are applied in it take: the "rest" of their tensors, by
    role, and the "dropout" keys.
    """
    if varying is None:
        varying = pick(group.varying, on_device(group.places(indices), engine.device)) if group.varying else {}

    calls = passed.calls if passed else 0

    def one(varying: dict[str, Tensor], seen: dict[str, Any]) -> Any:
        method, rate = with_values(group.method, varying), engine.training.lr if lr is None else lr
        rest, key = seen.get("rest", {}), seen.get("dropout")
        own = {name: value for name, value in seen.items() if name not in ("rest", "dropout")}

        def applied(role: str, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
            return engine.forward.applied(role, {**rest.get(role, {}), **weights}, x)

        with training_pass(TrainingPass(key, seen.get("mask"), calls)):
            return call(method, make_batch(method, engine.task, rate, own, applied))

    return vmap(one, randomness="different")(varying, seen)


def _beside(whole: Tensor | MemberRows, at: Tensor) -> Tensor:
    """The indices on the device of the rows, copied without waiting; ``MemberRows`` take them in main memory."""
    return on_device(at, whole.device) if isinstance(whole, Tensor) else at


def _structure(tree: Any) -> Any:
    """The shapes and types of a tree's tensors, without their first axis."""
    leaves, spec = pytree.tree_flatten(tree)
    return [(leaf.shape[1:], leaf.dtype) for leaf in leaves if isinstance(leaf, (Tensor, MemberRows))], spec
