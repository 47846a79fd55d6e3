"""A result on the terminal: clients, summary, verdicts, and where the files lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fedekd.report.clients import LINES, print_clients, print_verdicts
from fedekd.report.summary import parts, print_summary, trust, verdict
from fedekd.runs.aggregate import aggregate, grouped, in_order
from fedekd.runs.choosing import chooses_rounds
from fedekd.runs.records import Record
from fedekd.runs.results import RunResults
from fedekd.runs.subgroups import by_subgroup
from fedekd.runs.summary import legend, title
from fedekd.runs.transfer import MethodTransfer, analyse
from fedekd.runs.verdict_text import JOIN, STAY, advice_by_client, caveats, decided
from fedekd.units import GOOD, Unit, count

FLOOR = "floor: the same answer for every row, the commonest class or the mean of the training rows"


def print_result(
    console: Console, result: RunResults, folder: str | Path | None = None, show_clients: bool = False
) -> None:
    """Everything about a result; with several seeds the clients only on demand, since each seed splits anew."""
    for records in grouped(in_order(result.records), "dataset", "alpha"):
        _print_one(console, records, result.folder, show_clients)
    if folder is not None:
        where = Path(folder) / "results.jsonl"
        _say(console, Text(f"results of {count(len(result.records), 'run')} in {where}"))


def _print_one(console: Console, records: Sequence[Record], folder: Path | None, show_clients: bool) -> None:
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
    analysed, rows = analyse(records, folder), aggregate(records, folder)
    print_summary(console, rows, analysed, unit)
    tables = False
    for method in analysed:
        _say(console, verdict(method, unit))
        _say(console, parts(method, unit), 4)
        if method.states and (method.one_split or show_clients):
            tables = True
            console.print()
            print_verdicts(console, method, unit)
    if not tables:
        console.print()
    for subgroups in by_subgroup(records, folder):
        for row in subgroups.text().splitlines():
            _say(console, Text(row, "bold" if row == subgroups.told else ""))
        console.print()
    by_label = {group[0]["label"]: group for group in grouped(records, "label")}
    for method in analysed:
        if line := trust(by_label[method.label]):
            _say(console, line)
    floors = any(client.get("floor") is not None for record in records for client in record["clients"])
    shown = [FLOOR] if floors and (len(seeds) == 1 or show_clients) else []
    for note in (legend(unit, rows, chooses_rounds(records[0])), *shown, *caveats(analysed, unit)):
        _say(console, Text(note, "dim"), 2)
    console.print()
    _print_advice(console, analysed, unit)


def _print_advice(console: Console, analysed: Sequence[MethodTransfer], unit: Unit) -> None:
    """Join, stay alone or undecided: a line for each client, or their number where every seed has others."""
    advice = advice_by_client(analysed, unit)
    if not advice:
        return
    one_split = all(method.one_split for method in analysed)
    number = count(len(advice), "client" if one_split else "client-run")
    _say(console, Text.assemble(("should a client join?", "bold"), f" of {number}: {decided(advice.values())}"), 2)
    for (client, _), (decision, reason) in advice.items() if one_split and len(advice) <= LINES else ():
        style = {JOIN: GOOD, STAY: "bold"}.get(decision, "")
        _say(console, Text.assemble(f"  {client}: ", (decision, style), f": {reason}"), 4)
    console.print()


def _say(console: Console, line: Text, hang: int = 0) -> None:
    """A line of prose: folded at words on a terminal, further lines indented by ``hang``; left whole in a file."""
    if not console.is_terminal:
        console.print(line, soft_wrap=True)
        return
    first, *others = line.wrap(console, console.width - hang) or [line]
    for part in (first, *(Text(" " * hang) + other for other in others)):
        console.print(part)
