"""Rows to predict from the user's files, checked against what the model was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedekd.data import formats, pictures
from fedekd.data.columns import ages, flag_name, kind_of
from fedekd.data.own import channels
from fedekd.data.tables import read_table
from fedekd.dataset import as_float32
from fedekd.errors import FedekdError, unknown
from fedekd.files import TABLES, file_kind
from fedekd.runs.metadata import ModelMetadata

if TYPE_CHECKING:
    import pandas as pd

TRUTH = {"true": "1", "false": "0"}  # as training reads them


@dataclass(frozen=True)
class InputRows:
    """Raw rows in the model's shape, what each is called, and the columns that the model has no use for."""

    x: np.ndarray
    names: list[str]
    ignored: tuple[str, ...] = ()


def read_inputs(path: Path, metadata: ModelMetadata, named_by: str | None = None) -> InputRows:
    """The rows of a .csv or .npz file, of a picture, or of a folder of pictures; those of a table ``named_by`` a column
    of it, else by their numbers."""
    if not path.exists():
        raise FedekdError(
            f"there is no file or folder {str(path)!r}; give a .csv, an .npz, a picture or a folder of them"
        )
    suffix = file_kind(path)
    if named_by is not None and (path.is_dir() or suffix not in TABLES):
        raise FedekdError(f"{path} is no table, so that no column names its rows: leave out --id")
    if path.is_dir() or suffix in pictures.PICTURES:
        found = _pictures(path, metadata)
    elif suffix in TABLES:
        found = _table(path, metadata, named_by)
    elif suffix == ".npz":
        found = _arrays(path, metadata)
    else:
        raise FedekdError(
            f"{path} is a {suffix or 'nameless'} file; give a .csv, an .npz, a picture or a folder of them"
        )
    _check(path, found.x, metadata)
    return found


def _check(path: Path, x: np.ndarray, metadata: ModelMetadata) -> None:
    if x.shape[1:] != metadata.shape:
        raise FedekdError(f"{path} holds rows of shape {x.shape[1:]}; the model was trained on {metadata.shape}")
    if not len(x):
        raise FedekdError(f"{path} holds no rows; give it at least one")
    bad = int((~np.isfinite(x)).reshape(len(x), -1).any(1).sum())
    if bad:
        raise FedekdError(f"{path}: missing or infinite values in {bad} of {len(x)} rows; fill or remove them")
    if metadata.top is None:
        return
    low, high = float(x.min()), float(x.max())
    if low < 0 or high > metadata.top * 1.001 or (x.dtype.kind == "f" and high <= 1 < metadata.top):
        raise FedekdError(f"{path} holds pixels of {low:g}..{high:g}; the model was trained on 0..{metadata.top:g}")


# Tables


def _table(path: Path, metadata: ModelMetadata, named_by: str | None) -> InputRows:
    """Columns are found by name, in any order; text is encoded as it was in training."""
    if len(metadata.shape) != 1:
        raise FedekdError(f"{path} is a table, but the model was trained on pictures of shape {metadata.shape}")
    frame = read_table(path, texts=None, reading=metadata.reading)
    if named_by is not None and named_by not in frame.columns:
        raise unknown(f"column of {path}", named_by, frame.columns)
    names = [str(row + 1) for row in range(len(frame))] if named_by is None else [*frame[named_by].fillna("")]
    as_they_stand = tuple(column for column in frame.columns if column != named_by)
    columns = metadata.columns or as_they_stand  # of a model trained without names
    text = {column: _categories(column, columns) for column in frame.columns if column not in columns}
    text = {column: known for column, known in text.items() if known}
    flags = {} if metadata.fill is None else {flag_name(c): c for c in frame.columns if flag_name(c) in columns}
    known = {*frame.columns, *flags}
    lacking = [c for c in columns if c not in known and not any(c.startswith(f"{t}=") for t in text)]
    if lacking:
        raise FedekdError(f"{path} has no column {_source(lacking[0])!r}, which the model was trained on; add it")
    x = np.empty((len(frame), len(columns)))
    for place, column in enumerate(columns):
        if column in frame.columns:
            x[:, place] = _numbers(path, frame[column], metadata)
        elif column in flags:
            x[:, place] = frame[flags[column]].isna()
    for column, places in text.items():
        values = _texts(path, frame[column], places, metadata.fill is not None)
        for value, place in places.items():
            x[:, place] = values == value
    ignored = tuple(column for column in frame.columns if column not in columns and column not in text)
    return InputRows(_filled(as_float32(x), metadata), names, ignored)


def _filled(x: np.ndarray, metadata: ModelMetadata) -> np.ndarray:
    """With what training had in the place of missing values, where it had any."""
    if metadata.fill is None or x.shape[1:] != metadata.shape:
        return x
    return np.where(np.isnan(x), metadata.fill, x)


def _categories(column: str, columns: tuple[str, ...]) -> dict[str, int]:
    """The texts that training found in a column, and the place of each among the model's inputs."""
    head = f"{column}="
    return {name.removeprefix(head): place for place, name in enumerate(columns) if name.startswith(head)}


def _source(column: str) -> str:
    return column.partition("=")[0]


def _numbers(path: Path, column: pd.Series, metadata: ModelMetadata) -> np.ndarray:
    import pandas as pd

    if metadata.reading.dates == "age" and kind_of(column) == "date":
        numbers = ages(path, column)
    else:
        plain = column.map(lambda value: TRUTH.get(str(value).lower(), value))
        if metadata.reading.decimal == ",":
            plain = plain.astype(object).map(lambda value: value.replace(",", ".") if isinstance(value, str) else value)
        numbers = pd.to_numeric(plain, errors="coerce").to_numpy(np.float64)
    gaps = column.isna().to_numpy() & (metadata.fill is not None)
    wrong = np.flatnonzero(np.isnan(numbers) & ~gaps)
    if len(wrong):
        value = column.iloc[wrong[0]]
        what = "nothing" if pd.isna(value) else repr(value)
        raise FedekdError(
            f"{path}: column {column.name!r} holds {what} in row {wrong[0] + 1}; training had numbers there: "
            "correct it, or leave the row out"
        )
    return numbers


def _texts(path: Path, column: pd.Series, known: dict[str, int], gaps: bool) -> np.ndarray:
    values = column.astype(object).to_numpy()
    for row, value in enumerate(values):
        if value not in known and (isinstance(value, str) or not gaps):
            what = repr(value) if isinstance(value, str) else "nothing"
            names = ", ".join(sorted(known))
            raise FedekdError(
                f"{path}: column {column.name!r} holds {what} in row {row + 1}; training knew {names}: correct it, "
                "or leave the row out"
            )
    return values


# Arrays and pictures


def _arrays(path: Path, metadata: ModelMetadata) -> InputRows:
    try:
        x = formats.read_npz(path, ("x",))["x"]
    except formats.BadFile as error:
        raise FedekdError(f"{error}; save it again with numpy.savez({path.name!r}, x=..)") from None
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "buif":
        raise FedekdError(f"{path}: x is {x.dtype} of shape {x.shape}; give it as for training")
    x = channels(x) if x.ndim > 2 else x
    x = x if x.dtype == np.uint8 else _filled(as_float32(x), metadata)
    return InputRows(x, [str(row + 1) for row in range(len(x))])


def _pictures(path: Path, metadata: ModelMetadata) -> InputRows:
    if len(metadata.shape) != 3:
        raise FedekdError(f"{path} holds pictures, but the model was trained on rows of shape {metadata.shape}")
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() in pictures.PICTURES)
    if not files:
        raise FedekdError(f"{path} holds no pictures; the model was trained on pictures of shape {metadata.shape}")
    rows = [_picture(file, metadata) for file in files]
    names = [str(file.relative_to(path)) if path.is_dir() else file.name for file in files]
    return InputRows(np.stack(rows), names)


def _picture(file: Path, metadata: ModelMetadata) -> np.ndarray:
    image = pictures.read_picture(file)
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, axis=2) if metadata.shape[0] == 3 else image[..., None]
    image = image.transpose(2, 0, 1)
    if image.shape != metadata.shape:
        kinds = [
            f"{width}x{height} in {'colour' if depth == 3 else 'grey'}"
            for depth, height, width in (image.shape, metadata.shape)
        ]
        raise FedekdError(f"{file} is {kinds[0]}; the model was trained on {kinds[1]}")
    return image
