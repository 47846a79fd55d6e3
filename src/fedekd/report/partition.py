"""A partition drawn on the terminal: how many rows of each class, or range of the target, a client holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from fedekd.report.tables import Column, print_columns
from fedekd.runs.summary import PARTITIONS
from fedekd.units import BLOCKS, count

if TYPE_CHECKING:
    from fedekd.federation import Federation


def print_partition(console: Console, federation: Federation) -> None:
    from fedekd.data.show import class_counts, class_names

    counts = class_counts(federation).tolist()
    console.print(_title(federation, sum(map(sum, counts))), soft_wrap=True)
    console.print()
    print_counts(console, federation.names, class_names(federation), counts)
    groups = "class" if federation.dataset.task == "classification" else "range of the target"
    console.print(Text(f"rows of each client by {groups}; the higher the block, the more", "dim"))


def _title(federation: Federation, rows: int) -> Text:
    how, dataset = federation.partition, federation.dataset
    kind = PARTITIONS.get(how["kind"], f"Dirichlet alpha {how['alpha']}")
    what = f", {count(rows, 'row')}, {count(len(federation.names), 'client')}, {kind}, seed {how['seed']}"
    if len(federation.public):
        what += f", {count(len(federation.public), 'public row')} besides"
    return Text.assemble((dataset.name, "bold"), what)


def print_counts(
    console: Console, clients: Sequence[str], groups: Sequence[str], counts: Sequence[Sequence[int]]
) -> None:
    """``counts`` [clients, groups] as numbers with blocks, and their sums."""
    top = max((n for row in counts for n in row), default=0)
    columns = [_column(name, [row[g] for row in counts], top) for g, name in enumerate(groups)]
    keys = [
        Column("client", [*clients, "all"], "left"),
        Column("n", [*(str(sum(row)) for row in counts), Text(str(sum(map(sum, counts))), "dim")]),
    ]
    print_columns(console, keys, columns)


def _column(name: str, held: Sequence[int], top: int) -> Column:
    digits = len(str(max(held)))
    cells = [*(_block(n, top, digits) for n in held), Text(str(sum(held)), "dim")]
    return Column(name, cells, whole=len(name) <= 12)


def _block(n: int, top: int, digits: int) -> Text:
    if not n:
        return Text("·", "dim")
    level = min(len(BLOCKS) * n // top, len(BLOCKS) - 1)
    style = "bold cyan" if level >= len(BLOCKS) // 2 else "cyan"
    return Text.assemble((BLOCKS[level], style), f"{n:>{digits}}")
