"""Records as runs write them, without running anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fedekd import metrics
from fedekd.runs import packing
from fedekd.runs.results import RunResults

METHODS = ("fedekd", "fedavg", "fedprox", "feddyn", "fedtype", "fedtype-prox", "fml", "fedekd-ungated")


def make_record(
    method: str = "fedekd",
    deltas: Sequence[float] = (0.05, 0.0, -0.012, 0.01, 0.02, 0.03),
    *,
    local: float = 0.9,
    metric: str = "accuracy",
    seed: int = 0,
    label: str | None = None,
    trust: bool = False,
    rows: int = 0,
) -> dict[str, Any]:
    """With as many test ``rows`` for each client, values are what the rows give, and the record holds them."""
    alone = [local * (1 - 0.02 * k) for k in range(len(deltas))]
    values = alone if method == "local" else [a + d for a, d in zip(alone, deltas, strict=True)]
    packed = [packed_rows(v, rows, metric, k) for k, v in enumerate(values)] if rows else [{} for _ in values]
    if rows and metric == "accuracy":
        alone, values = ([round(v * rows) / rows for v in some] for some in (alone, values))
    clients = [
        {
            **{"id": str(k), "n_train": 100 + k, "n_val": 20, "n_test": rows or 30 + k},
            **{"local": a, "value": v, "delta": v - a, **packed[k]},
        }
        for k, (a, v) in enumerate(zip(alone, values, strict=True))
    ]
    log = [{"round": r, "mean": 0.4 + r / 100, "std": 0.1, "histogram": [0, 1, 4, 8, 4, 1]} for r in range(1, 11)]
    return {
        "version": 2,
        "dataset": "digits" if metric == "accuracy" else "diabetes",
        "alpha": 0.1,
        "seed": seed,
        "method": method,
        "label": label or method,
        "params": {"rounds": 10, "epochs": 2},
        "task": "classification" if metric == "accuracy" else "regression",
        "metric": metric,
        "clients": clients,
        **metrics.summarise(values, alone, metric == "accuracy"),
        "bytes_up": 0 if method == "local" else 1_234_567,
        "bytes_down": 0 if method == "local" else 1_234_567,
        "seconds": 12.3,
        "trust": log if trust else [],
        "partition": {
            "kind": "dirichlet",
            "alpha": 0.1,
            "clients": len(deltas),
            "seed": seed,
            "fingerprint": f"{seed:02x}",
        },
        "versions": {"fedekd": "0.1.0"},
        "finished": "2026-01-02T00:00:00Z",
        "key": f"{method}{seed}",
    }


def packed_rows(value: float, rows: int, metric: str, client: int) -> dict[str, Any]:
    """Rows of a model that is right where a worse one is right, and elsewhere; or whose errors are its, scaled."""
    draw = np.random.default_rng(client)
    if metric == "accuracy":
        errors = (draw.permutation(rows) >= round(value * rows)).astype(np.int32)
    else:
        errors = draw.normal(0, 1, rows).astype(np.float32)
        errors *= np.float32(value / np.sqrt(np.mean(errors**2)))
    return {"rows": {"last": packing.pack(errors)}}


@pytest.fixture
def record() -> Callable[..., dict[str, Any]]:
    return make_record


@pytest.fixture
def result() -> Callable[..., RunResults]:
    """A result of as many methods and seeds as asked for."""

    def make(methods: int = 2, seeds: int = 1, metric: str = "accuracy", clients: int = 6, rows: int = 0) -> RunResults:
        draw = np.random.default_rng(0)
        scale, local = (0.05, 0.9) if metric == "accuracy" else (3.0, 55.0)
        records = []
        for seed in range(seeds):
            for name in ("local", *METHODS[:methods]):
                deltas = draw.normal(0, scale, clients)
                trust = name == "fedekd"
                records.append(make_record(name, deltas, local=local, metric=metric, seed=seed, trust=trust, rows=rows))
        return RunResults(records)

    return make
