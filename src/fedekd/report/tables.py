"""Tables that stay readable on a narrow terminal: columns that do not fit go on in a further table below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2


@dataclass(frozen=True)
class Column:
    header: str
    cells: Sequence[str | Text]
    justify: Literal["left", "right"] = "right"
    style: str = ""
    widest: int = 28  # what is longer folds
    whole: bool = False  # keep the header on one line
    below: str = ""  # what the parts of a cell are, right above them

    @property
    def width(self) -> int:
        """As wide as the widest cell and the longest word of the header, which may take several lines."""
        words = [self.header] if self.whole else self.header.split(" ")
        return min(max(cell_len(str(word)) for word in [*words, self.below, *self.cells]), self.widest)


def print_columns(console: Console, keys: Sequence[Column], columns: Sequence[Column]) -> None:
    """Print the columns; each table begins with the keys, so that its rows can be read on their own."""
    room = console.width + GAP - sum(c.width + GAP for c in keys)
    for group in _fitting(columns, room):
        console.print(_table(keys, group))
        console.print()


def _fitting(columns: Sequence[Column], room: int) -> list[list[Column]]:
    """As few groups as the width allows, of about equal size."""
    groups: list[list[Column]] = [[]]
    left = room
    for column in columns:
        if groups[-1] and column.width + GAP > left:
            groups.append([])
            left = room
        groups[-1].append(column)
        left -= column.width + GAP
    even = -(-len(columns) // len(groups)) or 1
    balanced = [list(columns[i : i + even]) for i in range(0, len(columns), even)]
    fits = all(sum(c.width + GAP for c in group) <= room for group in balanced)
    return balanced if fits and len(balanced) == len(groups) else groups


def _table(keys: Sequence[Column], columns: Sequence[Column]) -> Table:
    """Rows that would hold nothing but their keys are left out."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column in (*keys, *columns):
        head = Text("\n".join(filter(None, (column.header, column.below))))
        table.add_column(head, justify=column.justify, style=column.style, width=column.width, overflow="fold")
    for row in zip(*(column.cells for column in (*keys, *columns)), strict=True):
        if not columns or any(str(cell) for cell in row[len(keys) :]):
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table
