"""What a run's clients answered on their test rows, in DIR/rows/KEY.npz, where Δ is taken in a metric that needs it.

Of a run in accuracy or RMSE the record itself says which rows were right, or what they were off by.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedekd.data.formats import npz_keys, read_npz
from fedekd.errors import FedekdError
from fedekd.files import write_whole


def write(folder: Path, key: str, rows: Mapping[str, np.ndarray]) -> None:
    """``rows`` by the client's position and the round, "0-last" or "0-chosen", as ``fedekd.scores`` take them."""
    file = io.BytesIO()
    np.savez_compressed(file, **rows)  # type: ignore[arg-type]
    put(folder, key, file.getvalue())


def put(folder: Path, key: str, content: bytes) -> None:
    write_whole(_path(folder, key), content)


def content(folder: Path, key: str) -> bytes | None:
    """The file as it is; None where there is none."""
    path = _path(folder, key)
    return path.read_bytes() if path.exists() else None


def read(folder: Path, key: str, position: int, chosen: bool = False) -> np.ndarray | None:
    """[rows, columns] of one client at the last round or its chosen one; None where they were not kept."""
    path = _path(folder, key)
    if not path.exists():
        return None
    try:
        name = f"{position}-{'chosen' if chosen else 'last'}"
        name = name if name in npz_keys(path) else f"{position}-last"
        return read_npz(path, (name,))[name]
    except FedekdError as error:
        raise FedekdError(f"{error}; remove it to do without") from None


def _path(folder: Path, key: str) -> Path:
    return folder / "rows" / f"{key}.npz"
