from __future__ import annotations

import numpy as np
import pytest

from fedekd.data import Dataset
from fedekd.errors import FedekdError


def make(**changes: object) -> Dataset:
    rows = {"name": "d", "task": "classification", "x": np.ones((4, 2)), "y": np.array([0, 1, 0, 1]), "outputs": 2}
    return Dataset(**{**rows, **changes})  # type: ignore[arg-type]


def test_types_are_settled() -> None:
    table = make(sites=np.array([0, 0, 1, 1], np.uint8))
    assert (table.x.dtype, table.y.dtype, table.sites.dtype) == (np.float32, np.int64, np.int64)
    assert table.site_names == ("0", "1")
    images = np.zeros((4, 1, 2, 2), np.uint8)
    assert make(x=images).x is images
    assert make(task="regression", y=np.arange(4), outputs=1).y.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "classify"}, "did you mean 'classification'"),
        ({"x": np.ones((4, 2, 2))}, r"shape \(4, 2, 2\)"),
        ({"y": np.array([0, 1])}, "x has 4 rows"),
        ({"x": np.ones((0, 2)), "y": np.array([], int)}, "empty"),
        ({"x": np.ones((4, 0))}, "empty"),
        ({"x": np.array([[np.nan, 1], [np.inf, 1], [1, 1], [1, 1]])}, "2 of 4 rows"),
        ({"x": np.full((4, 2), 1e300)}, "infinite"),
        ({"x": np.full((4, 2), "a")}, "give numbers"),
        ({"y": np.array([0.0, 1, 0, 1])}, "integers 0..1"),
        ({"y": np.array([0, 1, 2, 1])}, "label 2 is outside 0..1"),
        ({"y": np.array([0, -1, 0, 1])}, "label -1 is outside"),
        ({"y": np.zeros(4, int)}, "one class"),
        ({"labels": ("a",)}, "1 class names for 2"),
        ({"columns": ("a",)}, "1 column names for rows of shape \\(2,\\)"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"task": "regression"}, "outputs=1"),
        ({"task": "regression", "outputs": 1, "y": np.array([1, np.nan, 2, 3])}, "1 of 4 targets"),
        ({"sites": np.array([0, 1])}, "sites"),
        ({"sites": np.array([0, 1, 2, 0]), "site_names": ("a", "b")}, "2 site names for 3"),
        ({"sites": np.array([0, 1, 1, 0]), "site_names": ("a", "a")}, "two sites have the same name"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(changes: dict[str, object], words: str) -> None:
    with pytest.raises(FedekdError, match=words) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)
