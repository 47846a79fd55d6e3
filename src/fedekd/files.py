"""Files are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedekd.errors import FedekdError

FULL = (errno.ENOSPC, errno.EDQUOT)
TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
DATA_FILES = (*TABLES, ".npz")


def file_kind(path: str | Path) -> str:
    """A file's extension in lower case: .csv, or .csv.gz as a whole."""
    name = Path(path).name.lower()
    return next((kind for kind in TABLES if kind.endswith(".gz") and name.endswith(kind)), Path(name).suffix)


def file_stem(path: Path) -> str:
    """The name without its extension, .csv.gz counting as one."""
    kind = file_kind(path)
    return path.name[: -len(kind)] if kind in DATA_FILES else path.stem


def check_name(path: Path) -> None:
    """Refuse a name that is not UTF-8: it would be written into every record, which would fail after the training."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="replace").decode()
        raise FedekdError(f"the name of {shown} is not UTF-8; rename the file or folder") from None


def unreadable(path: Path, error: BaseException) -> FedekdError:
    """What to say where the system refused to hand a file out: nothing is known about its content."""
    why = getattr(error, "strerror", None) or str(error)
    return FedekdError(f"cannot read {path}: {why}; check that it is a file that you may read")


def owner_only(path: Path) -> FedekdError:
    """What to say of another user's keys, state or what is in it."""
    return FedekdError(f"cannot read {path}: it is for its owner alone; run this as that user")


def failed_read(path: Path, error: BaseException, damage: FedekdError) -> FedekdError:
    """What to say of a failed read: ``damage`` where the content is wrong; it may also be that the system refused."""
    refused = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
    return unreadable(path, error) if refused else damage


def write_whole(path: Path, content: bytes, option: str = "--out", mode: int = 0o666) -> None:
    """The file is there with all of its content, or as it was before. ``option`` is where the user named the place.

    ``mode`` is who may read and write it at most; the umask may take away more.
    """
    with writing(path, option):
        if path.exists() and not (path.is_file() or path.is_dir()):  # which a rename would replace
            raise FedekdError(f"cannot write {path}: it is a device or a pipe; choose another {option}")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")  # that nobody can lay a link at before
        try:
            with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path, option: str = "--out") -> Iterator[None]:
    """Turn the system's refusals (no permission, full disk, a file in the way) into one line."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise FedekdError(f"cannot write {path}: disk full; make room there, or choose another {option}") from None
        raise FedekdError(f"cannot write {path}: {error.strerror or error}; choose another {option}") from None


def write_new(path: Path, content: bytes, *, private: bool = False) -> Path:
    """The same for a file that does not exist yet; a ``private`` one is its owner's alone from its first byte on."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                if not private:
                    os.fchmod(file.fileno(), 0o644)
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, path)  # which fails where there is a file, unlike a rename
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
    except FileExistsError:
        raise FedekdError(f"{path} exists already; move it away, or name another folder") from None
    except OSError as error:
        raise FedekdError(f"cannot write {path}: {error.strerror or error}") from None
    return path
