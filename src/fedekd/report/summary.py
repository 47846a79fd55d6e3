"""The summary over clients and seeds on the terminal: the table, and the same in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich.console import Console
from rich.text import Text

from fedekd.report.tables import Column, print_columns
from fedekd.runs.aggregate import SummaryRow
from fedekd.runs.records import Record
from fedekd.runs.summary import direction, summary_columns
from fedekd.units import BAD, GOOD, Unit, blocks, count


def print_summary(console: Console, rows: Sequence[SummaryRow], unit: Unit) -> None:
    """``rows`` as ``aggregate`` makes them."""
    methods, *columns = (
        Column(column.header, [Text(*cell) for cell in column.cells], column.justify, whole=column.whole)
        for column in summary_columns(rows, unit)
    )
    print_columns(console, [methods], columns)


def verdict(records: Sequence[Record], row: SummaryRow, unit: Unit) -> Text:
    """One line about one method: how many it helped and harmed, and whom it harmed most."""
    several = len(records) > 1
    everyone = [(unit.harm(c["delta"]), c, r) for r in records for c in r["clients"]]
    helped, harmed = sum(h < 0 for h, *_ in everyone), row["harmed"]
    noun = "client-run" if several else "client"
    text = Text.assemble((row["label"], "bold"), f": {helped} of {count(len(everyone), noun)} helped, ")
    text.append(f"{harmed} harmed" if harmed else "none harmed", BAD if harmed else GOOD)
    if harmed:
        _, client, record = max(everyone, key=lambda item: item[0])
        where = f" of seed {record['seed']}" if several else ""
        loses = " loses" if unit.higher_is_better else f": {unit.name} up by"
        text.append(f"; worst client {client['id']}{where}{loses} {unit.amount(client['delta'])}")
    if several:
        effect = {1: "harms", -1: "helps", 0: "makes no clear difference"}[direction(row, unit)]
        text.append(f"; on average it {effect}")
    return text


def trust(records: Sequence[Record]) -> Text | None:
    """One line about how far a gated method trusted the proxy, in its first and its last round."""
    logs = [r["trust"] for r in records if r["trust"]]
    if not logs or all(entry["std"] < 1e-6 for log in logs for entry in log):
        return None
    first, last = ([log[i] for log in logs] for i in (0, -1))
    bins = [sum(column) for column in zip(*(entry["histogram"] for entry in last), strict=False)]
    means = [f"{fmean(e['mean'] for e in some):.2f} in round {some[0]['round']}" for some in (first, last)]
    return Text.assemble(
        (records[0]["label"], "bold"),
        f": mean trust {', '.join(dict.fromkeys(means))}  0|",
        (blocks(bins), "cyan"),
        "|1",
    )
