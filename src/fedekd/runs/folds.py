"""Runs that test the same clients: on the same rows, or each on another fold of them, so that every row is tested."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedekd.runs.records import Record


def same_clients(record: Record) -> str:
    """Equal for those seeds of one table on which a client is one and the same."""
    partition = record["partition"]
    return "folds" if "folds" in partition else partition["fingerprint"]


def fold_of(record: Record) -> int:
    return record["partition"].get("fold", 0)


def end_to_end(by_seed: Sequence[np.ndarray | None], folds: Sequence[int]) -> list[np.ndarray | None]:
    """What is known of each seed's test rows, as a list with the rows of all folds one behind the other in each entry.

    The k-th entry has the k-th seed of every fold; without folds it is the k-th seed.
    """
    each = [[rows for rows, own in zip(by_seed, folds, strict=True) if own == fold] for fold in sorted(set(folds))]
    return [_joined(parts) for parts in zip(*each, strict=False)]  # an unfinished study may lack some


def _joined(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    known = [rows for rows in parts if rows is not None]
    return np.concatenate(known) if known and len(known) == len(parts) else None
