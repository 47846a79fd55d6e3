"""fedekd table: tables of the results as Markdown, LaTeX or CSV."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fedekd.commands.parser import add_choices, command


def add(commands: Any) -> None:
    table = command(commands, "table", print_tables, "print tables of the results as Markdown, LaTeX or CSV")
    table.add_argument("folder", metavar="DIR", help="the results folder of a run or a study")
    table.add_argument("--format", default="markdown", choices=["markdown", "latex", "csv"], help="(default: markdown)")
    table.add_argument("--against", choices=["paper"], help="put the FedeKD paper's number beside each cell")
    table.add_argument("--only", default="", metavar="TABLE", help="print only the table whose title contains this")
    add_choices(table)


def print_tables(given: argparse.Namespace) -> None:
    from fedekd.report.paper_tables import make_tables
    from fedekd.report.table_formats import render, select
    from fedekd.runs.results import load
    from fedekd.runs.store import read_failures

    results, failures = load(given.folder, given.chosen_by), read_failures(Path(given.folder))
    if results.left_out:
        print(results.left_out, file=sys.stderr)
    against = given.against == "paper"
    tables = make_tables(results.records, failures, against, given.folder, given.best_of)
    print(render(select(tables, given.only) if given.only else tables, given.format))
