"""Files that are there whole or not at all, even when the power goes."""

from __future__ import annotations

import os
from pathlib import Path

from fedekd.store import write_whole


def write_bytes(path: Path, content: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the folder."""
    write_whole(path, content)
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
