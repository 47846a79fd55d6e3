"""The user's tables: .csv, .tsv, either of them with .gz, and .parquet, as a frame and as the rows of a dataset."""

from __future__ import annotations

import gzip
import io
import warnings
import zlib
from collections.abc import Collection, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedekd.data import columns as parts
from fedekd.data.column_report import in_short
from fedekd.data.columns import Roles
from fedekd.data.formats import MEMORY, Raw
from fedekd.dataset import Reading
from fedekd.errors import FedekdError, unknown
from fedekd.files import failed_read, file_kind, file_stem
from fedekd.units import count

if TYPE_CHECKING:
    import pandas as pd

PLAIN = Reading()
UNPACKED = 2**28  # bytes that a .gz may always grow to, ...
GROWTH = 100  # ... and how many times its own size: tables do not shrink more
DAMAGED = "save it as UTF-8 .csv with a header line"


def read_tables(
    files: Sequence[Path],
    roles: Roles,
    reading: Reading,
    *,
    as_clients: bool,
    texts: Collection[str],
) -> Raw:
    """One table out of ``files``; with ``as_clients`` each file is one client's, named by the file.

    ``texts`` are columns that hold text, whatever they look like. The target means classes when it is text, or whole
    numbers of few different values; else a regression.
    """
    where = files[0].parent if as_clients else files[0]
    table, site = joined_table(files, reading, texts)
    roles.check(where, [str(column) for column in table.columns], reading.drop)
    target, clients_from = str(roles.target), roles.clients_from
    _check_values(where, table, roles, reading)
    notes = in_short(where.name, table, roles, reading, site if as_clients else None)
    if reading.missing == "drop" and (gaps := table.isna().any(axis=1)).any():
        if gaps.all():
            raise FedekdError(
                f"{where}: a value is missing in every row, so that --missing drop leaves none; fill some"
            )
        notes.append(f"{int(gaps.sum())} of {len(table)} rows are left out, since a value is missing in them")
        table, site = table[~gaps].apply(_whole_again), site[~gaps]
    x, names = parts.encoded(where, table.drop(columns=roles.no_inputs), reading)
    group, subgroup = (None if c is None else _values(table[c]) for c in (roles.group, roles.subgroups))
    whose = site if as_clients else None if clients_from is None else _values(table[clients_from])
    task = "classification" if parts.means_classes(table[target]) else "regression"
    return Raw(x, _values(table[target]), whose, task, names, group, subgroup, tuple(notes))


def joined_table(
    files: Sequence[Path], reading: Reading, texts: Collection[str] = ()
) -> tuple[pd.DataFrame, np.ndarray]:
    """All files' rows without the columns to drop, and the name of each row's file."""
    import pandas as pd

    frames = [read_table(file, texts=texts, reading=reading) for file in files]
    every = dict.fromkeys(str(column) for frame in frames for column in frame.columns)
    for column in reading.drop:
        if column not in every:
            raise unknown(f"column of {files[0]} to drop", column, every)
    frames = [frame.drop(columns=[c for c in reading.drop if c in frame.columns]) for frame in frames]
    for file, frame in zip(files, frames, strict=True):
        _check_alike(files[0], frames[0], file, frame)
    site = np.repeat([file_stem(file) for file in files], [len(frame) for frame in frames])
    if len(frames) == 1:
        return frames[0], site
    # a column that is empty at one site takes the type that it has at the others
    frames = [frame.astype({c: object for c in frame.columns if frame[c].isna().all()}) for frame in frames]
    return pd.concat([frame[frames[0].columns] for frame in frames], ignore_index=True).infer_objects(), site


def read_loose_table(
    file: Path,
    target: str | None,
    no_inputs: Collection[str | None],
    texts: Collection[str],
    reading: Reading,
    flags: Collection[str],
) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...]]:
    """The inputs, targets and input names of a table that may lack the columns that are no inputs."""
    table = read_table(file, texts=texts, reading=reading)
    table = table.drop(columns=[column for column in reading.drop if column in table.columns])
    others = [
        column for column in dict.fromkeys((target, *no_inputs)) if column is not None and column in table.columns
    ]
    _check_values(file, table, Roles(target if target in others else None), reading)
    if reading.missing == "drop":
        table = table.dropna().apply(_whole_again)
    x, names = parts.encoded(file, table.drop(columns=others), reading, flags)
    return x, _values(table[target]) if target in others else None, names


# --- from a file to a frame ------------------------------------------------------------------------------


def read_table(file: Path, *, texts: Collection[str] | None, reading: Reading = PLAIN) -> pd.DataFrame:
    """A table with its column names stripped; values of ``texts`` (None: all) are kept as they are written."""
    parquet = file_kind(file) == ".parquet"
    frame = _read_parquet(file, texts, reading) if parquet else _read_text(file, texts, reading)
    if frame.empty:
        raise FedekdError(f"{file} holds no rows below its header line; give it at least a few")
    if frame.columns[0] == "Unnamed: 0" and [*map(str, frame.iloc[:, 0])] == [*map(str, range(len(frame)))]:
        frame = frame.iloc[:, 1:]  # the row numbers that pandas writes by default: no feature
    return frame


def _read_text(file: Path, texts: Collection[str] | None, reading: Reading) -> pd.DataFrame:
    import pandas as pd

    content = _content(file)
    heading = content.split(b"\n", 1)[0].decode("utf-8-sig", "replace")
    separator = "\t" if file_kind(file).startswith(".tsv") else max(",;\t", key=heading.count)
    form: Any = {"sep": separator, "encoding": "utf-8-sig"} | _form(reading)
    try:
        with warnings.catch_warnings():
            # Rows longer than the header: without these two, pandas would shift or drop columns in silence.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            heads = pd.read_csv(io.BytesIO(content), header=None, nrows=1, dtype=str, **form)
            _check_names(file, [str(name).strip() for row in heads.values for name in row if not pd.isna(name)])
            names = pd.read_csv(io.BytesIO(content), nrows=0, **form).columns if texts else ()
            kinds = str if texts is None else {name: str for name in names if str(name).strip() in texts}
            frame = pd.read_csv(io.BytesIO(content), dtype=kinds, **form)
    except (ValueError, OverflowError, pd.errors.ParserWarning) as error:  # pandas's parsing errors are ValueErrors
        why = str(error).strip().splitlines()
        raise FedekdError(f"{file} cannot be read as a table ({why[0] if why else error}); {DAMAGED}") from None
    return frame.rename(columns=lambda column: str(column).strip())


def _form(reading: Reading) -> dict[str, Any]:
    form: dict[str, Any] = {"skipinitialspace": True, "index_col": False, "decimal": reading.decimal}
    form["low_memory"] = False  # else one column may hold both 1 and "1"
    if reading.na_values is not None:
        form |= {"keep_default_na": False, "na_values": ["", *reading.na_values]}
    return form


def _content(file: Path) -> bytes:
    """A file's content, unpacked if it is gzipped."""
    try:
        if (size := file.stat().st_size) > MEMORY:
            raise FedekdError(f"{file} has {size / 1e9:,.0f} GB, and this machine's memory {MEMORY / 1e9:,.0f}")
        if not file_kind(file).endswith(".gz"):
            return file.read_bytes()
        most = max(UNPACKED, GROWTH * size)
        with gzip.open(file) as stream:
            content = stream.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise failed_read(
            file, error, FedekdError(f"{file} is not a whole gzip file ({error}); pack it anew")
        ) from None
    if len(content) > most:
        raise FedekdError(f"{file} unpacks to more than {most / 2**20:,.0f} MiB, far too much for a table; unpack it")
    return content


def _check_names(file: Path, names: Sequence[str]) -> None:
    if (twice := parts.repeated(names)) is not None:
        raise FedekdError(f"{file} has two columns called {twice!r}; rename one")


def _read_parquet(file: Path, texts: Collection[str] | None, reading: Reading) -> pd.DataFrame:
    import pandas as pd

    try:
        from pyarrow import parquet
    except ImportError:
        raise FedekdError(f"{file} needs pyarrow; pip install 'fedekd[parquet]', or save it as .csv") from None
    try:
        with file.open("rb") as stream:
            whole = parquet.ParquetFile(stream)
            about = whole.metadata
            groups = sum(about.row_group(k).total_byte_size for k in range(about.num_row_groups))
            size = max(about.num_rows * about.num_columns * 8, groups)
            if size > MEMORY:
                raise FedekdError(f"{file} would take {size / 1e9:,.0f} GB, and this machine has {MEMORY / 1e9:,.0f}")
            frame = whole.read().to_pandas(ignore_metadata=True)
    except FedekdError:
        raise
    except Exception as error:  # pyarrow has its own kinds, of many bases
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise failed_read(
            file, error, FedekdError(f"{file} is not a whole .parquet file ({why}); save it anew")
        ) from None
    frame = frame.drop(columns=[name for name in frame.columns if str(name).startswith("__index_level_")])
    frame.columns = [str(name).strip() for name in frame.columns]
    _check_names(file, list(frame.columns))
    made = {}
    for name in frame.columns:
        as_text = texts is None or name in texts
        column = _plain_column(file, frame[name])
        made[name] = parts.as_text(column) if as_text else _read_as(column, reading)
    return pd.DataFrame(made, index=frame.index)


def _read_as(column: pd.Series, reading: Reading) -> pd.Series:
    """A column of texts as the options for a .csv would have read it; without any it is taken for the text it is."""
    import pandas as pd

    if column.dtype.kind != "O" or (reading.na_values is None and reading.decimal == "."):
        return column
    written = io.StringIO(column.to_csv(index=False, header=["column"]))
    read = pd.read_csv(written, skip_blank_lines=False, **_form(reading))["column"]
    return pd.Series(read.to_numpy(), column.index)


def _plain_column(file: Path, column: pd.Series) -> pd.Series:
    """A column as a .csv would have given it: numbers, true and false, days, or text."""
    import pandas as pd

    kind = column.dtype.kind
    if kind == "O" or isinstance(column.dtype, pd.CategoricalDtype):
        known = column.dropna()
        if not known.empty and not all(isinstance(value, (str, bool)) for value in known):
            strange = next((value for value in known if not isinstance(value, (int, float, Decimal, np.number))), None)
            if strange is not None:
                sort = type(strange).__name__
                raise FedekdError(f"{file}: column {column.name!r} holds {sort} values; give numbers, text or dates")
            column = pd.to_numeric(column.astype(object)).astype(np.float64)
        else:
            column = column.astype(object)
    elif kind not in "biufM":
        raise FedekdError(f"{file}: column {column.name!r} is {column.dtype}; give numbers, text or dates")
    return column


# --- its values ------------------------------------------------------------------------------------------


def _values(column: pd.Series) -> np.ndarray:
    if column.dtype.kind in "iuf":
        return column.to_numpy()
    return parts.as_text(column).fillna("missing").astype(str).to_numpy(dtype=str)


def _whole_again(column: pd.Series) -> pd.Series:
    """Whole numbers as integers again, if only a missing value had made them floating point."""
    if column.dtype.kind == "f" and (column == column.round()).all() and (column.abs() < 2**53).all():
        return column.astype(np.int64)
    return column.astype(bool) if parts.kind_of(column) == "truth" else column


def _check_alike(first: Path, model: pd.DataFrame, file: Path, frame: pd.DataFrame) -> None:
    lacking, more = [c for c in model if c not in frame], [c for c in frame if c not in model]
    if lacking or more:
        what = f"has no column {lacking[0]!r}" if lacking else f"has a column {more[0]!r}"
        raise FedekdError(f"{file} {what}, unlike {first}; give all clients' files the same columns")
    for column in model:
        if frame[column].isna().all() or model[column].isna().all():
            continue
        kind, other = ("numbers" if parts.kind_of(one[column]) == "number" else "text" for one in (frame, model))
        if kind != other:
            raise FedekdError(f"column {column!r} is {kind} in {file} but {other} in {first}; make them alike")


def _check_values(where: Path, table: pd.DataFrame, roles: Roles, reading: Reading) -> None:
    """No infinite value anywhere, and no missing one where the user has not said what becomes of it."""
    infinite = table.isin([np.inf, -np.inf])
    missing = table.isna()
    if reading.missing == "drop":
        missing[:] = False
    elif reading.missing is not None:
        missing[[c for c in missing.columns if c not in roles.no_inputs]] = False
    bad = infinite | missing
    columns = [str(column) for column in table.columns[bad.any().to_numpy()]]
    if columns:
        shown = ", ".join(repr(column) for column in columns[:5]) + (", .." if len(columns) > 5 else "")
        rows, name = int(bad.any(axis=1).sum()), "column" if len(columns) == 1 else "columns"
        remedy = "fill or remove them"
        if reading.missing is None and not infinite.any(axis=None):
            inputs = set(columns).isdisjoint(map(str, roles.no_inputs))
            remedy += ", or give --missing mean, flag or drop" if inputs else ", or give --missing drop"
        raise FedekdError(f"{where}: missing or infinite values in {count(rows, 'row')}, in {name} {shown}; {remedy}")
