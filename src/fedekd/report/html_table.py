"""A result's summary as HTML, for notebooks. Whatever a name holds, it is text and never markup."""

from __future__ import annotations

from html import escape

from rich.text import Text

from fedekd import metrics
from fedekd.report.summary import summary_columns
from fedekd.report.tables import Cell, Column
from fedekd.report.terminal import grouped, legend, title
from fedekd.runs.results import RunResults
from fedekd.units import BAD, GOOD, Unit

COLOURS = {GOOD: "#1a7f37", BAD: "#d1242f"}  # readable on white and on black; the sign says the same


def result_as_html(result: RunResults) -> str:
    """A table for each dataset and alpha, as the terminal prints it."""
    return "".join(_one(list(records)) for records in grouped(result.records, "dataset", "alpha")) or "no results"


def _one(records: list[dict]) -> str:
    unit = Unit.of(records)
    columns = summary_columns(metrics.aggregate(records), unit)
    heads = "".join(f'<th scope="col" style="text-align: {c.justify}">{escape(c.header)}</th>' for c in columns)
    rows = "".join(
        f"<tr>{''.join(map(_cell, columns, row))}</tr>" for row in zip(*(c.cells for c in columns), strict=True)
    )
    several = len({record["seed"] for record in records}) > 1
    return (
        f'<table><caption style="text-align: left; white-space: nowrap">{escape(str(title(records, unit)))}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        f"<small>{escape(legend(unit, several))}</small>"
    )


def _cell(column: Column, cell: Cell) -> str:
    colour = COLOURS.get(str(cell.style)) if isinstance(cell, Text) else None
    style = f"text-align: {column.justify}; white-space: nowrap" + (f"; color: {colour}" if colour else "")
    return f'<td style="{style}">{escape(str(cell))}</td>'
