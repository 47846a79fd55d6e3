"""Memory that a training step frees stays with the process for the next step."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
KEPT, LARGEST = 256 * 2**20, 32 * 2**20
SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> None:
    """Else glibc hands the activations of each step back to the system and asks for them again: benchmarks/README.md"""
    if any(name in os.environ for name in SET_BY_USER):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        mallopt(MMAP_THRESHOLD, LARGEST)  # as far as glibc would come by itself, if the other were left alone
        mallopt(TRIM_THRESHOLD, KEPT)
