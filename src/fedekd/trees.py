"""Arithmetic on a model's weights, held as {name: tensor}, and tensors in place of a method's numbers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from fedekd.methods.base import Method, Tree, Uploads


def squared_distance(a: Tree, b: Tree) -> Tensor:
    return _total([(a[name] - b[name]).square().sum() for name in a])


def inner(a: Tree, b: Tree) -> Tensor:
    return _total([(a[name] * b[name]).sum() for name in a])


def mean_change(uploads: Uploads, weights: Tensor | None = None) -> Tree:
    """How far the uploaded models have moved from the last answer; exactly 0 where none has."""
    before = uploads.previous
    moved = {name: w - before[name] for name, w in uploads.stacked.items()}
    return uploads.average(moved, uploads.weights if weights is None else weights)


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
