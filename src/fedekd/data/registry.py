"""The datasets known by name: the ones that come with fedekd and the ones a user registers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedekd.dataset import TASKS, Dataset, Reading
from fedekd.errors import FedekdError, unknown
from fedekd.files import DATA_FILES, file_kind
from fedekd.objects import import_object

if TYPE_CHECKING:
    from fedekd.data.own import Whole
    from fedekd.data.published import Published

Loader = Callable[[Path], Dataset]
PRESET = ("rounds", "epochs", "batch_size", "lr")  # what a preset may set


@dataclass(frozen=True)
class Recipe:
    """How to load one named dataset, and what to say of it without loading it."""

    name: str
    title: str
    task: str
    samples: int
    shape: str
    load: Loader
    find: Callable[[Path], Path | None] | None
    note: str
    preset: Mapping[str, Any]
    published: Published | None


@dataclass(frozen=True)
class Entry:
    """One line of ``fedekd data list``."""

    name: str
    task: str
    present: bool
    samples: int
    shape: str
    note: str


_RECIPES: dict[str, Recipe] = {}
_NAMES: dict[str, str] = {}


def register_dataset(
    name: str,
    loader: Loader,
    *,
    title: str = "",
    task: str = "classification",
    samples: int = 0,
    shape: str = "",
    aliases: Iterable[str] = (),
    note: str = "",
    preset: Mapping[str, Any] | None = None,
    find: Callable[[Path], Path | None] | None = None,
    published: Published | None = None,
    replace: bool = False,
) -> None:
    """Make a dataset known by ``name``.

    ``loader`` is given the data folder and returns a ``Dataset``. ``title`` and ``aliases`` are other names for it.
    ``preset`` holds the rounds, epochs, batch size and lr of a run that is given none. ``task``, ``samples``, ``shape``
    and ``note`` are for ``fedekd data list``, as is ``find``, which is given the data folder and returns where the
    files are, or None when there are none. ``published`` is what ``fedekd data fetch`` downloads. With ``replace`` the
    name may be registered already.
    """
    keys = (name, title or name, *aliases)
    for key in keys:
        owner = _NAMES.get(_plain(key))
        if not _plain(key) or (owner and not (replace and owner == name)):
            taken = f"already names {owner!r}; choose another" if owner else "has no letter or digit in it"
            raise FedekdError(f"cannot register dataset {name!r}: the name {key!r} {taken}")
    for key in preset or {}:
        if key not in PRESET:
            raise unknown(f"setting in the preset of dataset {name!r}", key, PRESET)
    _RECIPES[name] = Recipe(name, title or name, task, samples, shape, loader, find, note, preset or {}, published)
    _NAMES.update({_plain(key): name for key in keys})


def recipe(name: str) -> Recipe:
    """What is registered under ``name``, however it is spelt: "CIFAR-10" and "cifar_10" are "cifar10"."""
    if _plain(name) not in _NAMES:
        raise unknown("dataset", name, _RECIPES)
    return _RECIPES[_NAMES[_plain(name)]]


def is_named(name: str) -> bool:
    """Whether this names a registered dataset, and no file or loader of the user's."""
    return not _is_path(name) and _plain(name) in _NAMES


def canonical(name: str) -> str:
    """A name in the registry's spelling; of one that is not registered, its letters and digits."""
    return _NAMES.get(_plain(name), _plain(name))


def preset(name: str) -> Mapping[str, Any]:
    """The preset that a dataset was registered with; nothing for one that has none, or for a user's own file."""
    found = _RECIPES.get(canonical(name))
    return found.preset if found else {}


def catalogue(data_dir: str | Path | None = None) -> list[Entry]:
    """Every named dataset and whether its files are there. Looks at names and sizes only."""
    folder = data_folder(data_dir)
    return [
        Entry(one.name, one.task, not one.find or one.find(folder) is not None, one.samples, one.shape, one.note)
        for one in _RECIPES.values()
    ]


def load_dataset(
    name: str | Path,
    *,
    data_dir: str | Path | None = None,
    target: str | None = None,
    task: str | None = None,
    clients_from: str | None = None,
    part_of: Whole | None = None,
    group: str | None = None,
    subgroups: str | None = None,
    reading: Reading | None = None,
) -> Dataset:
    """A dataset by its name, by the path of the user's own file or folder, or by ``package.module:loader``.

    ``data_dir`` is the folder of the published ones, by default that of ``fedekd data fetch``. Of the user's own,
    ``target`` is the column of a table to predict, and ``task`` is classification or regression, where the data does
    not tell. ``clients_from`` names the column (table) or array (npz) with the client of each row, ``group`` the one
    that says which rows belong together, ``subgroups``, of any dataset, the one that results are shown by. ``reading``
    is how a table is read. ``part_of``: the file holds one site's rows of a larger whole, whose columns and labels are
    known.
    """
    if task is not None and task not in TASKS:
        raise unknown("task", task, TASKS)
    text = str(name)
    if _is_path(text):
        from fedekd.data.own import load_own

        given = {"target": target, "task": task, "clients_from": clients_from, "group": group, "subgroups": subgroups}
        return load_own(Path(text).expanduser(), part_of=part_of, reading=reading or Reading(), **given)
    loader = _imported(text) if ":" in text else recipe(text).load
    own = {"target": target, "clients-from": clients_from, "group": group, **(reading or Reading()).changes()}
    for option, value in own.items():
        if value is not None:
            option, shown = option.replace("_", "-"), ",".join(value) if isinstance(value, tuple) else value
            raise FedekdError(f"--{option} {shown!r} is for your own files; dataset {text!r} needs none: leave it out")
    dataset = loader(data_folder(data_dir))
    if not isinstance(dataset, Dataset):
        raise FedekdError(f"{text!r} gives {type(dataset).__name__}, not a Dataset; see fedekd.data.Dataset")
    if task not in (None, dataset.task):
        raise FedekdError(f"dataset {text!r} is a {dataset.task}, not a {task}; leave --task out")
    if subgroups is not None:
        from fedekd.data.own import from_columns

        return replace(dataset, subgroups=from_columns(dataset, subgroups))
    return dataset


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The folder datasets lie in: the given one, else $FEDEKD_DATA, else fedekd's folder in the user's cache."""
    given = data_dir or os.environ.get("FEDEKD_DATA")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedekd"


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _is_path(text: str) -> bool:
    """A registered name wins over a file or folder that happens to be called the same; ./name means the file."""
    path = Path(text).expanduser()
    spelt_as_path = os.sep in text or "/" in text or file_kind(path) in DATA_FILES
    return spelt_as_path or (_plain(text) not in _NAMES and path.exists())


def _imported(path: str) -> Loader:
    loader: Loader = import_object(path, "dataset")
    if not callable(loader):
        raise FedekdError(f"{path!r} is not a function that takes the data folder and returns a Dataset")
    return loader
