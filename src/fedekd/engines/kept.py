"""What the members of a group know by name: trees of [members, ...], and who has which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedekd.engines.stacking import pick
from fedekd.errors import FedekdError


class Kept:
    """Not everyone takes part in every round, so that some may lack what others have."""

    def __init__(self, rows: int, trees: Mapping[str, Any] | None = None) -> None:
        self.rows, self.trees = rows, dict(trees or {})
        self.owners = {name: frozenset(range(rows)) for name in self.trees}

    def names(self, place: int) -> frozenset[str]:
        return frozenset(name for name, owners in self.owners.items() if place in owners)

    def of(self, places: Sequence[int]) -> dict[str, Any]:
        """Copies of what these have, who all have the same."""
        at = torch.tensor(places)
        return {name: pick(self.trees[name], at) for name in self.trees if name in self.names(places[0])}

    def one(self, place: int) -> dict[str, Any]:
        return {name: pick(self.trees[name], place) for name in self.trees if name in self.names(place)}

    def put(self, found: Mapping[str, Any], places: Sequence[int], what: str) -> None:
        """Give these rows something new in place of what they had by that name."""
        for name, tree in found.items():
            others = self.owners.get(name, frozenset()) - set(places)
            alike = name in self.trees and _structure(self.trees[name]) == _structure(tree)
            if others and not alike:
                raise FedekdError(
                    f"{what}[{name!r}] changes its shape while some clients are absent: keep its shape, or let the "
                    "method say `stacks = False`"
                )
            if not alike:
                self.trees[name] = pytree.tree_map(lambda t: t.new_zeros(self.rows, *t.shape[1:]), tree)
            for whole, new in zip(pytree.tree_leaves(self.trees[name]), pytree.tree_leaves(tree), strict=True):
                whole[torch.tensor(places, device=whole.device)] = new
            self.owners[name] = others | frozenset(places)

    def part(self, places: Sequence[int]) -> Kept:
        """The rows of some of them."""
        part = Kept(len(places))
        part.trees = pick(self.trees, torch.tensor(places))
        part.owners = {n: frozenset(k for k, p in enumerate(places) if p in own) for n, own in self.owners.items()}
        return part

    def copy(self) -> Kept:
        return self.part(range(self.rows))

    def state(self) -> dict[str, Any]:
        return {"trees": self.trees, "owners": {name: sorted(owners) for name, owners in self.owners.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.trees = dict(state["trees"])
        self.owners = {name: frozenset(owners) for name, owners in state["owners"].items()}


def _structure(tree: Any) -> Any:
    """All but the number of rows."""
    leaves, spec = pytree.tree_flatten(tree)
    return [(leaf.shape[1:], leaf.dtype) for leaf in leaves if isinstance(leaf, Tensor)], spec
