"""What must outlive a kill at any moment: a state on disk, with the version before it and a checksum in each.

A version is written beside the others, synced and renamed into place, so the newest one is always whole. Should a
disk spoil it all the same, its checksum tells, and the version before it takes its place.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedekd.errors import FedekdError
from fedekd.files import unreadable, write_whole

log = logging.getLogger("fedekd.state")
MARK = b"fedekd state 1\n"
DIGEST = 64  # characters of a SHA-256 in hexadecimal


class SavedState:
    """Versions of one state, each with the number of the visit after which it was saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.newest, self.previous = folder / "state.pt", folder / "state.previous.pt"

    def save(self, visit: int, state: dict[str, Any]) -> None:
        """Keep ``state`` as the newest version; the newest so far, if it is whole, becomes the previous one."""
        import torch

        stream = io.BytesIO()
        torch.save({"visit": visit, "state": state}, stream)
        content = stream.getvalue()
        make_folder(self.folder)
        coming, spare = self.folder / "state.next", self.folder / "state.link"
        write_bytes(coming, MARK + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        if _payload(self.newest) is not None:
            spare.unlink(missing_ok=True)
            os.link(self.newest, spare)  # so that the newest is never away
            os.replace(spare, self.previous)
            sync_folder(self.folder)
        os.replace(coming, self.newest)
        sync_folder(self.folder)

    def load(self, visit: int | None = None) -> tuple[int, dict[str, Any]] | None:
        """The newest whole version, or the one of ``visit`` where the newest is later; None if there never was one.

        A version before ``visit`` does not stand in for it once a later one exists: the same visit would be done
        twice, with two results.
        """
        found = [file for file in (self.newest, self.previous) if file.exists()]
        whole = [payload for payload in map(_payload, found) if payload is not None]
        if not whole:
            if found:
                raise FedekdError(
                    f"every version of the state in {self.folder} is damaged; restore the folder from a backup"
                )
            return None
        newest, state = _unpacked(whole[0])
        if len(whole) < len(found):
            log.warning("a version of the state in %s is damaged; going on after visit %d", self.folder, newest + 1)
        if visit is None or newest <= visit:
            return newest, state
        for number, state in map(_unpacked, whole[1:]):
            if number == visit:
                return number, state
        raise FedekdError(
            f"{self.folder} is at visit {newest}, past the wanted visit {visit}: the server has lost rounds; "
            "restore its state folder, or begin a new federation"
        )


@contextmanager
def locked(folder: Path, seconds: float = 60.0) -> Iterator[None]:
    """One process at a time: after a kill, what the killed one had started may still be at work."""
    try:
        make_folder(folder)
        lock = open(folder / "lock", "a")  # noqa: SIM115
    except OSError as error:
        raise FedekdError(f"cannot write to {folder}: {error.strerror}; check `state` and its owner") from None
    with lock:
        until = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise FedekdError(
                        f"another process has been at work in {folder} for {seconds:g} s; let it end"
                    ) from None
                time.sleep(0.05)
        for left in folder.glob("*.part"):
            left.unlink(missing_ok=True)
        yield


def _payload(path: Path) -> bytes | None:
    """A version's content, or None where there is none or it is not what was written."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from None
    head, payload = content[: len(MARK) + DIGEST + 1], content[len(MARK) + DIGEST + 1 :]
    return payload if head == MARK + hashlib.sha256(payload).hexdigest().encode() + b"\n" else None


def _unpacked(payload: bytes) -> tuple[int, dict[str, Any]]:
    import torch

    version = torch.load(io.BytesIO(payload), weights_only=True, map_location="cpu")
    return int(version["visit"]), version["state"]


def write_bytes(path: Path, content: bytes, option: str = "`state`") -> None:
    """A file there whole or not at all, even when the power goes. ``option`` is where the user named the place."""
    make_folder(path.parent)
    write_whole(path, content, option)
    sync_folder(path.parent)


def write_text(path: Path, text: str, option: str = "`state`") -> None:
    write_bytes(path, text.encode(), option)


def make_folder(folder: Path) -> None:
    """A folder that lasts, with those above it."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
