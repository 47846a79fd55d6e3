"""The table of clients on one seed: what each has alone, what it has with each method, and the difference."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from fedekd.report.tables import Column, print_columns
from fedekd.runs.records import Record
from fedekd.units import Unit


def print_clients(console: Console, records: Sequence[Record], unit: Unit) -> None:
    """``records`` are one seed's, each of another method on the same split."""
    clients = records[0]["clients"]
    keys = [
        Column("client", [str(c["id"]) for c in clients], "left"),
        Column("n train", [str(c["n_train"]) for c in clients], style="dim"),
        Column("n test", [str(c["n_test"]) for c in clients], style="dim"),
        Column("local", [unit.value(c["local"]) for c in clients]),
    ]
    compared = [record for record in records if record["method"] != "local"]
    print_columns(console, keys, [_method(record, unit) for record in compared])


def _method(record: Record, unit: Unit) -> Column:
    values = [unit.value(c["value"]) for c in record["clients"]]
    deltas = [unit.delta(c["delta"]) for c in record["clients"]]
    wide, signed = max(map(len, values)), max(map(len, deltas))
    cells = [
        Text.assemble(value.rjust(wide), "  ", (delta.rjust(signed), unit.style(c["delta"])))
        for value, delta, c in zip(values, deltas, record["clients"], strict=True)
    ]
    return Column(record["label"], cells)
