"""Datasets read from the files their publishers hand out. Only the train split is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fedekd.data import formats
from fedekd.data.registry import register_dataset
from fedekd.dataset import Dataset
from fedekd.errors import FedekdError


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


@dataclass(frozen=True)
class Published:
    """A published dataset: its files, on the web and under the data folder, how to read them, what they must hold."""

    name: str
    title: str
    task: str
    shape: tuple[int, int, int]
    train: tuple[int, ...]
    """Training images: in the edition the benchmark is defined on, then in others that are about."""
    classes: int
    homes: tuple[str, ...]
    """Folders to look in: fedekd's own layout first, then one other tool's."""
    files: tuple[str, ...]
    read: Callable[[Path], formats.Arrays]
    publisher: str
    remotes: tuple[Remote, ...]
    preset: Mapping[str, Any]
    """Rounds, epochs, batch size and learning rate."""
    labels: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    note: str = ""

    def find(self, folder: Path) -> Path | None:
        """The first home in which every file is there and not empty."""
        for home in self.homes:
            paths = [folder / home / file for file in self.files]
            if all(path.is_file() and path.stat().st_size for path in paths):
                return folder / home
        return None

    def place(self, home: Path) -> Path:
        """What to show of a home: the folder, or the file where there is but one."""
        return home if len(self.files) > 1 else home / self.files[0]

    def located(self, folder: Path) -> Path | None:
        home = self.find(folder)
        return home and self.place(home)

    def load(self, folder: Path) -> Dataset:
        home = self.find(folder)
        if home is None:
            raise FedekdError(
                f"{self.title} is not in {folder} (looked for {self._wanted(folder)}); run `fedekd data fetch "
                f"{self.name}`, or name the folder that holds it with --data DIR or FEDEKD_DATA"
            )
        return self.load_home(home)

    def load_home(self, home: Path) -> Dataset:
        where = home / self.files[0]
        try:
            x, y = self.read(home)
            self._check(where, x, y)
        except formats.BadFile as error:
            raise FedekdError(f"{error}; fetch it again with `fedekd data fetch {self.name}`") from None
        edition = "" if len(x) == self.train[0] else f", another edition: {len(x):,} images, not {self.train[0]:,}"
        return Dataset(
            name=self.name,
            task=self.task,
            x=x,
            y=y,
            outputs=self.classes if self.task == "classification" else 1,
            labels=self.labels,
            source=f"{self.publisher}, train split{edition}",
        )

    def _wanted(self, folder: Path) -> str:
        """The first file that is lacking from the home that comes nearest."""
        lacking = [[file for file in self.files if not (folder / home / file).is_file()] for home in self.homes]
        nearest = min(range(len(lacking)), key=lambda index: len(lacking[index]))
        return str(Path(self.homes[nearest]) / (lacking[nearest] or list(self.files))[0])

    def _check(self, where: Path, x: np.ndarray, y: np.ndarray) -> None:
        if x.shape[1:] != self.shape:
            raise formats.BadFile(where, f"images are {_shape(x.shape[1:])}, {self.title}'s are {_shape(self.shape)}")
        if len(x) not in self.train:
            raise formats.BadFile(
                where, f"{len(x):,} training images where {self.title} has {self.train[0]:,}: not the whole dataset"
            )
        wrong = y[~np.isin(y, np.arange(self.classes))]
        if len(wrong):
            raise formats.BadFile(where, f"label {wrong[0]} is not one of 0..{self.classes - 1}")


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in shape)


def register_published(one: Published) -> None:
    """Make a published dataset known by its name: all that fedekd says of it, or does with it, comes from here."""
    register_dataset(
        one.name,
        one.load,
        title=one.title,
        task=one.task,
        samples=one.train[0],
        shape=_shape(one.shape),
        aliases=one.aliases,
        note=one.note,
        preset=one.preset,
        find=one.located,
        published=one,
    )
