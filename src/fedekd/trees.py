"""Trees of tensors: a model's weights as {name: tensor}, or dicts within dicts; and tensors for a method's numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedekd.methods.base import Method, Tree


def map_tree(function: Callable[..., Any], *trees: Any) -> Any:
    """``function`` of what lies at one place of all these trees, for every place; they have the keys of the first."""
    if isinstance(trees[0], Mapping):
        return {key: map_tree(function, *(tree[key] for tree in trees)) for key in trees[0]}
    return function(*trees)


def pick(tree: Any, at: Any) -> Any:
    """Rows ``at`` of every tensor of a tree."""
    return map_tree(lambda tensor: tensor[at], tree)


def stack_trees(trees: Sequence[Any], device: torch.device) -> Any:
    """Trees of one shape as one of [trees, ...]; numbers count as tensors."""
    import torch

    return map_tree(lambda *each: torch.stack([torch.as_tensor(t) for t in each]).to(device), *trees)


def moved(value: Any, device: torch.device) -> Any:
    """A tree's tensors on a device; lists and tuples count as trees too."""
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, value)


def copied(value: Any) -> Any:
    """A copy in main memory, which no later training changes; lists and tuples count as trees too."""
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map(
        lambda leaf: leaf.detach().to("cpu", copy=True) if isinstance(leaf, torch.Tensor) else leaf, value
    )


def squared_distance(a: Tree, b: Tree) -> Tensor:
    return _total([(a[name] - b[name]).square().sum() for name in a])


def inner(a: Tree, b: Tree) -> Tensor:
    return _total([(a[name] * b[name]).sum() for name in a])


def _total(terms: list[Tensor]) -> Tensor:
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def with_values(method: Method, values: Mapping[str, Tensor]) -> Method:
    """The method with tensors in place of float parameters, past the frozen dataclass's guard."""
    if not values:
        return method
    other = copy.copy(method)
    for name, value in values.items():
        object.__setattr__(other, name, value)
    return other
