"""Downloading the published datasets from their publishers: checked, resumable, never half there."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from fedekd.data.download import to_file
from fedekd.data.registry import data_folder, recipe
from fedekd.errors import FedekdError

if TYPE_CHECKING:
    from fedekd.data.published import Published


def fetch(name: str, data_dir: str | Path | None = None, progress: bool = True) -> Path:
    """Download a published dataset unless it is already there and whole. Returns its folder or file."""
    one = recipe(name)
    published = one.published
    if published is None:
        raise FedekdError(f"dataset {one.name!r} is not a download: there is nothing to fetch; use it as it is")
    folder = data_folder(data_dir)
    home = published.find(folder) or folder / published.homes[0]
    try:
        home.mkdir(parents=True, exist_ok=True)
        for remote in published.remotes:
            if not remote.members:
                to_file(remote.url, home / remote.file, remote.md5, one.name, progress)
            elif not _whole(published, home, remote.members):
                archive = folder / remote.file
                to_file(remote.url, archive, remote.md5, one.name, progress)
                _unpack(published, archive, home, remote.members)
                archive.unlink()
    except OSError as error:
        raise FedekdError(
            f"cannot write in {folder} ({error.strerror or error}); make room, or name another folder with --data DIR"
        ) from None
    return published.place(home)


def _whole(published: Published, home: Path, members: Mapping[str, str | None]) -> bool:
    """Whether the members are all there: by their checksums, or where those are not known by reading them."""
    if None not in members.values():
        return all(_md5(home / member) == md5 for member, md5 in members.items())
    try:
        published.load_home(home)
    except FedekdError:
        return False
    return True


def _md5(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _unpack(published: Published, archive: Path, home: Path, members: Mapping[str, str | None]) -> None:
    """Take the wanted members out beside their place, check them there, and only then move them in."""
    staging = home.with_name(f"{home.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        for path, file in _opened(archive):
            kept = _kept(path, members)
            if kept is not None:
                (staging / kept).parent.mkdir(parents=True, exist_ok=True)
                with (staging / kept).open("wb") as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
        for member, md5 in members.items():
            if md5 is not None and _md5(staging / member) != md5:
                raise FedekdError(f"{member} is missing or has the wrong checksum")
        published.load_home(staging)
        for source in [path for path in staging.rglob("*") if path.is_file()]:
            place = home / source.relative_to(staging)
            place.parent.mkdir(parents=True, exist_ok=True)
            source.replace(place)
    except (FedekdError, tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        archive.unlink()
        raise FedekdError(f"{archive.name} is not the right archive ({error}); it was deleted") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _opened(archive: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    with packed.open(info) as file:
                        yield PurePosixPath(info.filename), file
    else:
        with tarfile.open(archive) as tape:
            for member in tape:
                stream = tape.extractfile(member) if member.isfile() else None
                if stream is not None:
                    yield PurePosixPath(member.name), stream


def _kept(path: PurePosixPath, members: Mapping[str, str | None]) -> str | None:
    """Where a member goes, below the dataset's folder: built of known names, so no archive can write elsewhere."""
    if path.name in members:
        return path.name
    if f"{path.parent.name}/" in members and not path.name.startswith("."):
        return f"{path.parent.name}/{path.name}"
    return None
