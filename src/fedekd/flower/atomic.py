"""Files that are there whole or not at all, even when the power goes."""

from __future__ import annotations

import os
from pathlib import Path

from fedekd.files import write_whole


def write_bytes(path: Path, content: bytes, option: str = "`state`") -> None:
    """Temporary file, fsync, rename, fsync of the folder. ``option`` is where the user named the place."""
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
