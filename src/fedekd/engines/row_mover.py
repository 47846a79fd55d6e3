"""Rows move between main memory and the device while both do other work: in a thread, and on a GPU in its own stream.

What it is asked for it does one after another, so that a row is fetched as it was stored last.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

PIECE = 2**26  # bytes that move at once: the next are gathered while the device fetches these


class RowMover:
    def __init__(self, device: torch.device) -> None:
        self.device, self.gpu = device, device.type == "cuda"
        self.thread = ThreadPoolExecutor(1, "row-mover")
        self.stream = torch.cuda.Stream(device) if self.gpu else None
        self.buffers: list[tuple[Tensor, Any]] = [(torch.empty(0, dtype=torch.uint8), None)] * 2
        """Pinned memory, used in turn, and the moment from which each may be used again."""

    # --- in the thread -----------------------------------------------------------------------------------

    def fetch(self, pool: Tensor, rows: Tensor) -> tuple[Tensor, Any]:
        """These rows of a tensor in main memory on the device, and the moment from which they are there."""
        with torch.cuda.stream(self.stream):
            found = torch.empty((len(rows), *pool.shape[1:]), dtype=pool.dtype, device=self.device)
            for some in _pieces(found):
                buffer = self._buffer(found[some])
                torch.index_select(pool, 0, rows[some], out=buffer)
                found[some].copy_(buffer, non_blocking=True)
                self.buffers[0] = self.buffers[0][0], self.moment()
            return found, self.moment()

    def store(self, new: Tensor, ready: Any, pool: Tensor, rows: Tensor) -> None:
        """Put rows from the device, which are ``ready`` from that moment on, into a tensor in main memory."""
        with torch.cuda.stream(self.stream):
            if ready is not None:
                ready.wait(self.stream)
            for some in _pieces(new):
                buffer = self._buffer(new[some])
                buffer.copy_(new[some], non_blocking=True)
                there = self.moment()
                if there is not None:
                    there.synchronize()
                pool.index_copy_(0, rows[some], buffer)

    def _buffer(self, like: Tensor) -> Tensor:
        self.buffers.reverse()
        memory, free = self.buffers[0]
        if free is not None:
            free.synchronize()
        if memory.nbytes < like.nbytes:
            memory = torch.empty(max(PIECE, like.nbytes), dtype=torch.uint8, pin_memory=self.gpu)
        self.buffers[0] = memory, None
        return memory[: like.nbytes].view(like.dtype).view(like.shape)

    # --- in either ---------------------------------------------------------------------------------------

    def moment(self) -> Any:
        """When the device has done all that it was asked for so far by this thread."""
        return torch.cuda.current_stream(self.device).record_event() if self.gpu else None

    def arrived(self, asked: Future[tuple[Tensor, Any]]) -> Tensor:
        """What was fetched, for the caller's stream, which waits for it on the device."""
        found, there = asked.result()
        if there is not None:
            now = torch.cuda.current_stream(self.device)
            there.wait(now)
            found.record_stream(now)  # its memory is the mover's stream's
        return found


@functools.cache
def row_mover(device: torch.device) -> RowMover:
    return RowMover(device)


def _pieces(rows: Tensor) -> Iterator[slice]:
    size = max(1, PIECE // max(1, rows.element_size() * math.prod(rows.shape[1:])))
    return (slice(start, start + size) for start in range(0, len(rows), size))
