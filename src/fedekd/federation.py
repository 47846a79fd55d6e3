"""A federation: a dataset, its clients' rows, and the input statistics they share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedekd.dataset import Dataset
from fedekd.errors import FedekdError

TOO_MANY_ALONE = 1_000  # clients: from here on training all of them alone in every round would take too long


@dataclass(frozen=True, eq=False)
class Split:
    """One client's rows: int64 indices into ``dataset.x``."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


@dataclass(frozen=True, eq=False)
class Federation:
    """A dataset, the rows of it that each client holds, and the scaling of inputs and targets that all share."""

    dataset: Dataset
    clients: tuple[Split, ...]
    names: tuple[str, ...]
    partition: dict[str, Any]
    """How the rows were dealt out: kind, alpha, clients, seed and a fingerprint of every index; the fraction kept where
    not all were, and ``fixed`` where training seeds share it."""
    shift: np.ndarray
    gain: np.ndarray
    """A model's input is x * gain + shift."""
    target_mean: float
    target_std: float
    public: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 indices into ``dataset.x`` of rows that belong to no client and that the server and all clients hold."""
    public_labelled: bool = True
    """If not, ``dataset.y`` is 0 in the public rows and means nothing."""
    fill: np.ndarray | None = None
    """What each missing value of a table was replaced by; None where there were none."""

    def __post_init__(self) -> None:
        if self.dataset.gaps:
            raise FedekdError(f"dataset {self.dataset.name!r} may have missing values, which no model takes; fill them")

    @property
    def held(self) -> np.ndarray:
        """The rows of all clients together, in ascending order."""
        return np.sort(np.concatenate([rows for own in self.clients for rows in (own.train, own.val, own.test)]))

    @property
    def groups(self) -> np.ndarray | None:
        """int64 [N]: each row's group, numbered 0, 1, .. within the split of the client that holds it; None where each
        row stands for itself, as those of a public file do in any case."""
        names = self.dataset.groups
        if names is None:
            return None
        unnamed = names.codes.max() + 1 + np.arange(len(self.dataset.y) - len(names.codes))
        whose = np.concatenate([names.codes, unnamed])
        found = np.zeros(whose.shape, np.int64)
        for split in (self.public, *(part for own in self.clients for part in (own.train, own.val, own.test))):
            found[split] = np.unique(whose[split], return_inverse=True)[1]
        return found
