"""What each column of a user's table becomes: numbers stay, text becomes a column for each different text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedekd.data.misread import AS_DATES, misread
from fedekd.dataset import Reading
from fedekd.errors import FedekdError, unknown

if TYPE_CHECKING:
    import pandas as pd

FEW_CLASSES = 20
MOST_CATEGORIES = 100
AGE_ON = "2025-01-01"  # inputs are standardised, so that another day would give the same numbers
DATES = {
    "year first": re.compile(r"\d{4}([-/.])\d{1,2}\1\d{1,2}([ T]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?"),
    "year last": re.compile(r"\d{1,2}([-/.])\d{1,2}\1\d{4}( \d{1,2}:\d{2}(:\d{2})?)?"),
}


@dataclass(frozen=True)
class Roles:
    """Which columns the user has named, by option."""

    target: str | None = None
    clients_from: str | None = None
    group: str | None = None
    subgroups: str | None = None

    def check(self, where: Path, columns: Sequence[str], drop: Collection[str]) -> None:
        named = {"target": self.target, "clients-from": self.clients_from, "group": self.group}
        for option, column in {**named, "subgroups": self.subgroups}.items():
            if column is not None and column not in columns:
                if column in drop:
                    raise FedekdError(f"{where}: column {column!r} is both dropped and given as --{option}; do one")
                raise unknown(f"column of {where}", column, columns)
        if self.target is None:
            raise FedekdError(f"{where}: which column is the target? Give --target, one of: {', '.join(columns)}")
        for column, what in ((self.group, "group"), (self.clients_from, "clients")):
            if self.target == column:
                raise FedekdError(f"{where}: column {column!r} cannot be both the target and the {what}; name two")

    @property
    def no_inputs(self) -> list[str]:
        return [column for column in dict.fromkeys((self.target, self.clients_from, self.group)) if column is not None]


def kind_of(column: pd.Series) -> str:
    """number, truth, date or text; true and false count as numbers, and so does a column of nothing."""
    kind = column.dtype.kind
    if kind in "iuf":
        return "number"
    if kind in "bM":
        return {"b": "truth", "M": "date"}[kind]
    known = column.dropna()
    if known.empty:
        return "number"
    if all(isinstance(value, bool) for value in known.head(50)) and all(isinstance(value, bool) for value in known):
        return "truth"
    return "date" if date_form(known) else "text"


def date_form(known: pd.Series) -> str | None:
    """How the dates in a column of text are written; None where they are not dates."""
    values = known.drop_duplicates().astype(str).str.strip()
    return next((form for form, pattern in DATES.items() if values.str.fullmatch(pattern).all()), None)


def ages(where: Path, column: pd.Series) -> np.ndarray:
    """Years from each date to ``AGE_ON``, NaN where there is none."""
    import pandas as pd

    if column.dtype.kind == "M":
        days = pd.to_datetime(column, utc=True)
    else:
        days = pd.to_datetime(_year_first(where, column), errors="coerce", utc=True, format="ISO8601")
        if (wrong := days.isna() & column.notna()).any():
            value = column[wrong].iloc[0]
            raise FedekdError(f"{where}: column {column.name!r} holds {value!r}, which is no day; correct it")
    return ((pd.Timestamp(AGE_ON, tz="UTC") - days) / pd.Timedelta(days=365.2425)).to_numpy(np.float64)


def _year_first(where: Path, column: pd.Series) -> pd.Series:
    """Dates as 2024-03-31. Of 31/3/2024 the part that is above 12 in some row is the day; with dots it comes first."""
    text = column.astype("string").str.strip()
    parts = text.str.extract(r"^(\d+)([-/.])(\d+)[-/.](\d+)(.*)$")
    if date_form(column.dropna()) == "year first":
        year, month, day = parts[0], parts[2], parts[3]
    else:
        first, second, year = parts[0], parts[2], parts[3]
        highest = [part.dropna().astype(int).max() for part in (first, second)]
        if highest[1] > 12:
            month, day = first, second
        elif highest[0] > 12 or (parts[1].dropna() == ".").all():
            day, month = first, second
        else:
            raise FedekdError(
                f"{where}: in column {column.name!r} day and month cannot be told apart; write dates as 2024-03-31"
            )
    return (
        year
        + "-"
        + month.str.zfill(2)
        + "-"
        + day.str.zfill(2)
        + parts[4].str.replace(r"^ (\d):", r" 0\1:", regex=True)
    )


def flag_name(column: str) -> str:
    return f"{column} missing"


def encoded(
    where: Path, table: pd.DataFrame, reading: Reading, flags: Collection[str] = ()
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The inputs and their names: numbers first, then a column for each text that a text column holds, then the flags.

    ``flags`` are names of flags that the whole has, even if nothing is missing here.
    """
    import pandas as pd

    kinds = {str(column): kind_of(table[column]) for column in table.columns}
    if reading.dates == "drop":
        table = table[[column for column, kind in kinds.items() if kind != "date"]]
    if table.shape[1] == 0:
        raise FedekdError(f"{where} has no column besides the target and the clients; give it features")
    columns, text = {}, []
    for column in map(str, table.columns):
        values = table[column]
        if kinds[column] == "number" or (kinds[column] == "truth" and values.dtype == bool):
            columns[column] = values
        elif kinds[column] == "truth":
            columns[column] = values.astype(np.float64)
        elif kinds[column] == "date" and reading.dates == "age":
            columns[column] = pd.Series(ages(where, values), values.index)
        else:
            columns[column] = as_text(values)
            text.append(column)
            _check_categories(where, column, values, reading)
    ready = pd.DataFrame(columns, index=table.index)
    wide = pd.get_dummies(ready, columns=text, dtype=np.float32, prefix_sep="=") if text else ready
    names, x = [str(column) for column in wide.columns], wide.to_numpy(dtype=np.float64)
    if reading.missing == "flag":
        gaps = [column for column in columns if table[column].isna().any() or flag_name(column) in flags]
        names += [flag_name(column) for column in gaps]
        x = np.concatenate([x, table[gaps].isna().to_numpy(np.float64)], axis=1)
    if (twice := repeated(names)) is not None:
        raise FedekdError(f"{where}: two inputs would be called {twice!r}; rename a column")
    return x, tuple(names)


def as_text(values: pd.Series) -> pd.Series:
    """Values as text, as they are written; missing ones stay missing."""
    if values.dtype.kind == "M":
        values = values.dt.strftime("%Y-%m-%d %H:%M:%S").str.removesuffix(" 00:00:00")
    return values.astype(object).where(values.isna(), values.astype(str))


def repeated(names: Sequence[str]) -> str | None:
    """The first name that stands there more than once."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


def _check_categories(where: Path, column: str, values: pd.Series, reading: Reading) -> None:
    count = values.nunique()
    if count > MOST_CATEGORIES:
        why = f"; --drop {column!r} leaves it out"
        if kind_of(values) == "date":
            why = f": dates; {AS_DATES}"
        elif found := misread(values.dropna(), reading):
            why = f": {found.what}; {found.remedy}"
        raise FedekdError(f"{where}: text column {column!r} has {count} different values, too many to encode{why}")


def means_classes(column: pd.Series) -> bool:
    """Whether a target stands for classes: it is text, or whole numbers with few different values."""
    return kind_of(column) != "number" or (column.dtype.kind in "iu" and column.nunique() <= FEW_CLASSES)
