"""Methods that read public rows say so where there are none."""

from __future__ import annotations

import pytest

from distilling import engine_of
from fedekd import methods
from fedekd.errors import FedekdError


@pytest.mark.parametrize("name", ["fedmd", "feddf", "fccl", "pfedhr"])
def test_without_public_rows_one_line_says_so(images, name):
    with pytest.raises(FedekdError, match=f"method '{name}' needs public rows.*, which server and clients") as error:
        engine_of(images, methods.get(name))
    assert "\n" not in str(error.value)
    assert ("labels" in str(error.value)) == (name in ("fedmd", "pfedhr"))
