"""What the error for a missing value advises."""

from __future__ import annotations

import pytest

from fedekd.data import load_dataset
from fedekd.errors import FedekdError


@pytest.mark.parametrize(
    ("rows", "advice"),
    [
        ("1,2,0\n2,3,\n3,4,1\n", "or give --missing drop"),
        ("1,,0\n2,3,1\n3,4,1\n", "or give --missing mean, flag or drop"),
    ],
)
def test_only_what_would_work_is_advised(tmp_path, rows, advice):
    """A target cannot be filled in, so its row can only be dropped."""
    (tmp_path / "ward.csv").write_text("a,b,y\n" + rows)
    with pytest.raises(FedekdError, match=f"{advice}$"):
        load_dataset(str(tmp_path / "ward.csv"), target="y")
