"""What a user's file would become, on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from fedekd.report.tables import Column, print_columns

if TYPE_CHECKING:
    from fedekd.data.inspection import Inspection


def print_inspection(console: Console, found: Inspection) -> None:
    console.print(Text(found.title, "bold"), soft_wrap=True)
    if found.columns:
        becomes = Column("becomes", [one.becomes for one in found.columns], "left")
        why = Column("why", [one.why for one in found.columns], "left", "dim")
        print_columns(console, [Column("column", [one.name for one in found.columns], "left")], [becomes, why])
    lines = [*found.warnings, *(f"{one.name}: {text}" for one in found.columns for text in one.warnings)]
    for line in lines:
        console.print(Text.assemble(("warning: ", "yellow"), line), soft_wrap=True)
    if found.refused:
        console.print(Text.assemble(("a run would refuse it: ", "red"), found.refused), soft_wrap=True)
    else:
        console.print(Text(found.accepted, "green"), soft_wrap=True)
