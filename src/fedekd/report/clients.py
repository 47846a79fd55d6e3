"""The tables of clients: what each has alone and with each method on one seed, and the verdict on each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from fedekd.report.tables import Column, print_columns
from fedekd.runs.alone import needs_federation
from fedekd.runs.records import Record
from fedekd.runs.transfer import MethodTransfer
from fedekd.runs.verdict_text import STATES, alone_label, interval
from fedekd.units import BAD, GOOD, Unit
from fedekd.verdicts import HARMED, HELPED, Verdict

LINES = 40  # of a table of clients at most
COLOURS = {HELPED: GOOD, HARMED: BAD}


def print_clients(console: Console, records: Sequence[Record], unit: Unit) -> None:
    """``records`` are one seed's, each of another method on the same split."""
    joined = [record for record in records if needs_federation(record)]
    shown = worst_and_best([[c["delta"] for c in record["clients"]] for record in joined or records])
    every = len(records[0]["clients"])
    if not shown:
        return _say_fewer(console, 0, every)
    records = [{**r, "clients": [r["clients"][k] for k in shown]} for r in records]
    clients = records[0]["clients"]
    keys = [
        Column("client", [str(c["id"]) for c in clients], "left"),
        Column("n train", [str(c["n_train"]) for c in clients], style="dim"),
        Column("n test", [str(c["n_test"]) for c in clients], style="dim"),
        Column("local", [unit.value(c["local"]) for c in clients]),
    ]
    if any("model" in c for c in clients):
        keys.insert(1, Column("model", [c.get("model", "") for c in clients], "left", style="dim"))
    floors = [c.get("floor") for c in clients]
    if any(floor is not None for floor in floors):
        keys.insert(-1, Column("floor", ["" if f is None else unit.value(f) for f in floors], style="dim"))
    print_columns(console, keys, [_method(record, unit) for record in records if needs_federation(record)])
    _say_fewer(console, len(shown), every)


def worst_and_best(gains: Sequence[Sequence[float]]) -> list[int]:
    """Which clients a table shows: all, or of very many those that lose and that gain most, in their own order.

    ``gains`` are by method, then by client; the one that moves a client furthest counts.
    """
    number = len(gains[0])
    if number <= LINES:
        return list(range(number))
    moved = sorted((one, k) for some in gains for k, one in enumerate(some) if math.isfinite(one) and one)
    order = [k for _, k in moved]
    ends = (list(dict.fromkeys(some))[: LINES // 2] for some in (order, order[::-1]))
    return sorted({k for end in ends for k in end})


def _say_fewer(console: Console, shown: int, every: int) -> None:
    if shown < every:
        which = f"the {shown} that lose and gain most, of {every:,}" if shown else f"none of {every:,} loses or gains"
        console.print(Text(f"{which}; all of them are in results.jsonl\n", "dim"), soft_wrap=not console.is_terminal)


def _method(record: Record, unit: Unit) -> Column:
    values = [unit.value(c["value"]) for c in record["clients"]]
    deltas = [unit.delta(c["delta"]) for c in record["clients"]]
    wide, signed = max(map(len, ("with", *values))), max(map(len, deltas))
    below, *cells = (
        f"{v.rjust(wide)}  {d.rjust(signed)}" for v, d in zip(("with", *values), ("Δ", *deltas), strict=True)
    )
    return Column(record["label"], cells, below=below)


def print_verdicts(console: Console, method: MethodTransfer, unit: Unit) -> None:
    """A line for each client, or for each client and seed where every seed splits the data anew."""
    every_one = [client for client in method.clients if client.verdict is not None]
    clients = [every_one[k] for k in worst_and_best([[client.parts["gain"] for client in every_one]])]
    if not clients:
        return _say_fewer(console, 0, len(every_one))
    keys = [Column("client", [client.client for client in clients], "left")]
    if not method.one_split:
        keys.append(Column("seed", [", ".join(map(str, client.seeds)) for client in clients]))
    judged = [client.verdict for client in clients if client.verdict is not None]
    columns = [
        Column("n test", [f"{client.n_test:,}" for client in clients], style="dim"),
        Column("alone", [unit.value(client.values[0]) for client in clients]),
        Column("with", [unit.value(client.values[1]) for client in clients]),
        Column("gain", [unit.delta(client.parts["gain"]) for client in clients]),
        Column("95 % interval", [interval(verdict, unit) for verdict in judged], whole=True),
        Column("can show", [_least(verdict, unit) for verdict in judged]),
        Column("verdict", [Text(STATES[v.state], COLOURS.get(v.state, "")) for v in judged], "left"),
    ]
    if len(method.menu) > 1 and not (method.one_split and len(every_one) <= LINES):  # else the advice names it
        columns.append(Column("best alone", [alone_label(client) for client in clients], "left"))
    print_columns(console, keys, columns)
    _say_fewer(console, len(clients), len(every_one))


def _least(verdict: Verdict, unit: Unit) -> str:
    return unit.delta(verdict.detectable).lstrip("+") if math.isfinite(verdict.detectable) else ""
