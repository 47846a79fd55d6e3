"""Two small datasets that scikit-learn carries: nothing to download, a full run in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedekd.data.registry import register_dataset
from fedekd.dataset import Dataset


def digits(folder: Path) -> Dataset:
    """1,797 handwritten digits, 8 x 8 pixels of 0..16."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return Dataset(
        name="digits",
        task="classification",
        x=data.images[:, None].astype(np.uint8),
        y=data.target,
        outputs=10,
        labels=tuple(str(digit) for digit in range(10)),
        scale=16.0,
        source="scikit-learn: UCI optical recognition of handwritten digits",
    )


def diabetes(folder: Path) -> Dataset:
    """442 patients, ten measurements; the target is the disease's progression after a year."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    return Dataset(
        name="diabetes",
        task="regression",
        x=data.data,
        y=data.target,
        outputs=1,
        scale=None,
        source="scikit-learn: Efron et al., Least Angle Regression, 2004",
        standardise_target=True,
        columns=tuple(data.feature_names),
    )


register_dataset(
    "digits",
    digits,
    title="Digits",
    samples=1797,
    shape="1x8x8",
    note="comes with scikit-learn",
    preset={"rounds": 10, "epochs": 2, "batch_size": 32, "lr": 1e-3},
)
register_dataset(
    "diabetes",
    diabetes,
    title="Diabetes",
    task="regression",
    samples=442,
    shape="10",
    note="comes with scikit-learn; a table",
    preset={"rounds": 10, "epochs": 4, "batch_size": 16, "lr": 3e-3},
)
