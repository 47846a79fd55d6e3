"""Trained federations in folders, as ``fedekd run`` leaves them, for the tests of export and predict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import fedekd
from fedekd.data import Dataset, Federation, federate, load_dataset
from fedekd.runs.results import RunResults


@dataclass(frozen=True)
class Trained:
    folder: Path
    dataset: Dataset
    federation: Federation
    result: RunResults

    def client(self, position: int, method: str = "fedekd") -> dict[str, Any]:
        record = next(r for r in self.result.records if r["label"] == method)
        return record["clients"][position]

    def test_rows(self, position: int) -> np.ndarray:
        return self.federation.clients[position].test


def train(folder: Path, dataset: Dataset, **settings: Any) -> Trained:
    given = {"clients": 3, "alpha": 1.0, "rounds": 2, "epochs": 1, "methods": ["fedekd"], **settings}
    result = fedekd.run(dataset, out=str(folder), progress=False, **given)
    split = {name: given[name] for name in ("clients", "alpha")}
    return Trained(folder, dataset, federate(dataset, seed=0, **split), result)


def write_patients(path: Path, rows: int = 120) -> Path:
    """Numbers, a truth, a text column and a text target that they decide."""
    draw = np.random.default_rng(5)
    age, dose = draw.integers(20, 90, rows), draw.normal(size=rows)
    sex, smokes = draw.choice(["f", "m", "n/k"], rows), draw.random(rows) < 0.5
    ill = np.where(age / 30 + dose + (sex == "m") + smokes > 3, "ill", "well")
    site = np.array(["north", "south"])[np.arange(rows) % 3 // 2]
    lines = [f"{a},{d:.4f},{s},{k},{i},{w}" for a, d, s, k, i, w in zip(age, dose, sex, smokes, ill, site, strict=True)]
    path.write_text("\n".join(["age,dose,sex,smokes,outcome,hospital", *lines]) + "\n")
    return path


def patients(path: Path) -> Dataset:
    return load_dataset(path, target="outcome", clients_from="hospital")


def by_number(shape: Any, outputs: int, client: int) -> nn.Module:
    """Another width at each client."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(int(np.prod(shape)), 4 + client), nn.ReLU(), nn.Linear(4 + client, outputs)
    )


def not_run(*_: Any) -> nn.Module:
    raise AssertionError("a name in a model file was imported and called")
