"""Which rows a family takes."""

from __future__ import annotations

from collections.abc import Sequence

from fedekd.errors import FedekdError


def image(shape: Sequence[int], name: str) -> Sequence[int]:
    if len(shape) != 3:
        raise FedekdError(f"the model {name!r} is for images, and these rows are a table; use mlp, or one of your own")
    return shape
