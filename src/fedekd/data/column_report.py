"""What each column of a table becomes, why, and what about it is likely to be a mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedekd.data.columns import MOST_CATEGORIES, Roles, flag_name, kind_of, means_classes
from fedekd.data.misread import AS_DATES, misread
from fedekd.dataset import Reading

if TYPE_CHECKING:
    import pandas as pd

ENOUGH = 20  # rows below which nothing is said about how values are spread
LOOKED_AT = 50_000  # rows that are compared with the target
SHOWN = 5
IDENTIFIER = re.compile(r"(^|[\W_])(id|ids|mrn|uuid|guid|pid|patient|record|case|nr|no|number|key|ssn)($|[\W_])", re.I)
CAMEL = re.compile(r"[a-z](ID|Id|Nr|No)$")
WORDS = {"number": "numbers", "truth": "true and false", "date": "dates", "text": "text"}
STAND_INS = (-9, -99, -999, -9999, 99, 999, 9999, 99999)


@dataclass(frozen=True)
class ColumnReport:
    name: str
    becomes: str
    why: str
    inputs: int = 0
    warnings: tuple[str, ...] = ()


def report(
    table: pd.DataFrame, roles: Roles, reading: Reading, site: np.ndarray | None = None
) -> tuple[list[ColumnReport], list[str]]:
    """A report on each column, and warnings about the table as a whole."""
    columns = [_column(table, str(name), roles, reading) for name in table.columns]
    columns += [ColumnReport(name, "left out", "named by --drop") for name in reading.drop]
    return columns, list(_of_the_whole(table, roles, site))


def in_short(name: str, table: pd.DataFrame, roles: Roles, reading: Reading, site: np.ndarray | None) -> list[str]:
    """The same report in a few lines, for the notes of a run."""
    columns, whole = report(table, roles, reading, site)
    by_kind = {"number": 0, "truth": 0, "date": 0, "text": 0}
    inputs = [one for one in columns if one.inputs]
    for one in inputs:
        by_kind[kind_of(table[one.name])] += 1
    kinds = [f"{count} of {WORDS[kind]}" for kind, count in by_kind.items() if count]
    first = f"{name}: {len(table):,} rows; {sum(one.inputs for one in inputs)} inputs from {len(inputs)} columns"
    lines = [*whole, *(f"{one.name}: {text}" for one in columns for text in one.warnings)]
    more = [f"and {len(lines) - SHOWN} more warnings; see fedekd data inspect"] if len(lines) > SHOWN else []
    return [f"{first} ({', '.join(kinds)})", *(f"warning: {line}" for line in [*lines[:SHOWN], *more])]


def _column(table: pd.DataFrame, name: str, roles: Roles, reading: Reading) -> ColumnReport:
    column = table[name]
    kind, known = kind_of(column), column.dropna()
    why = _why(kind, known)
    if name == roles.target:
        classes = means_classes(column)
        becomes = f"the target: {known.nunique()} classes" if classes else "the target: a number to predict"
        return ColumnReport(name, becomes, why, 0, tuple(_target_warnings(column, classes)))
    if name == roles.clients_from:
        return ColumnReport(name, f"the client of each row: {known.nunique()} clients", why)
    if name == roles.group:
        return ColumnReport(name, f"rows that belong together: {known.nunique()} groups", why)
    warnings = [*_suspicious(name, kind, column, known, reading, roles), *_tells(table, name, kind, roles)]
    if kind == "date" and reading.dates == "drop":
        return ColumnReport(name, "left out", f"{why}; --dates drop")
    inputs, becomes = 1, "a number"
    if kind == "date" and reading.dates == "age":
        becomes = "a number: years until 2025"
    elif kind in ("date", "text"):
        inputs = max(1, int(known.nunique()))
        becomes = f"{inputs} columns of 0 and 1" if inputs > 1 else "a column of 0 and 1"
    if reading.missing == "flag" and len(known) < len(column):
        inputs, becomes = inputs + 1, f"{becomes}, and {flag_name(name)!r}"
    return ColumnReport(name, becomes, why, inputs, tuple(warnings))


def _why(kind: str, known: pd.Series) -> str:
    if known.empty:
        return "nothing in it"
    if kind == "number":
        return f"numbers, {known.min():g} to {known.max():g}"
    if kind == "truth":
        return "true and false"
    texts = sorted(map(str, known.unique()))
    shown = ", ".join(text[:20] for text in texts[:3]) + (", .." if len(texts) > 3 else "")
    return f"{'dates' if kind == 'date' else 'text'}: {shown}"


def _target_warnings(column: pd.Series, classes: bool) -> Iterator[str]:
    known = column.dropna()
    if not classes and known.nunique() <= SHOWN and (known == known.round()).all():
        yield f"only {known.nunique()} different numbers: if they are classes, give --task classification"
    if classes and kind_of(column) == "date":
        yield "dates as classes; name another target?"
    if len(known) < len(column):
        yield f"missing in {len(column) - len(known)} rows; --missing drop leaves those rows out"


def _suspicious(
    name: str, kind: str, column: pd.Series, known: pd.Series, reading: Reading, roles: Roles
) -> Iterator[str]:
    """Warnings about one input whose values look like something other than what they are taken for."""
    rows, gaps, different = len(column), len(column) - len(known), int(known.nunique())
    if gaps > 0.9 * rows:
        yield f"almost all values are missing ({gaps} of {rows}); --drop {name}?"
    elif gaps and reading.missing is None:
        yield f"{gaps} of {rows} values are missing; --missing mean, flag or drop says what becomes of them"
    if different == 1:
        yield f"the same in every row{' that has it' if gaps else ''}; --drop {name}?"
    if kind == "date" and reading.dates == "text":
        yield f"dates, taken as text: a column for each day; {AS_DATES}"
    if kind == "text":
        yield from _suspicious_text(name, known, reading)
    elif kind == "number" and rows >= ENOUGH:
        yield from _suspicious_numbers(known)
    if kind != "number" or known.dtype.kind in "iu":
        yield from _identifier(name, kind, known, roles)


def _suspicious_text(name: str, known: pd.Series, reading: Reading) -> Iterator[str]:
    texts = known.astype(str).str.strip()
    different = texts.drop_duplicates()
    if found := misread(known, reading):
        yield f"{found.what}, {found.taken}; {found.remedy}"
    elif len(different) > MOST_CATEGORIES:
        yield f"more than {MOST_CATEGORIES} different texts: refused as an input; --drop {name}"
    alike = texts.str.casefold().nunique()
    if known.astype(str).nunique() > alike:
        yield f"texts that differ only in blanks or capital letters count as different ({alike} without that)"


def _suspicious_numbers(known: pd.Series) -> Iterator[str]:
    values = known.to_numpy(np.float64)
    values = np.unique(values[np.isfinite(values)])
    if len(values) > 3:
        spread = {values[0]: (values[1] - values[0], values[-1] - values[1]),
                  values[-1]: (values[-1] - values[-2], values[-2] - values[0])}  # fmt: skip
        for value, (gap, rest) in spread.items():
            if value in STAND_INS and gap > rest:
                yield f"does {value:g} mean that nothing was measured? --na-values {value:g} with --missing"
    if known.dtype.kind in "iu" and len(values) and values[0] >= 19000101 and values[-1] <= 21001231:
        month, day = values // 100 % 100, values % 100
        if ((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all():
            yield "dates written as 20240331, taken as numbers; write them as 2024-03-31"


def _identifier(name: str, kind: str, known: pd.Series, roles: Roles) -> Iterator[str]:
    rows, different = len(known), int(known.nunique())
    if rows < ENOUGH or kind in ("date", "truth"):
        return
    named = bool(IDENTIFIER.search(name) or CAMEL.search(name)) and different > max(ENOUGH, rows / 10)
    counted = kind == "number" and different == rows and bool(known.is_monotonic_increasing)
    written = kind == "text" and different > ENOUGH and different >= rows / 2 and different <= MOST_CATEGORIES
    if not (named or counted or written):
        return
    if different < rows and roles.group is None:
        yield f"looks like an identifier: --group {name} if it names a patient of several rows, else --drop {name}"
    else:
        yield f"looks like an identifier, from which a model learns nothing; --drop {name}"


def _tells(table: pd.DataFrame, name: str, kind: str, roles: Roles) -> Iterator[str]:
    """Whether a column alone tells the target of every row."""
    import pandas as pd

    target = roles.target
    if target is None or target not in table.columns or len(table) < ENOUGH:
        return
    both = table[[name, target]].head(LOOKED_AT).dropna()
    column, wanted = both[name], both[target]
    if len(both) < ENOUGH or wanted.nunique() < 2 or column.nunique() < 2:
        return
    if not means_classes(table[target]):
        if kind == "number" and _alike(column.to_numpy(np.float64), wanted.to_numpy(np.float64)):
            yield f"is the target {target!r} in another unit, or nearly; is it known when a prediction is made?"
        return
    classes, codes = pd.factorize(wanted)[0], pd.factorize(column)[0]
    few = column.nunique() <= len(both) / 3
    if few and pd.Series(classes).groupby(codes).nunique().max() == 1:
        yield f"tells the target {target!r} in every row; is it known when a prediction is made?"
    elif kind == "number" and not few:
        changes = np.count_nonzero(np.diff(classes[np.argsort(column.to_numpy(), kind="stable")]))
        if changes == wanted.nunique() - 1:
            yield f"tells the target {target!r} in every row; is it known when a prediction is made?"


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two columns are the same but for their unit."""
    with np.errstate(all="ignore"):
        return bool(abs(np.corrcoef(one, other)[0, 1]) > 0.9999)


def _of_the_whole(table: pd.DataFrame, roles: Roles, site: np.ndarray | None) -> Iterator[str]:
    import pandas as pd

    names = [str(name) for name in table.columns]
    if all(re.fullmatch(r"[+-]?\d*[.,]?\d+(\.\d+)?", name) for name in names):
        yield "the header line holds numbers only: is it a row? Then write a header line above it"
    target, clients = roles.target, roles.clients_from
    whose = table[clients] if clients in names else None if site is None else pd.Series(site, table.index)
    several = whose is not None and target in names and whose.nunique() > 1 and means_classes(table[target])
    if several and pd.Series(table[target]).groupby(np.asarray(whose)).nunique().max() == 1:
        yield "each client has rows of one class only: the client tells the class, and none can learn it alone"
    inputs = table.drop(columns=[c for c in roles.no_inputs if c in names])
    measured = any(inputs[c].dtype.kind == "f" for c in inputs.columns)
    if measured and (copies := int(table.duplicated().sum())) >= 0.01 * len(table):
        yield f"{copies} rows are copies of others, so the same row may be in training and test rows"
