"""Test rows in a record: which answers were right, a bit each, or what they were off by, and their groups; as text."""

from __future__ import annotations

import base64
import binascii

import numpy as np

from fedekd.errors import FedekdError


def pack(errors: np.ndarray) -> str:
    """``errors`` as ``Task.errors`` gives them: integers, 0 where a class is right, or errors in the target's units."""
    raw = np.packbits(errors == 0) if errors.dtype.kind in "iub" else errors.astype("<f4")
    return base64.b64encode(raw.tobytes()).decode()


def pack_codes(codes: np.ndarray) -> str:
    return base64.b64encode(codes.astype("<i4").tobytes()).decode()


def unpack_codes(text: str, rows: int) -> np.ndarray:
    """[rows]: the numbers of groups or subgroups."""
    return _read(text, rows, "<i4")


def unpack(text: str, rows: int, metric: str) -> np.ndarray:
    """[rows]: 1 where the answer is right and 0 where it is wrong, or the error."""
    if metric == "accuracy":
        return np.unpackbits(_read(text, -(-rows // 8), "u1"))[:rows].astype(float)
    return _read(text, rows, "<f4").astype(float)


def _read(text: str, count: int, kind: str) -> np.ndarray:
    try:
        found = np.frombuffer(base64.b64decode(text, validate=True), kind)
        if len(found) != count:
            raise ValueError(f"{len(found)} numbers where there should be {count}")
    except (binascii.Error, ValueError) as error:
        raise FedekdError(
            f"a record's test rows cannot be read: {error}; without its line the run is trained again"
        ) from None
    return found
