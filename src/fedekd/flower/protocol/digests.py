"""One hash for what is exchanged, at the server, at a site and in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of named arrays, whatever their order: names, types, shapes and bytes."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        found.update(array.tobytes())
    return found.hexdigest()
