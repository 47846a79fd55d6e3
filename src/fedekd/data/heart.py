"""Four hospitals' heart patients, which come with fedekd: real sites, with all that real sites differ in.

The files and whose they are: the folder heart_disease beside this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np

from fedekd.data.registry import register_dataset
from fedekd.dataset import Dataset

HOSPITALS = {
    "cleveland": "Cleveland",
    "hungarian": "Hungary",
    "switzerland": "Switzerland",
    "va": "VA Long Beach",
}
COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)
CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
NEVER_ZERO = ("trestbps", "chol")
"""A living patient's blood pressure and cholesterol: a 0 was written where nothing was measured."""


def heart(folder: Path) -> Dataset:
    """920 patients of four hospitals; the target is whether heart disease was found."""
    tables = [_read(name) for name in HOSPITALS]
    raw = np.concatenate(tables)
    columns = dict(_columns(raw))
    return Dataset(
        name="heart",
        task="classification",
        x=np.stack(list(columns.values()), 1),
        y=(raw[:, COLUMNS.index("num")] > 0).astype(np.int64),
        outputs=2,
        labels=("no disease", "disease"),
        scale=None,
        sites=np.repeat(np.arange(len(tables)), [len(table) for table in tables]),
        site_names=tuple(HOSPITALS.values()),
        source=(
            "UCI Heart Disease, CC BY 4.0, doi 10.24432/C52P4X: A. Janosi (Budapest), W. Steinbrunn (Zurich), "
            "M. Pfisterer (Basel), R. Detrano (Long Beach and Cleveland), 1989"
        ),
        columns=tuple(columns),
        gaps=True,
    )


def _read(hospital: str) -> np.ndarray:
    """A hospital's rows as they were published, with NaN for "?"."""
    text = (files("fedekd.data") / "heart_disease" / f"processed.{hospital}.data").read_text(encoding="ascii")
    return np.array([line.replace("?", "nan").split(",") for line in text.split()], np.float64)


def _columns(raw: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The inputs by name. A missing category is in none of its columns; any other missing value stays NaN."""
    for name, values in zip(COLUMNS[:-1], raw.T[:-1], strict=True):
        missing = np.isnan(values) | ((values == 0) & (name in NEVER_ZERO))
        if name in CATEGORIES:
            yield from ((f"{name}={category}", values == category) for category in CATEGORIES[name])
        else:
            yield name, np.where(missing, np.nan, values)
        if missing.any():
            yield f"{name} missing", missing


register_dataset(
    "heart",
    heart,
    title="Heart Disease",
    samples=920,
    shape="32",
    note="four real hospitals; Janosi, Steinbrunn, Pfisterer and Detrano, UCI 1989, CC BY 4.0",
    # By validation rows: with more or larger steps Local overfits, and any method would seem to help.
    preset={"rounds": 20, "epochs": 2, "batch_size": 32, "lr": 3e-4},
)
