"""One table for each dataset, alpha and method of which parameters were varied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any

from fedekd.report.study_records import StudyColumn, StudyRecords
from fedekd.report.table_formats import Table, TableCell, TableRow

VARIED = re.compile(r"(?P<method>.+) \((?P<changes>.+=.+)\)")


def sweep_tables(study: StudyRecords) -> list[Table]:
    tables = []
    for task in ("classification", "regression"):
        for column in study.columns(task):
            labels = [label for label, where in study.by if where == column]
            for method in dict.fromkeys(m["method"] for label in labels if (m := VARIED.fullmatch(label))):
                table = _table(study, method, column, labels)
                if len(table.rows) > 1 or study.runs(method, column):  # one alone stands in the other tables
                    tables.append(table)
    return tables


def _table(study: StudyRecords, method: str, column: StudyColumn, labels: list[str]) -> Table:
    dataset, alpha = study.heads([column])[0]
    rows = [
        TableRow(heads, label, _cells(study, method, label, column))
        for heads, label in ordered(study, method, column, labels)
    ]
    titles = ("Avg Δ", f"minus {method} as it is", "minus Local", "mean trust, last round")
    known = [i for i in range(len(titles)) if any(row.cells[i].mean is not None for row in rows)]
    rows = [replace(row, cells=tuple(row.cells[i] for i in known)) for row in rows]
    columns = tuple(("", titles[i]) for i in known)
    name = f"sweep_{column[0]}" + (f"_{column[1]:g}" if column[1] is not None else "") + f"_{method}"
    notes = ("mean±std over seeds, or the mean of the differences by seed with its 95 % interval",)
    title = f"{method} with other parameters, {dataset} {alpha}"
    percent = study.unit(study.task[column]).percent
    return Table(name, title, ("parameter", "value"), columns, tuple(rows), notes, percent)


def ordered(
    study: StudyRecords, method: str, column: StudyColumn, labels: list[str]
) -> Iterator[tuple[tuple[str, str], str]]:
    """Row heads and label, parameter by parameter in the order of its values, the default value among them."""
    groups: dict[tuple[str, ...], list[tuple[tuple[Any, ...], str]]] = {}
    for label in labels:
        found = VARIED.fullmatch(label)
        if found and found["method"] == method:
            changes = dict(part.split("=", 1) for part in found["changes"].split(", "))
            groups.setdefault(tuple(changes), []).append((tuple(map(_value, changes.values())), label))
    plain = study.runs(method, column)
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


def _cells(study: StudyRecords, method: str, label: str, column: StudyColumn) -> tuple[TableCell, ...]:
    trust = [run["trust"][-1]["mean"] for run in study.runs(label, column) if run["trust"]]
    return (
        study.mean(label, column, "avg_delta"),
        TableCell() if label == method else study.difference(label, method, column),
        study.difference(label, "local", column),
        TableCell(fmean(trust), seeds=len(trust), scaled=False) if trust else TableCell(),
    )
