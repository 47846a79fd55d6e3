"""The user's own data: one file or folder in, a ``Dataset`` out.

- ``.npz`` with arrays ``x`` and ``y``, or a MedMNIST file (its train split). ``x`` is images [N, H, W] or
  [N, H, W, C] (or [N, C, H, W] when C is 1 or 3 and W is not), 8-bit or floating point, or a table [N, D].
  Integer or text ``y`` means classification, floating point regression. An array ``client`` names each row's site.
- ``.csv``, ``.tsv``, either with ``.gz``, or ``.parquet``, with a target column; see ``tables``.
- a folder with a subfolder of pictures for each class; see ``pictures``.
- a folder of ``.npz`` files or of tables, each one client's, named by the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedekd.data import formats, pictures, tables
from fedekd.data.columns import Roles
from fedekd.data.formats import Raw
from fedekd.dataset import Dataset, Reading, RowNames, as_float32
from fedekd.errors import FedekdError, unknown
from fedekd.files import DATA_FILES, TABLES, check_name, file_kind, file_stem

MOST_SUBGROUPS = 20
_OR_TABLE = ".csv, .tsv, .csv.gz or .parquet"


@dataclass(frozen=True)
class Whole:
    """What is known of the whole that a file is one site's part of; the part may lack classes and categories."""

    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    def texts(self, target: str | None) -> set[str]:
        """Columns of a .csv that hold text in the whole, even if this site's all look like numbers."""
        found = {column.partition("=")[0] for column in self.columns if "=" in column} - set(self.columns)
        if target is not None and not all(is_number(label) or label in ("True", "False") for label in self.labels):
            found.add(target)
        return found


def load_own(
    path: Path,
    *,
    target: str | None = None,
    task: str | None = None,
    clients_from: str | None = None,
    part_of: Whole | None = None,
    group: str | None = None,
    subgroups: str | None = None,
    reading: Reading = tables.PLAIN,
) -> Dataset:
    """The dataset in the user's file or folder; ``task`` overrides what the targets suggest."""
    named = {"group": group, "subgroups": subgroups}
    files, kind = find_files(path)
    if path.is_dir() and files and clients_from is not None:
        raise FedekdError(f"each file in {path} is one client already; leave --clients-from {clients_from!r} out")
    if kind not in TABLES:
        for option, value in {"target": target, **reading.changes()}.items():
            if value is not None and not (kind == ".npz" and option == "missing"):
                raise FedekdError(
                    f"--{option.replace('_', '-')} {_shown(value)} is for tables such as a .csv file, which {path} is "
                    "not; leave it out"
                )
    if kind in TABLES:
        texts = part_of.texts(target) if part_of else ()
        roles = Roles(target, clients_from, **named)
        raw = tables.read_tables(files, roles, reading, as_clients=path.is_dir(), texts=texts)
    elif kind == ".npz":
        raw = _joined(files, **named) if path.is_dir() else read_arrays(path, clients_from, **named)
        raw = _without_gaps(path, raw, reading)
    else:
        for option, value in {"clients-from": clients_from, **named}.items():
            if value is not None:
                raise FedekdError(f"--{option} {value!r} needs a .csv or .npz file; {path} holds pictures")
        raw = pictures.read_folder(path)
    return _named(path, _dataset(path, raw, task, part_of is not None, reading), raw, **named)


def find_files(path: Path) -> tuple[list[Path], str]:
    """The data files that a path means, and their kind; none, and "", for a folder of pictures."""
    check_name(path)
    if not path.exists():
        raise FedekdError(f"there is no file or folder {str(path)!r}; check the path, or give a dataset's name")
    if not (path.is_file() or path.is_dir()):
        raise FedekdError(f"{path} is neither a file nor a folder; give one of them")
    files = [path] if path.is_file() else _client_files(path)
    for file in files:
        check_name(file)
    kind = file_kind(files[0]) if files else ""
    if path.is_file() and kind not in DATA_FILES:
        raise FedekdError(f"{path} is a {kind or 'nameless'} file; give an .npz, {_OR_TABLE} file, or a folder")
    return files, kind


def _shown(value: object) -> str:
    return repr(",".join(value)) if isinstance(value, tuple) else repr(value)


def _without_gaps(path: Path, raw: Raw, reading: Reading) -> Raw:
    """A table of arrays with its missing values as ``reading`` says: left to be filled, or their rows gone."""
    if reading.missing == "flag":
        raise FedekdError(f"--missing flag is for tables with named columns, which {path} is not; take mean or drop")
    if reading.missing is None or raw.x.dtype.kind != "f" or raw.x.ndim != 2:
        return raw
    gaps = np.isnan(raw.x)
    if reading.missing == "mean" or not gaps.any():
        return raw
    kept = ~gaps.any(1)
    own: dict[str, Any] = {name: getattr(raw, name) for name in ("x", "y", "site", "group", "subgroup")}
    note = f"{path.name}: {int((~kept).sum())} of {len(kept)} rows are left out, since a value is missing in them"
    own = {name: value if value is None else value[kept] for name, value in own.items()}
    return replace(raw, notes=(*raw.notes, note), **own)


def _named(path: Path, dataset: Dataset, raw: Raw, group: str | None, subgroups: str | None) -> Dataset:
    if group is not None and raw.group is not None:
        dataset = replace(dataset, groups=RowNames.of(group, raw.group))
    if subgroups is not None and raw.subgroup is not None:
        dataset = replace(dataset, subgroups=few_names(path, subgroups, raw.subgroup))
    return dataset


def few_names(where: object, column: str, values: np.ndarray) -> RowNames:
    """Names that results can be shown by: of numbers with many different values, four bands of about as many rows."""
    missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    known = np.unique(values[~missing])
    if values.dtype.kind in "fiu" and len(known) > MOST_SUBGROUPS:
        band = np.searchsorted(np.quantile(values[~missing], [0.25, 0.5, 0.75]), values[~missing], "left")
        codes, names = np.zeros(len(values), np.int64), []
        for place, k in enumerate(np.unique(band)):
            own = values[~missing][band == k]
            codes[np.flatnonzero(~missing)[band == k]] = place
            names.append(f"{own.min():g} to {own.max():g}")
        codes[missing] = len(names)
        return RowNames(column, codes, (*names, *["missing"] * bool(missing.any())))
    if missing.any():
        values = np.array(["missing" if gap else f"{value:g}" for gap, value in zip(missing, values, strict=True)])
    found = RowNames.of(column, values)
    if not 1 < len(found.names) <= MOST_SUBGROUPS:
        raise FedekdError(
            f"{where}: {column!r} has {len(found.names)} different values, and subgroups are 2 to {MOST_SUBGROUPS}; "
            "name another column"
        )
    return found


def from_columns(dataset: Dataset, column: str) -> RowNames:
    """Subgroups by an input of a table: a column of numbers, or the columns that stand for its texts."""
    parts = [k for k, name in enumerate(dataset.columns) if name.startswith(f"{column}=")]
    if parts:
        chosen = dataset.x[:, parts]
        texts = np.array([dataset.columns[k].partition("=")[2] for k in parts])
        return few_names(dataset.name, column, np.where(chosen.any(1), texts[chosen.argmax(1)], "missing"))
    if column not in dataset.columns:
        raise unknown(f"column of {dataset.name}", column, {name.partition("=")[0] for name in dataset.columns})
    return few_names(dataset.name, column, dataset.x[:, dataset.columns.index(column)])


def _client_files(folder: Path) -> list[Path]:
    files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    found = {kind: [p for p in files if file_kind(p) == kind] for kind in DATA_FILES}
    kinds = [kind for kind, some in found.items() if some]
    if len(kinds) > 1:
        raise FedekdError(
            f"{folder} holds both {kinds[1]} and {kinds[0]} files; keep one kind, one file for each client"
        )
    return found[kinds[0]] if kinds else []


def read_arrays(
    path: Path, clients_from: str | None = None, group: str | None = None, subgroups: str | None = None
) -> Raw:
    """The rows of an .npz file."""
    try:
        return _npz_rows(path, clients_from, group, subgroups)
    except formats.BadFile as error:
        raise FedekdError(f"{error}; save it again with numpy.savez({path.name!r}, x=.., y=..)") from None


def _npz_rows(path: Path, clients_from: str | None, group: str | None, subgroups: str | None) -> Raw:
    keys = formats.npz_keys(path)
    for name in (group, subgroups, clients_from):
        if name is not None and name not in keys:
            raise unknown(f"array in {path}", name, keys)
    for option, name in (("--clients-from", clients_from), ("--group", group), ("--subgroups", subgroups)):
        if name in ("x", "y") and option != "--subgroups":
            what = "labels" if name == "y" else "inputs"
            raise FedekdError(f"{path}: {option} {name!r} names the {what} themselves; name another array")
        if name is not None and "x" not in keys and "train_images" in keys:
            raise FedekdError(f"{path} is a MedMNIST file, which says nothing of its rows; leave {option} out")
    if "x" not in keys and "train_images" in keys:
        return Raw(*formats.read_medmnist(path), notes=_other_parts(path, keys))
    site = clients_from or "client"
    others = [site, *(name for name in (group, subgroups) if name is not None)]
    arrays = formats.read_npz(path, ("x", "y"), dict.fromkeys(others))
    x, y = arrays["x"], arrays["y"]
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or x.ndim == 0 or len(x) != len(y):
        raise FedekdError(f"{path}: x has shape {x.shape} but y {y.shape}; give one value of y for each row of x")
    for name in others:
        if name in arrays and arrays[name].shape != y.shape:
            shape = arrays[name].shape
            raise FedekdError(f"{path}: {name!r} has shape {shape} for {len(y)} rows; give one for each row")
        if name in arrays:
            arrays[name] = _names(path, name, arrays[name], gaps=name == subgroups)
    if y.dtype.kind not in "buifSU":
        raise FedekdError(f"{path}: y is {y.dtype}; give whole numbers or text for classes, or numbers to predict")
    if y.dtype.kind in "SU":
        y = _texts(path, "y", y)
    return Raw(x, y, arrays.get(site), group=arrays.get(group or ""), subgroup=arrays.get(subgroups or ""))


def _names(path: Path, name: str, values: np.ndarray, gaps: bool) -> np.ndarray:
    """Names of rows: text or numbers, none missing unless there may be ``gaps``."""
    if values.dtype.kind not in "buifSU":
        raise FedekdError(f"{path}: {name!r} is {values.dtype}; give whole numbers or text")
    if values.dtype.kind == "f" and not gaps and not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).sum())
        raise FedekdError(f"{path}: {name!r} is missing or infinite in {bad} rows; fill or remove them")
    return _texts(path, name, values) if values.dtype.kind in "SU" else values


def _texts(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    """As text that can be written down: numpy keeps any 32 bits as a letter."""
    try:
        found = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
        np.char.encode(found, "utf-8")
    except ValueError:
        raise FedekdError(f"{path}: {name!r} holds text that is not UTF-8; write it anew") from None
    return found


def _other_parts(path: Path, keys: Sequence[str]) -> tuple[str, ...]:
    """What is not used of a MedMNIST file, in words."""
    shapes = formats.npz_shapes(path)
    rows = [f"{shapes[key][0][0]:,} {key[:-7]}" for key in ("val_images", "test_images") if shapes.get(key, ((),))[0]]
    if not rows:
        return ()
    return (
        f"{path.name} is a MedMNIST file: its {shapes['train_images'][0][0]:,} train rows are used and split anew for "
        f"each client; its {' and '.join(rows)} rows are not",
    )


def _joined(files: Sequence[Path], group: str | None, subgroups: str | None) -> Raw:
    """Several .npz files as one, each a client."""
    raws = [read_arrays(file, group=group, subgroups=subgroups) for file in files]
    for file, raw in zip(files, raws, strict=True):
        mine, first = _layout(raw), _layout(raws[0])
        if mine != first:
            raise FedekdError(f"{file} holds {mine} but {files[0]} holds {first}; make all clients' files alike")
    site = np.repeat([file.stem for file in files], [len(raw.y) for raw in raws])
    x, y = (np.concatenate([getattr(raw, name) for raw in raws]) for name in ("x", "y"))
    groups, parts = ([getattr(raw, name) for raw in raws] for name in ("group", "subgroup"))
    by_group, subgroup = (None if some[0] is None else np.concatenate(some) for some in (groups, parts))
    return Raw(x, y, site, group=by_group, subgroup=subgroup, notes=tuple(n for raw in raws for n in raw.notes))


def _layout(raw: Raw) -> str:
    kinds = {"f": "floating point", "U": "text", "S": "text"}
    kind = kinds.get(raw.y.dtype.kind, "integer")
    return f"{raw.x.dtype} rows of shape {raw.x.shape[1:]} and {kind} y"


def _dataset(path: Path, raw: Raw, task: str | None, part: bool, reading: Reading) -> Dataset:
    if not len(raw.y):
        raise FedekdError(f"{path} holds no rows; give it at least a few")
    task = task or raw.task or ("regression" if raw.y.dtype.kind == "f" else "classification")
    x, scale = inputs(path, raw.x)
    y, labels = raw.y, tuple[str, ...]()
    if task == "classification":
        y, labels = _classes(path, raw.y, part)
    elif raw.y.dtype.kind not in "buif":
        raise FedekdError(f"{path}: the target is text ({raw.y[0]!r}, ..), not numbers to predict; leave --task out")
    names, sites = np.unique(raw.site, return_inverse=True) if raw.site is not None else ((), None)
    gaps = reading.missing in ("mean", "flag") and x.ndim == 2 and bool(np.isnan(as_float32(x)).any())
    return Dataset(
        name=file_stem(path),
        task=task,
        x=x,
        y=y,
        outputs=len(labels) if task == "classification" else 1,
        labels=labels,
        scale=scale,
        sites=sites,
        site_names=tuple(str(name) for name in names),
        source=str(path),
        standardise_target=task == "regression",
        columns=raw.columns,
        part=part,
        notes=raw.notes,
        gaps=gaps,
        fill="mean" if gaps else "median",
        reading=reading,
    )


def inputs(path: Path, x: np.ndarray) -> tuple[np.ndarray, float | None]:
    """Rows in the layout of ``Dataset`` and the raw value that maps to 1."""
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "buif":
        raise FedekdError(
            f"{path}: x is {x.dtype} of shape {x.shape}; give images as [N, H, W] or [N, H, W, C], a table as [N, D]"
        )
    if x.ndim == 2:
        return x, None
    x = channels(x)
    return (x, 255.0) if x.dtype == np.uint8 else (as_float32(x), None)


def channels(x: np.ndarray) -> np.ndarray:
    """Images as [N, C, H, W]; they are taken to be so already when C is 1 or 3 and W is not."""
    return formats.channels_first(x) if x.ndim == 3 or x.shape[1] not in (1, 3) or x.shape[3] in (1, 3) else x


def _classes(path: Path, y: np.ndarray, part: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels recoded to 0..C-1 in sorted order, and their names."""
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise FedekdError(f"{path}: {int((~np.isfinite(y)).sum())} labels are missing; fill or remove those rows")
    values, labels = np.unique(y, return_inverse=True)
    if not part and len(values) > 20 and len(values) > len(y) / 5:
        raise FedekdError(
            f"{path}: the target has {len(values)} different values in {len(y)} rows, too many to be classes; "
            "name another target, or take --task regression"
        )
    return labels, tuple(f"{value:g}" if y.dtype.kind == "f" else str(value) for value in values)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
