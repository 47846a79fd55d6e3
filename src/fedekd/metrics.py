"""Negative transfer: a client's result with a method minus its result alone, and its mean, worst and tail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedekd.settings import NEWER

SHARED = ("rounds", "epochs", "batch_size", "lr", "optimizer", "weighting", "precision", *NEWER)
FEW = 5  # test samples, below which an interval says nothing


def summarise(values: Sequence[float], local: Sequence[float], higher_is_better: bool) -> dict[str, float]:
    """One run's figures over its clients. Worst and tail look to the harmed side: P10 of accuracy, P90 of RMSE."""
    value, delta = np.asarray(values, float), np.asarray(values, float) - np.asarray(local, float)
    worst, tail = (np.min, 10) if higher_is_better else (np.max, 90)
    return {
        "avg_delta": float(delta.mean()),
        "worst_delta": float(worst(delta)),
        "tail_delta": float(np.percentile(delta, tail)),
        "mean": float(value.mean()),
        "worst": float(worst(value)),
    }


def harmed(deltas: Sequence[float], higher_is_better: bool) -> int:
    """How many clients are worse off than alone."""
    delta = np.asarray(deltas, float)
    return int((delta < 0).sum() if higher_is_better else (delta > 0).sum())


def over_seeds(values: Sequence[float]) -> dict[str, float]:
    """Mean and population deviation, as the paper reports them."""
    array = np.asarray(values, float)
    return {"mean": float(array.mean()), "std": float(array.std())}


def paired_interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Student's interval for the mean of paired differences, one per seed; None with fewer than two seeds."""
    from scipy.special import stdtrit

    d = np.asarray(differences, float)
    if len(d) < 2:
        return None
    half = float(stdtrit(len(d) - 1, 0.5 + level / 2)) * float(d.std(ddof=1)) / len(d) ** 0.5
    return float(d.mean()) - half, float(d.mean()) + half


def sample_interval(
    joined: Sequence[float], alone: Sequence[float], higher_is_better: bool, level: float = 0.95
) -> tuple[float, float] | None:
    """How sure one client's Δ is, given the samples it was tested on: an interval from the errors with the method and
    alone on the same samples, in their order; None with fewer than FEW.

    For accuracy it is Agresti and Min's (2005): it keeps a width when no sample changes. For RMSE it is Student's, with
    the square root made linear.
    """
    from scipy.special import ndtri, stdtrit

    a, b = np.asarray(joined, float), np.asarray(alone, float)
    n = len(a)
    if n < FEW:
        return None
    if higher_is_better:
        won, lost = float((a < b).sum()) + 0.5, float((a > b).sum()) + 0.5
        centre = (won - lost) / (n + 2)
        half = float(ndtri(0.5 + level / 2)) * (won + lost - (won - lost) ** 2 / (n + 2)) ** 0.5 / (n + 2)
        return max(-1.0, centre - half), min(1.0, centre + half)
    roots = [float(np.sqrt(np.mean(e**2))) for e in (a, b)]
    share = [e**2 / (2 * root) if root else e for e, root in zip((a, b), roots, strict=True)]
    centre, spread = roots[0] - roots[1], float(np.std(share[0] - share[1], ddof=1))
    half = float(stdtrit(n - 1, 0.5 + level / 2)) * spread / n**0.5
    return centre - half, centre + half


def shared_settings(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """What runs must share to stand in one table; the device is not among it."""
    params, partition = {**NEWER, **record.get("params", {})}, record.get("partition", {})
    public = partition.get("public", {})
    return (
        *(params.get(name) for name in SHARED),
        *(partition.get(name) for name in ("kind", "clients", "fraction")),
        partition.get("seed") if partition.get("fixed") else None,
        *(public.get(name) for name in ("share", "file")),
    )


def aggregate(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of several seeds as one row per dataset, alpha, method and settings, in order of appearance."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        same = (record["dataset"], record["alpha"], record["label"], *shared_settings(record))
        groups.setdefault(same, []).append(record)
    rows = []
    for (dataset, alpha, label, *_), group in groups.items():
        better = group[0]["metric"] == "accuracy"
        row: dict[str, Any] = {
            "dataset": dataset, "alpha": alpha, "method": group[0]["method"], "label": label,
            "metric": group[0]["metric"], "seeds": [r["seed"] for r in group],
        }  # fmt: skip
        for key in ("avg_delta", "worst_delta", "tail_delta", "mean", "worst"):
            row[key] = over_seeds([r[key] for r in group])
        row["avg_delta"]["interval"] = paired_interval([r["avg_delta"] for r in group])
        row["harmed"] = sum(harmed([c["delta"] for c in r["clients"]], better) for r in group)
        row["clients"] = sum(len(r["clients"]) for r in group)
        for key in ("bytes_up", "bytes_down", "seconds"):
            row[key] = float(np.mean([r[key] for r in group]))
        rows.append(row)
    return rows
