"""Downloading the published datasets from their publishers: checked, resumable, never half there."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from fedekd.data.download import to_file
from fedekd.data.registry import data_folder, recipe
from fedekd.errors import FedekdError

if TYPE_CHECKING:
    from fedekd.data.published import Published

FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
ZENODO = "https://zenodo.org/records/"


@dataclass(frozen=True)
class Remote:
    """A file to download, with the md5 its publisher states; of an archive, also the members to keep."""

    url: str
    md5: str | None
    members: Mapping[str, str | None] = field(default_factory=dict)
    """Member (a path's end, or a folder's name with /) and its md5."""

    @property
    def file(self) -> str:
        return PurePosixPath(self.url.partition("?")[0]).name


REMOTES: dict[str, tuple[Remote, ...]] = {
    "fashionmnist": (
        Remote(FASHION + "train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Remote(FASHION + "train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        Remote(FASHION + "t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        Remote(FASHION + "t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "cifar10": (
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            {
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            },
        ),
    ),
    "octmnist": (Remote(ZENODO + "10519652/files/octmnist.npz?download=1", "c68d92d5b585d8d81f7112f81e2d0842"),),
    "organamnist": (Remote(ZENODO + "10519652/files/organamnist.npz?download=1", "68e3f8846a6bd62f0c9bf841c0d9eacc"),),
    "retinamnist": (Remote(ZENODO + "10519652/files/retinamnist.npz?download=1", "bd4c0672f1bba3e3a89f0e4e876791e4"),),
    # The publisher's record lists this archive's md5, which is not known here. What stands in for it: the archive's
    # own checksums of its members, and reading the whole train split before the files get their names.
    "dr_regular": (
        Remote(
            ZENODO + "7884735/files/dr_regular.zip?download=1",
            None,
            {"images.hdf5": None, "info.yaml": None, "splits/": None, "original_splits/": None, "task_labels/": None},
        ),
    ),
}


def fetch(name: str, data_dir: str | Path | None = None, progress: bool = True) -> Path:
    """Download a published dataset unless it is there and whole; the folder or file it lies in."""
    from fedekd.data.published import PAPER

    one = recipe(name)
    if one.name not in REMOTES:
        raise FedekdError(f"dataset {one.name!r} is not a download: there is nothing to fetch; use it as it is")
    published = next(each for each in PAPER if each.name == one.name)
    folder = data_folder(data_dir)
    home = published.find(folder) or folder / published.homes[0]
    try:
        home.mkdir(parents=True, exist_ok=True)
        for remote in REMOTES[one.name]:
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
                raise FedekdError(f"{member} is lacking or has the wrong checksum")
        published.load_home(staging)
        for source in [path for path in staging.rglob("*") if path.is_file()]:
            place = home / source.relative_to(staging)
            place.parent.mkdir(parents=True, exist_ok=True)
            source.replace(place)
    except (FedekdError, tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        archive.unlink()
        raise FedekdError(f"{archive.name} is not the archive it should be ({error}); it was removed") from None
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
