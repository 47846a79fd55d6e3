"""A result on the terminal: clients, summary, verdicts, and where the files lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fedekd.report.clients import print_clients
from fedekd.report.summary import print_summary, trust, verdict
from fedekd.runs.aggregate import aggregate, grouped
from fedekd.runs.records import Record
from fedekd.runs.results import RunResults
from fedekd.runs.summary import legend, title
from fedekd.units import Unit, count


def print_result(
    console: Console, result: RunResults, folder: str | Path | None = None, show_clients: bool = False
) -> None:
    """Everything about a result; with several seeds the clients only on demand, since each seed splits anew."""
    for records in grouped(result.records, "dataset", "alpha"):
        _print_one(console, records, show_clients)
    if folder is not None:
        where = Path(folder) / "results.jsonl"
        _say(console, Text(f"results of {count(len(result.records), 'run')} in {where}"))


def _print_one(console: Console, records: Sequence[Record], show_clients: bool) -> None:
    unit = Unit.of(records)
    seeds = grouped(records, "seed")
    console.print()
    _say(console, Text.assemble((records[0]["dataset"], "bold"), f", {title(records, unit)}"))
    console.print()
    if len(seeds) == 1 or show_clients:
        for on_seed in seeds:
            if len(seeds) > 1:
                _say(console, Text(f"seed {on_seed[0]['seed']}", "bold"))
            print_clients(console, on_seed, unit)
    rows = aggregate(records)
    print_summary(console, rows, unit)
    by_label = {group[0]["label"]: group for group in grouped(records, "label")}
    compared = [row for row in rows if row["method"] != "local"]
    lines = [verdict(by_label[row["label"]], row, unit) for row in compared]
    lines += [line for row in compared if (line := trust(by_label[row["label"]]))]
    for line in lines:
        _say(console, line)
    _say(console, Text(legend(unit, len(seeds) > 1), "dim"))
    console.print()


def _say(console: Console, line: Text) -> None:
    """A line of prose: folded at words on a terminal, left whole in a file."""
    console.print(line, soft_wrap=not console.is_terminal)
