"""One table for each dataset, alpha and method of which parameters were varied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from fedekd.report.study_records import Book, Column
from fedekd.report.table_formats import Cell, Row, Table

VARIED = re.compile(r"(?P<method>.+) \((?P<changes>.+=.+)\)")


def sweep_tables(book: Book) -> list[Table]:
    tables = []
    for task in ("classification", "regression"):
        for column in book.columns(task):
            labels = [label for label, where in book.by if where == column]
            for method in dict.fromkeys(m["method"] for label in labels if (m := VARIED.fullmatch(label))):
                tables.append(_table(book, method, column, labels))
    return tables


def _table(book: Book, method: str, column: Column, labels: list[str]) -> Table:
    dataset, alpha = book.heads([column])[0]
    rows = [
        Row(heads, label, _cells(book, method, label, column)) for heads, label in ordered(book, method, column, labels)
    ]
    columns = ("Avg Δ", f"minus {method} as it is", "minus Local", "mean trust, last round")
    name = f"sweep_{column[0]}" + (f"_{column[1]:g}" if column[1] is not None else "") + f"_{method}"
    notes = ("mean±std over seeds, or the mean of the differences by seed with its 95 % interval",)
    title = f"{method} with other parameters, {dataset} {alpha}"
    return Table(name, title, ("parameter", "value"), tuple(("", c) for c in columns), tuple(rows), notes)


def ordered(book: Book, method: str, column: Column, labels: list[str]) -> Iterator[tuple[tuple[str, str], str]]:
    """Row heads and label, parameter by parameter in order of its values, among them the one it has by itself."""
    groups: dict[tuple[str, ...], list[tuple[tuple[Any, ...], str]]] = {}
    for label in labels:
        found = VARIED.fullmatch(label)
        if found and found["method"] == method:
            changes = dict(part.split("=", 1) for part in found["changes"].split(", "))
            groups.setdefault(tuple(changes), []).append((tuple(map(_value, changes.values())), label))
    plain = book.runs(method, column)
    for parameters, variants in groups.items():
        usual = dict[str, Any](plain[0]["params"]) if plain else {}
        if len(parameters) == 1 and parameters[0] in usual:
            variants.append(((_value(usual[parameters[0]]),), method))
        for values, label in sorted(variants, key=lambda v: [(isinstance(x, str), x) for x in v[0]]):
            yield (", ".join(parameters), ", ".join(f"{v:g}" if isinstance(v, float) else v for v in values)), label


def _value(text: Any) -> float | str:
    try:
        return float(text)
    except (ValueError, TypeError):
        return str(text)


def _cells(book: Book, method: str, label: str, column: Column) -> tuple[Cell, ...]:
    trust = [run["trust"][-1]["mean"] for run in book.runs(label, column) if run["trust"]]
    return (
        book.mean(label, column, "avg_delta"),
        Cell() if label == method else book.difference(label, method, column),
        book.difference(label, "local", column),
        Cell(fmean(trust), seeds=len(trust)) if trust else Cell(),
    )
