"""What a partition looks like: how many rows of each class, or of each range of the target, a client holds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedekd.federation import Federation

BINS = 5


def class_counts(federation: Federation) -> np.ndarray:
    """int64 [clients, groups]: each client's rows (train, validation and test) in each of ``class_names``."""
    groups, names = _groups(federation)
    rows = [np.concatenate([split.train, split.val, split.test]) for split in federation.clients]
    return np.stack([np.bincount(groups[mine], minlength=len(names)) for mine in rows])


def class_names(federation: Federation) -> tuple[str, ...]:
    """The classes' names; for a regression, the ranges of the target, each holding about a fifth of the rows."""
    return _groups(federation)[1]


def _groups(federation: Federation) -> tuple[np.ndarray, tuple[str, ...]]:
    dataset, held = federation.dataset, federation.held
    if dataset.task == "classification":
        return dataset.y, dataset.class_names
    values = np.unique(dataset.y[held])
    if len(values) <= BINS:
        return np.searchsorted(values, dataset.y), tuple(f"{value:g}" for value in values)
    edges = np.unique(np.quantile(dataset.y[held], np.linspace(0, 1, BINS + 1)))
    names = tuple(f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges))
    return np.searchsorted(edges[1:-1], dataset.y, side="right"), names
