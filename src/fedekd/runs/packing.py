"""Test rows in a record: which answers were right, a bit each, or what they were off by; as text."""

from __future__ import annotations

import base64
import binascii

import numpy as np

from fedekd.errors import FedekdError


def pack(errors: np.ndarray) -> str:
    """``errors`` as ``Task.errors`` gives them: integers, 0 where a class is right, or errors in the target's units."""
    raw = np.packbits(errors == 0) if errors.dtype.kind in "iub" else errors.astype("<f4")
    return base64.b64encode(raw.tobytes()).decode()


def unpack(text: str, rows: int, metric: str) -> np.ndarray:
    """[rows]: 1 where the answer is right and 0 where it is wrong, or the error."""
    try:
        raw = base64.b64decode(text, validate=True)
        if metric == "accuracy":
            bits = np.unpackbits(np.frombuffer(raw, np.uint8))
            if not 0 <= len(bits) - rows < 8:
                raise ValueError(f"{len(bits)} bits for {rows} rows")
            return bits[:rows].astype(float)
        found = np.frombuffer(raw, "<f4").astype(float)
        if len(found) != rows:
            raise ValueError(f"{len(found)} numbers for {rows} rows")
        return found
    except (binascii.Error, ValueError) as error:
        raise FedekdError(
            f"a record's test rows cannot be read: {error}; without its line the run is trained again"
        ) from None
