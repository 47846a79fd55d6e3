"""Randomness drawn from (seed, purpose, client, ...), never from a global state.

Two methods on one seed therefore see the same split, initial weights and batches, whatever ran before them.
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, *key: str | int) -> np.random.Generator:
    """An independent generator for each (seed, key); words in the key are hashed the same way everywhere."""
    if "" in key:
        raise ValueError(f"an empty word in {key}: its hash is 0, and 0 has that stream")
    if any(isinstance(k, int) and not 0 <= k < 2**32 for k in key):
        raise ValueError(f"a number of {key} is not in 0..2**32-1: another key has that stream")
    words = [zlib.crc32(k.encode()) if isinstance(k, str) else int(k) for k in key]
    if 0 <= seed < 2**32:  # what numpy makes of a spawn_key, in half the time: a round of many clients needs thousands
        seeds = np.random.SeedSequence(np.array([seed, 0, 0, 0, *words], np.uint32))
    else:
        seeds = np.random.SeedSequence(seed, spawn_key=tuple(words))
    return np.random.Generator(np.random.PCG64(seeds))


def integer(seed: int, *key: str | int) -> int:
    """A 63-bit integer for each (seed, key), to seed a generator of another library."""
    return int(stream(seed, *key).integers(2**63 - 1))
