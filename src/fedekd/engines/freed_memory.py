"""Memory that a training step frees stays with the process for the next step."""

from __future__ import annotations

import ctypes
import functools
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
KEPT, LARGEST = 256 * 2**20, 32 * 2**20


@functools.cache
def keep_freed_memory() -> None:
    """Else glibc hands the activations of each step back to the system and asks for them again: benchmarks/README.md"""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        mallopt(MMAP_THRESHOLD, LARGEST)  # as far as glibc would come by itself, if the other were left alone
        mallopt(TRIM_THRESHOLD, KEPT)
