"""The user's .csv files: a target column, numeric columns as they are, text columns one-hot encoded."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedekd.data.formats import Raw
from fedekd.errors import FedekdError, unknown

if TYPE_CHECKING:
    import pandas as pd

FEW_CLASSES = 20
MOST_CATEGORIES = 100


def read_tables(
    files: Sequence[Path],
    target: str | None,
    clients_from: str | None,
    *,
    as_clients: bool,
    texts: Collection[str] = (),
    group: str | None = None,
    subgroups: str | None = None,
) -> Raw:
    """One table out of ``files``; with ``as_clients`` each file is one client's, named by the file.

    ``texts`` are columns that hold text, whatever they look like. The column ``group`` is no input; ``subgroups`` is.
    The target means classes when it is text, or whole numbers of few different values; else a regression.
    """
    import pandas as pd

    frames = [read_table(file, texts=texts) for file in files]
    for file, frame in zip(files, frames, strict=True):
        _check_alike(files[0], frames[0], file, frame)
    table = pd.concat([frame[frames[0].columns] for frame in frames], ignore_index=True)
    where = files[0].parent if as_clients else files[0]
    columns = [str(column) for column in table.columns]
    if target is None:
        raise FedekdError(f"{where}: which column is the target? Give --target, one of: {', '.join(columns)}")
    for column in (target, clients_from, group, subgroups):
        if column is not None and column not in columns:
            raise unknown(f"column of {where}", column, columns)
    if target == group:
        raise FedekdError(f"{where}: column {target!r} cannot be both the target and the group; name two")
    if target == clients_from:
        raise FedekdError(f"{where}: column {target!r} cannot be both the target and the clients; name two")
    _check_whole(where, table)
    wanted = table[target]
    site = np.repeat([file.stem for file in files], [len(frame) for frame in frames]) if as_clients else None
    if clients_from is not None:
        site = _values(table[clients_from])
    x, names = _features(where, table.drop(columns=list({target, clients_from, group} - {None})))
    classes = not _is_numeric(wanted) or (wanted.dtype.kind in "iu" and wanted.nunique() <= FEW_CLASSES)
    named = [None if column is None else _values(table[column]) for column in (group, subgroups)]
    return Raw(x, _values(wanted), site, "classification" if classes else "regression", names, *named)


def read_loose_table(
    file: Path, target: str | None, no_inputs: Collection[str | None], texts: Collection[str]
) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...]]:
    """The inputs, targets and names of the inputs of a table that may lack those that are no inputs."""
    table = read_table(file, texts=texts)
    _check_whole(file, table)
    others = [column for column in dict.fromkeys((target, *no_inputs)) if column in table.columns]
    x, names = _features(file, table.drop(columns=others))
    return x, _values(table[target]) if target in others else None, names


def read_table(file: Path, *, texts: Collection[str] | None = ()) -> pd.DataFrame:
    """A .csv file with its column names stripped; values of ``texts`` (None: all) are kept as they are written."""
    import pandas as pd

    try:
        with file.open(encoding="utf-8-sig", errors="replace") as lines:
            heading = lines.readline()
        separator = max(",;\t", key=heading.count)
        with warnings.catch_warnings():
            # Rows longer than the header: without these two, pandas would shift or drop columns in silence.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            form: Any = {"sep": separator, "skipinitialspace": True, "encoding": "utf-8-sig", "index_col": False}
            names = pd.read_csv(file, nrows=0, **form).columns if texts else ()
            kinds = str if texts is None else {name: str for name in names if str(name).strip() in texts}
            frame = pd.read_csv(file, dtype=kinds, **form)
    except (OSError, ValueError, pd.errors.ParserWarning) as error:  # pandas's parsing errors are ValueErrors
        why = str(error).strip().splitlines()
        raise FedekdError(
            f"{file} cannot be read as a table ({why[0] if why else error}); save it as UTF-8 .csv with a header line"
        ) from None
    if frame.empty:
        raise FedekdError(f"{file} holds no rows below its header line; give it at least a few")
    if frame.columns[0] == "Unnamed: 0" and [*map(str, frame.iloc[:, 0])] == [*map(str, range(len(frame)))]:
        frame = frame.iloc[:, 1:]  # the row numbers that pandas writes by default: no feature
    return frame.rename(columns=lambda column: str(column).strip())


def _is_numeric(column: pd.Series) -> bool:
    return column.dtype.kind in "iuf"


def _values(column: pd.Series) -> np.ndarray:
    return column.to_numpy() if _is_numeric(column) else column.astype(str).to_numpy(dtype=str)


def _check_alike(first: Path, model: pd.DataFrame, file: Path, frame: pd.DataFrame) -> None:
    lacking, more = [c for c in model if c not in frame], [c for c in frame if c not in model]
    if lacking or more:
        what = f"has no column {lacking[0]!r}" if lacking else f"has a column {more[0]!r}"
        raise FedekdError(f"{file} {what}, unlike {first}; give all clients' files the same columns")
    for column in model:
        if _is_numeric(frame[column]) != _is_numeric(model[column]):
            kind, other = ("numbers", "text") if _is_numeric(frame[column]) else ("text", "numbers")
            raise FedekdError(f"column {column!r} is {kind} in {file} but {other} in {first}; make them alike")


def _check_whole(where: Path, table: pd.DataFrame) -> None:
    """No missing and no infinite value anywhere: what to put in their place is the user's to say."""
    bad = table.isna() | table.isin([np.inf, -np.inf])
    columns = [str(column) for column in table.columns[bad.any().to_numpy()]]
    if columns:
        shown = ", ".join(repr(column) for column in columns[:5]) + (", .." if len(columns) > 5 else "")
        rows = int(bad.any(axis=1).sum())
        raise FedekdError(f"{where}: missing or infinite values in {rows} rows, in column {shown}; fill or remove them")


def _features(where: Path, table: pd.DataFrame) -> tuple[np.ndarray, tuple[str, ...]]:
    """The inputs and their names: numbers first, then a column for each text that a text column holds."""
    import pandas as pd

    if table.shape[1] == 0:
        raise FedekdError(f"{where} has no column besides the target and the clients; give it features")
    text = [str(column) for column in table.columns if not (_is_numeric(table[column]) or table[column].dtype == bool)]
    for column in text:
        count = table[column].nunique()
        if count > MOST_CATEGORIES:
            raise FedekdError(
                f"{where}: text column {column!r} has {count} different values, too many to encode; remove the column"
            )
    encoded = pd.get_dummies(table, columns=text, dtype=np.float32, prefix_sep="=") if text else table
    return encoded.to_numpy(dtype=np.float64), tuple(str(column) for column in encoded.columns)
