"""Images, with a different private architecture at each site.

    python examples/mixed_models.py [FOLDER]

Four clinics read digits with what their hardware allows: a small or a large convolutional network, a perceptron, or
a linear model. Such models cannot be averaged; they learn from each other through a proxy that is the same everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path

from torch import nn

import fedekd
from fedekd.models import CNN
from fedekd.runs.verdict_text import told

KINDS = ("large CNN", "small CNN", "perceptron", "linear model")


def private(shape: Sequence[int], outputs: int, client: int) -> nn.Module:
    match KINDS[client % len(KINDS)]:
        case "large CNN":
            return CNN(shape, outputs, widths=(32, 64), hidden=128)
        case "small CNN":
            return CNN(shape, outputs, widths=(8, 16), hidden=32)
        case "perceptron":
            return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 128), nn.ReLU(), nn.Linear(128, outputs))
        case _:
            return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), outputs))


def proxy(shape: Sequence[int], outputs: int) -> nn.Module:
    return CNN(shape, outputs, widths=(8, 16), hidden=32)


def main(folder: Path) -> None:
    result = fedekd.run(
        "digits",
        clients=4,
        alpha=0.3,
        methods=["fedekd", "fml"],
        private=private,
        proxy=proxy,
        seeds=range(2),
        rounds=4,
        out=str(folder),
        progress=False,
    )
    frame = result.to_frame()
    frame["model"] = [KINDS[int(client)] for client in frame["id"]]
    print("accuracy in %, mean of two seeds")
    print((frame.pivot_table("value", "model", "method", sort=False) * 100).round(1).to_string())
    for method in result.transfer:
        mean = 100 * method.summary["delta"]["mean"]
        print(f"{method.label}: Avg Δ {mean:+.1f} points, {told(method)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-mixed-models"))
