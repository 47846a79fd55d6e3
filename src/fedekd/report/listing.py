"""What there is to choose from: the methods and the datasets. Imports neither torch nor pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedekd.report.tables import Column, print_columns

if TYPE_CHECKING:
    from fedekd.data import Entry
    from fedekd.methods import Method


def print_methods(
    console: Console, methods: Mapping[str, Method], groups: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Each method with what it does and its parameters; below it its variants with what they change."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, method in methods.items():
        if name != method.name:
            continue
        base = _values(method)
        grid.add_row(Text(name, "bold"), _description(method))
        if base:
            grid.add_row("", _parameters(base))
        for variant, other in methods.items():
            if other.name == name and variant != name:
                changed = {key: value for key, value in _values(other).items() if value != base[key]}
                grid.add_row(Text(f"  {variant}"), _parameters(changed))
    for name, members in (groups or {}).items():
        grid.add_row(Text(name, "bold"), Text(f"short for {', '.join(members)}", "dim"))
    console.print(grid)
    console.print()
    console.print(Text("fedekd run --methods NAME,NAME --set NAME.PARAMETER=VALUE", "dim"))


def _description(method: Method) -> Text:
    what = (type(method).__doc__ or "").strip().split("\n")[0]
    return Text(what if len(method.tasks) > 1 else f"{what} ({method.tasks[0]} only)")


def _values(method: Method) -> dict[str, Any]:
    return {field.name: getattr(method, field.name) for field in fields(method)}


def _parameters(values: Mapping[str, Any]) -> Text:
    return Text("  ".join(f"{name}={value}" for name, value in values.items()), "cyan")


def print_datasets(console: Console, entries: Sequence[Entry], folder: Path) -> None:
    """What is here, and for the rest how to get it."""
    columns = [
        Column("task", [e.task for e in entries], "left"),
        Column("samples", [f"{e.samples:,}" if e.samples else "" for e in entries]),
        Column("shape", [e.shape for e in entries]),
        Column("here", [Text("yes", "green") if e.present else Text("no", "dim") for e in entries], "left"),
        Column("note", [e.note for e in entries], "left", "dim", widest=24),
    ]
    print_columns(console, [Column("name", [e.name for e in entries], "left")], columns)
    console.print(Text(f"published datasets are looked for in {folder} (--data DIR or $FEDEKD_DATA)"), soft_wrap=True)
    missing = [e.name for e in entries if not e.present]
    if missing:
        console.print(Text(f"to get one that is not here: fedekd data fetch {missing[0]}"))
