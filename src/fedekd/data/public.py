"""Public rows, which server and clients all hold: a share of the dataset's, or those of a file of the user's own.

Every method that is compared gets the same clients' rows, whether it looks at the public ones or not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedekd import rng
from fedekd.data import formats, own, pictures, tables
from fedekd.dataset import Dataset, RowNames
from fedekd.errors import FedekdError
from fedekd.files import TABLES, file_kind


@dataclass(frozen=True, eq=False)
class PublicRows:
    """A file's rows, put behind those of the dataset that they go with."""

    dataset: Dataset
    """The dataset with these rows at its end, and without sites: its own rows are to be dealt out before."""
    rows: np.ndarray
    """int64 indices into ``dataset.x``."""
    labelled: bool
    """Without labels ``y`` is 0 in these rows."""
    fingerprint: str


def as_share(public: str) -> float | None:
    """The share of public rows, where the text is a number and not the name of a file."""
    try:
        return float(public)
    except ValueError:
        return None


def find_public(
    given: str | None, dataset: Dataset, *, target: str | None = None, clients_from: str | None = None
) -> float | PublicRows | None:
    """What ``federate`` takes as ``public``, from what a user gave: a share, or the path of a file or folder."""
    if given is None:
        return None
    share = as_share(given)
    return read_public(Path(given).expanduser(), dataset, target, clients_from) if share is None else share


def set_aside(rows: int, share: float, seed: int, groups: RowNames | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The public rows and the others, each in rising order; on one seed a larger share holds all of a smaller one.

    With ``groups`` it is a share of those, with all their rows.
    """
    if groups is not None:
        shared, _ = set_aside(len(groups.names), share, seed)
        public = np.isin(groups.codes, shared)
        return np.flatnonzero(public), np.flatnonzero(~public)
    if not isinstance(share, (int, float)) or not 0 < share < 1:
        raise FedekdError(f"public is {share!r}; give a share above 0 and below 1, such as 0.1")
    count = round(share * rows)
    if not 0 < count < rows:
        raise FedekdError(f"a public share of {share:g} makes {count} of {rows} rows public; take another share")
    order = rng.stream(seed, "public").permutation(rows)
    return np.sort(order[:count]), np.sort(order[count:])


def read_public(path: Path, dataset: Dataset, target: str | None = None, clients_from: str | None = None) -> PublicRows:
    """The rows of an .npz file with ``x``, of a .csv with the dataset's columns, or of a folder of pictures.

    Labels may be there or not: ``y``, the column ``target``, or a subfolder of pictures for each class.
    """
    suffix = file_kind(path)
    if not path.exists():
        raise FedekdError(f"there is no file or folder {str(path)!r} of public rows; check the path, or give a share")
    if path.is_dir():
        x, y = _pictures(path, dataset)
    elif suffix in TABLES:
        x, y = _table(path, dataset, target, clients_from)
    elif suffix == ".npz":
        x, y = _arrays(path, dataset)
    else:
        raise FedekdError(
            f"{path} is a {suffix or 'nameless'} file; give an .npz or .csv of public rows, a folder of pictures, "
            "or a share such as 0.1"
        )
    _check(path, x, dataset)
    wanted = np.zeros(len(x), dataset.y.dtype) if y is None else _answers(path, y, dataset)
    # The checks of a dataset, with the file's name in what they say.
    alone = replace(dataset, sites=None, site_names=(), groups=None, subgroups=None, part=True)
    checked = replace(alone, name=str(path), x=_stored(path, x, dataset), y=wanted)
    digest = hashlib.sha256()
    for array in (checked.x, checked.y):
        digest.update(np.ascontiguousarray(array).data)
    joined = replace(
        dataset,
        x=np.concatenate([dataset.x, checked.x]),
        y=np.concatenate([dataset.y, checked.y]),
        sites=None,
        site_names=(),
    )
    rows = np.arange(len(dataset.y), len(joined.y), dtype=np.int64)
    return PublicRows(joined, rows, y is not None, digest.hexdigest()[:16])


# --- the three kinds of files ----------------------------------------------------------------------------

Rows = tuple[np.ndarray, np.ndarray | None]


def _arrays(path: Path, dataset: Dataset) -> Rows:
    try:
        keys = formats.npz_keys(path)
        x, y = formats.read_npz(path, ("x",))["x"] if "x" in keys and "y" not in keys else None, None
    except formats.BadFile as error:
        raise FedekdError(f"{error}; save it again with numpy.savez({path.name!r}, x=..)") from None
    if x is None:
        raw = own.read_arrays(path)
        x, y = raw.x, raw.y
    return x if x.shape[1:] == dataset.x.shape[1:] else own.inputs(path, x)[0], y


def _table(path: Path, dataset: Dataset, target: str | None, clients_from: str | None) -> Rows:
    texts = own.Whole(dataset.columns, dataset.labels).texts(target)
    no_inputs = (clients_from, dataset.groups.column if dataset.groups else None)
    x, y, names = tables.read_loose_table(path, target, no_inputs, texts, dataset.reading, dataset.columns)
    return _in_order(path, x, names, dataset) if dataset.columns else x, y


def _in_order(path: Path, x: np.ndarray, names: tuple[str, ...], dataset: Dataset) -> np.ndarray:
    """The columns as the dataset has them; a text that no row holds is a column of zeros."""
    place, known = {name: k for k, name in enumerate(names)}, set(dataset.columns)
    here, there = ({name.partition("=")[0] for name in some} for some in (names, dataset.columns))
    for name in names:
        column, _, text = name.partition("=")
        if name not in known and column in there:
            raise FedekdError(f"{path}: column {column!r} holds {text!r}, which dataset {dataset.name!r} does not know")
        if name not in known:
            raise FedekdError(f"{path} has a column {column!r}, which dataset {dataset.name!r} lacks; remove it")
    ordered = np.zeros((len(x), len(dataset.columns)))
    for k, name in enumerate(dataset.columns):
        if name in place:
            ordered[:, k] = x[:, place[name]]
        elif name.partition("=")[0] not in here:
            raise FedekdError(f"{path} has no column {name.partition('=')[0]!r}, which dataset {dataset.name!r} has")
    return ordered


def _pictures(folder: Path, dataset: Dataset) -> Rows:
    loose = pictures.pictures_in(folder)
    sorted_ = any(pictures.pictures_in(sub) for sub in folder.iterdir() if sub.is_dir() and sub.name[0] != ".")
    if bool(loose) == sorted_:
        what = "pictures both beside and in subfolders" if loose else "no pictures"
        raise FedekdError(f"{folder} holds {what}; put public pictures in it, or in a subfolder for each class")
    raw = None if loose else pictures.read_folder(folder)
    x = own.channels(pictures.read_pictures(loose) if raw is None else raw.x)
    if x.shape[1] == 1 and dataset.x.ndim == 4 and dataset.x.shape[1] == 3:
        x = np.repeat(x, 3, axis=1)
    return x, None if raw is None else raw.y


# --- what they must be like ------------------------------------------------------------------------------


def _check(path: Path, x: np.ndarray, dataset: Dataset) -> None:
    if not len(x):
        raise FedekdError(f"{path} holds no rows; give it at least a few, or leave --public out")
    if x.shape[1:] != dataset.x.shape[1:]:
        raise FedekdError(
            f"{path} holds rows of shape {x.shape[1:]}, dataset {dataset.name!r} rows of shape {dataset.x.shape[1:]}; "
            "public rows must be like the dataset's"
        )


def _stored(path: Path, x: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Images in the dataset's own type and range, where that loses nothing."""
    if x.ndim != 4:
        return x
    if dataset.x.dtype != np.uint8 and x.dtype == np.uint8:
        raise FedekdError(f"{path} holds 8-bit pixels, dataset {dataset.name!r} floating point; scale them alike")
    if dataset.x.dtype == np.uint8 and x.dtype != np.uint8:
        with np.errstate(invalid="ignore"):
            pixels = x.astype(np.uint8)
        if not np.array_equal(pixels, x):
            raise FedekdError(f"{path} holds {x.dtype} pixels, dataset {dataset.name!r} 8-bit ones; save them as uint8")
        x = pixels
    if dataset.scale is not None and x.max() > dataset.scale:
        raise FedekdError(
            f"{path} holds pixels up to {x.max():g}, dataset {dataset.name!r} only up to {dataset.scale:g}; "
            "scale them alike"
        )
    return x


def _answers(path: Path, y: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Labels as the dataset numbers them: by the classes' names, or numbers where no class is named by a number."""
    if dataset.task == "regression":
        if y.dtype.kind not in "buif":
            raise FedekdError(f"{path}: the target is text ({y[0]!r}, ..), dataset {dataset.name!r} has numbers")
        return y
    classes = dataset.class_names
    values, places = np.unique(y, return_inverse=True)
    names = [f"{value:g}" if y.dtype.kind == "f" else str(value) for value in values]
    if not any(own.is_number(name) for name in classes) and y.dtype.kind in "iu":
        return y
    strange = [name for name in names if name not in classes]
    if strange:
        raise FedekdError(
            f"{path}: {strange[0]!r} is not a class of dataset {dataset.name!r} ({_some(classes)}); "
            "correct the labels, or give the rows without any"
        )
    return np.array([classes.index(name) for name in names], np.int64)[places]


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", .." if len(names) > 5 else "")
