"""A tensor's rows of very many members, few of whom are at work at a time.

A member has a row of its own from the first time that something is written to it; until then it shares the row that it
begins with. So memory grows with those that have taken part. The rows may lie in main memory: what is read comes to the
device, and what is written goes back.

Where it is known who is at work, their rows are brought to the device together, and read and written there until they
``leave``. Those in main memory are fetched and stored by a ``RowMover`` meanwhile: the next ones' are fetched ahead,
and whoever was at work just before comes from where it was rather than from main memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from fedekd.engines.on_device import on_device
from fedekd.engines.row_mover import row_mover

MANY = 256  # members from which a stack whose members take turns keeps rows like this
ROOM = 0.4  # of the device's free memory that all rows may take; else they lie in main memory
NEAR = 0.3  # of the device's free memory that the rows of those at work may take, with the ones before and after


class AtWork:
    """Some of all members, and the places of their rows when these lie together."""

    def __init__(self, members: Sequence[int], of: int, device: torch.device) -> None:
        self.members, self.device = torch.tensor(members, dtype=torch.long), device
        self.place = torch.full((of,), of)  # of the others: beyond all rows, so that reading one fails
        self.place[self.members] = torch.arange(len(members))
        self.place_there = on_device(self.place, device)

    def __len__(self) -> int:
        return len(self.members)

    def places(self, at: Any) -> Any:
        """The places of these members' rows, as indices on the device; nothing is read back from it."""
        if isinstance(at, int):
            return int(self.place[at])
        if isinstance(at, Tensor) and at.device.type != "cpu":
            return self.place_there[at]
        return on_device(self.place[torch.as_tensor(at)], self.device)

    def shared_with(self, other: AtWork) -> Tensor:
        return self.members[other.place[self.members] < len(other)]


class MemberRows:
    """Reads and writes as a tensor [members, ...] does."""

    def __init__(self, starts: Tensor, which: Sequence[int] | Tensor, home: torch.device, device: torch.device) -> None:
        """``which`` of the ``starts`` each member begins with."""
        self.pool, self.row = starts.to(home, copy=True), torch.as_tensor(which, dtype=torch.long).clone()
        self.shared = self.used = len(starts)
        self.home, self.device = home, device
        self.near: tuple[AtWork, Tensor] | None = None  # those at work, and their rows on the device
        self.written = False  # whether these rows have changed
        self.before: tuple[AtWork, Tensor] | None = None  # the last that were, if theirs had changed
        self.ahead: tuple[AtWork, Future[Any]] | None = None  # the next, whose rows are being fetched
        self.storing: Future[None] | None = None

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.row), *self.pool.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return self.pool.dtype

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, at: Any) -> Tensor:
        if self.near is not None:
            who, rows = self.near
            return rows[who.places(at)]
        self._store_all()
        found = self.pool[self.row[_on_host(at)].to(self.home)]
        return found if self.home == self.device else on_device(found, self.device)

    def __setitem__(self, at: Any, value: Tensor) -> None:
        if self.near is not None:
            who, rows = self.near
            rows[who.places(at)] = value
            self.written = True
            return
        self._store_all()
        self.ahead = self.before = None
        rows = self._own_rows(torch.atleast_1d(torch.as_tensor(_on_host(at))))
        self._grow(self.used)
        self.pool[rows.to(self.home)] = value.to(self.home)

    # --- those at work -----------------------------------------------------------------------------------

    def bring(self, who: AtWork) -> None:
        """From now on these members alone are read and written. If their rows do not fit, all goes on as without it."""
        (ahead, self.ahead), (before, self.before) = (self.ahead, None), (self.before, None)
        try:
            if self.home == self.device:
                rows = self.pool[on_device(self.row[who.members], self.device)]
            else:
                rows = self._fetched(who, ahead)
            if before is not None and len(both := who.shared_with(before[0])):
                rows[who.places(both)] = before[1][before[0].places(both)]
        except torch.OutOfMemoryError:
            return
        self.near, self.written = (who, rows), False

    def _fetched(self, who: AtWork, ahead: tuple[AtWork, Future[Any]] | None) -> Tensor:
        mover = row_mover(self.device)
        if ahead is not None and torch.equal(ahead[0].members, who.members):
            with suppress(torch.OutOfMemoryError):  # it was fetched while others were at work, who are done now
                return mover.arrived(ahead[1])
        return mover.arrived(self._ask(who))

    def fetch_ahead(self, who: AtWork) -> None:
        """Begin to fetch the rows of those who come next."""
        if self.home != self.device:
            self.ahead = who, self._ask(who)

    def leave(self) -> None:
        """Those at work are done: keep what they have changed."""
        if self.near is not None and self.written:
            self._store()
            self.before = self.near if self.home != self.device else None
        self.near = None

    def give_up(self) -> None:
        """Those at work go on with their rows where these lie, and nobody's are kept on the device for later."""
        self.leave()
        self._wait()
        self.before = self.ahead = None

    def _ask(self, who: AtWork) -> Future[Any]:
        rows, mover = self.row[who.members], row_mover(self.device)
        return mover.thread.submit(lambda: mover.fetch(self.pool, rows))

    def _store(self) -> None:
        assert self.near is not None
        self._wait()
        who, new = self.near
        rows, used = self._own_rows(who.members), self.used
        if self.home == self.device:
            self._grow(used)
            self.pool[on_device(rows, self.device)] = new
            return
        mover = row_mover(self.device)
        ready = mover.moment()

        def work() -> None:
            self._grow(used)
            mover.store(new, ready, self.pool, rows)

        self.storing = mover.thread.submit(work)

    def _store_all(self) -> None:
        """Wait until the pool has all rows as they are now."""
        if self.near is not None and self.written:
            self._store()
        self._wait()

    def _wait(self) -> None:
        if self.storing is not None:
            self.storing.result()
            self.storing = None

    # -----------------------------------------------------------------------------------------------------

    def _own_rows(self, members: Tensor) -> Tensor:
        """The rows of these members, with a new row for each that still shares one."""
        new = members[self.row[members] < self.shared]
        self.row[new] = torch.arange(self.used, self.used + len(new))
        self.used += len(new)
        return self.row[members]

    def _grow(self, used: int) -> None:
        if used > len(self.pool):
            every = self.shared + len(self.row)
            # Main memory is taken as it is written to, so there all rows get room, and none is copied again.
            wanted = min(2 * len(self.pool), every) if self.home == self.device else every
            try:
                grown = self._room(max(used, wanted))
            except RuntimeError:
                grown = self._room(used)
            grown[: len(self.pool)] = self.pool
            self.pool = grown

    def _room(self, rows: int) -> Tensor:
        return self.pool.new_empty(rows, *self.pool.shape[1:])

    def clone(self) -> MemberRows:
        return self.part(torch.arange(len(self.row)))

    def part(self, members: Tensor | Sequence[int]) -> MemberRows:
        """A copy that holds some of the members alone."""
        self._store_all()
        other = MemberRows(self.pool[: self.used], self.row[_on_host(members)].clone(), self.home, self.device)
        other.shared = self.shared
        return other

    def state(self) -> dict[str, Any]:
        self._store_all()
        pool = self.pool[: self.used]
        if 2 * self.used < len(self.pool):  # torch.save would write all the room that there is
            pool = pool.clone()
        return {"pool": pool, "row": self.row, "shared": self.shared}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._store_all()
        self.near = self.before = self.ahead = None
        self.pool, self.row, self.shared = state["pool"].to(self.home), state["row"].cpu(), int(state["shared"])
        self.used = len(self.pool)


def rows_of(whole: Any, members: Tensor) -> Any:
    """The rows of some members, to be kept."""
    return whole.part(members) if isinstance(whole, MemberRows) else whole[members]


def home_of(bytes_: int, device: torch.device) -> torch.device:
    """The device where so many bytes should lie: the GPU if they leave it enough room, else main memory."""
    if device.type != "cuda":
        return device
    return device if bytes_ < ROOM * torch.cuda.mem_get_info(device)[0] else torch.device("cpu")


def worth_bringing(whole: Iterable[Any], share: float, device: torch.device) -> bool:
    """Whether the rows of those at work, a share of all, go to the device together. On a CPU that gives nothing."""
    if device.type != "cuda":
        return False
    each = sum(len(t) * share * t.pool[0].nbytes for t in whole if isinstance(t, MemberRows))
    return 3 * each < NEAR * torch.cuda.mem_get_info(device)[0]


def _on_host(at: Any) -> Any:
    return at.cpu() if isinstance(at, Tensor) else torch.as_tensor(at)
