"""The publishers' real files, where FEDEKD_DATA names a folder that holds them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedekd.data import catalogue, class_counts, federate, load_dataset
from fedekd.data.registry import recipe

FACTS = json.loads((Path(__file__).parent / "partition_facts.json").read_text())
SIX = {
    "fashionmnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "octmnist": ((1, 28, 28), 4),
    "organamnist": ((1, 28, 28), 11),
    "retinamnist": ((3, 28, 28), 1),
    "dr_regular": ((3, 224, 224), 1),
}


@pytest.fixture
def real() -> set[str]:
    if not os.environ.get("FEDEKD_DATA"):
        pytest.skip("FEDEKD_DATA is not set")
    return {entry.name for entry in catalogue() if entry.present}


@pytest.mark.parametrize("name", SIX)
def test_the_real_files(real: set[str], name: str) -> None:
    if name not in real:
        pytest.skip(f"{name} is not in FEDEKD_DATA")
    data = load_dataset(name)
    shape, outputs = SIX[name]
    assert (data.x.shape[1:], data.outputs, data.x.dtype) == (shape, outputs, np.uint8)
    if outputs == 1:
        assert set(np.unique(data.y)) == {0, 1, 2, 3, 4}
        return
    title = recipe(name).title
    if "another edition" not in data.source:
        assert np.bincount(data.y).tolist() == FACTS["class_counts"][title]
    for key, counts in FACTS["full"].items():
        dataset, alpha, seed = key.split("|")
        if dataset == title:
            assert class_counts(federate(data, alpha=float(alpha), seed=int(seed))).tolist() == counts
