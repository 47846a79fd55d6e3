"""A tensor's rows of very many members, few of whom are at work at a time.

A member has a row of its own from the first time that something is written to it; until then it shares the row that it
begins with. So memory grows with those that have taken part. The rows may lie in main memory: what is read comes to the
device, and what is written goes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedekd.engines.on_device import on_device

MANY = 256  # members from which a stack whose members take turns keeps rows like this
ROOM = 0.4  # of the device's free memory that all rows may take; else they lie in main memory


class MemberRows:
    """Reads and writes as a tensor [members, ...] does."""

    def __init__(self, starts: Tensor, which: Sequence[int] | Tensor, home: torch.device, device: torch.device) -> None:
        """``which`` of the ``starts`` each member begins with."""
        self.pool, self.row = starts.to(home, copy=True), torch.as_tensor(which, dtype=torch.long).clone()
        self.shared = self.used = len(starts)
        self.home, self.device = home, device

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.row), *self.pool.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return self.pool.dtype

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, at: Any) -> Tensor:
        found = self.pool[self.row[_on_host(at)].to(self.home)]
        return found if self.home == self.device else on_device(found, self.device)

    def __setitem__(self, at: Any, value: Tensor) -> None:
        members = torch.atleast_1d(torch.as_tensor(_on_host(at)))
        new = members[self.row[members] < self.shared]
        if len(new):
            self._grow(len(new))
            self.row[new] = torch.arange(self.used, self.used + len(new))
            self.used += len(new)
        self.pool[self.row[members].to(self.home)] = value.to(self.home)

    def _grow(self, by: int) -> None:
        wanted = self.used + by
        if wanted > len(self.pool):
            room = min(max(wanted, 2 * len(self.pool)), self.shared + len(self.row))
            grown = self.pool.new_empty(room, *self.pool.shape[1:])
            grown[: self.used] = self.pool[: self.used]
            self.pool = grown

    def clone(self) -> MemberRows:
        return self.part(torch.arange(len(self.row)))

    def part(self, members: Tensor | Sequence[int]) -> MemberRows:
        """The rows of some of them, as their own."""
        other = MemberRows(self.pool[: self.used], self.row[_on_host(members)].clone(), self.home, self.device)
        other.shared = self.shared
        return other

    def state(self) -> dict[str, Any]:
        return {"pool": self.pool[: self.used], "row": self.row, "shared": self.shared}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.pool, self.row, self.shared = state["pool"].to(self.home), state["row"].cpu(), int(state["shared"])
        self.used = len(self.pool)


Rows = Tensor | MemberRows


def rows_of(whole: Any, members: Tensor) -> Any:
    """Some members' rows to keep."""
    return whole.part(members) if isinstance(whole, MemberRows) else whole[members]


def home_of(bytes_: int, device: torch.device) -> torch.device:
    """Where that much may lie."""
    if device.type != "cuda":
        return device
    return device if bytes_ < ROOM * torch.cuda.mem_get_info(device)[0] else torch.device("cpu")


def _on_host(at: Any) -> Any:
    return at.cpu() if isinstance(at, Tensor) else torch.as_tensor(at)
