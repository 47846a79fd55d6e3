"""Details as ``fedekd run`` leaves them beside its records, made up for a record, without running anything."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

GATED = ("fedekd",)


def make_details(
    record: dict[str, Any], classes: tuple[str, ...] = ("cat", "dog", "owl"), rounds: int = 3
) -> dict[str, Any]:
    draw = np.random.default_rng(len(record["key"]) + record["seed"])
    clients, regression = record["clients"], record["task"] == "regression"
    gated = record["method"] in GATED
    curve = [
        [c["value"] * (r + 1) / rounds if not regression else c["value"] * (1 + (rounds - r - 1) / 5) for c in clients]
        for r in range(rounds)
    ]
    sent = 0 if record["method"] == "local" else 5_000 * len(clients)
    return {
        "classes": [] if regression else list(classes),
        "curve": curve,
        **({} if regression else {"confusion": [confusion(draw, client, len(classes)) for client in clients]}),
        **({} if regression else {"calibration": [calibration(client) for client in clients]}),
        "train_loss": [[1.0 / (r + 1) + 0.01 * k for k in range(len(clients))] for r in range(rounds)],
        "trust": [{"round": r + 1, "clients": [trust_of(draw) for _ in clients]} for r in range(rounds * gated)],
        "exchange": [{"up": sent, "down": sent} for _ in range(rounds)],
        "private_bytes": 20_000,
        "partition": [
            {"client": c["id"], "counts": draw.integers(1, 90, 10 if regression else len(classes)).tolist()}
            for c in clients
        ],
        "edges": np.linspace(20.0, 350.0, 11).tolist() if regression else None,
        "distrusted": [sample(draw, clients[i % len(clients)]["id"], i, classes, regression) for i in range(6 * gated)],
        "reliability": reliability(regression) if gated else None,
    }


def confusion(draw: np.random.Generator, client: dict[str, Any], classes: int) -> list[list[int]]:
    pairs = draw.integers(0, classes**2, client["n_test"])
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes).tolist()


def calibration(client: dict[str, Any]) -> dict[str, list[Any]]:
    """Half of the rows at 45 %, the others at 95 %, of which the client gets its accuracy right."""
    few, many = client["n_test"] // 2, client["n_test"] - client["n_test"] // 2
    right = round(client["value"] * client["n_test"])
    rest = [0] * 4
    sure = [0.0] * 4 + [0.45] + [0.0] * 4 + [0.95]
    return {
        "count": [*rest, few, *rest, many],
        "sure": sure,
        "right": [*rest, max(0, right - many), *rest, min(right, many)],
    }


def trust_of(draw: np.random.Generator) -> dict[str, Any]:
    weights = draw.beta(2, 2, 200)
    counts, _ = np.histogram(weights, 20, (0, 1))
    return {"mean": float(weights.mean()), "std": float(weights.std()), "histogram": counts.tolist()}


def sample(
    draw: np.random.Generator, client: str, row: int, classes: tuple[str, ...], regression: bool
) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(draw.integers(0, 255, (8, 8), dtype=np.uint8)).save(file, "PNG")
    picked = (
        [float(x) for x in draw.normal(150, 40, 3)]
        if regression
        else [classes[i] for i in draw.integers(0, len(classes), 3)]
    )
    return {
        "client": client,
        "row": row,
        "label": picked[0],
        "private": picked[1],
        "proxy": picked[2],
        "energy": 40.0 - row,
        "trust": 0.01 * row,
        "image": None if regression else base64.b64encode(file.getvalue()).decode(),
    }


def reliability(regression: bool) -> dict[str, Any]:
    steps = np.linspace(0, 1, 10)
    right = 40 + 30 * steps if regression else 0.95 - 0.6 * steps
    return {
        "energy": (steps * 5).tolist(),
        "count": [30] * 10,
        "proxy": right.tolist(),
        "private": (right * (0.9 if regression else 1.03)).tolist(),
        "trust": (0.9 - 0.7 * steps).tolist(),
    }
