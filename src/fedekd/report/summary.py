"""The summary over clients and seeds: a row per method, and the same in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.text import Text

from fedekd.report.tables import Cell, Column, print_columns
from fedekd.units import BAD, GOOD, SAME, Unit, blocks, count, duration, volume


def print_summary(console: Console, rows: Sequence[dict[str, Any]], unit: Unit) -> None:
    """``rows`` as ``metrics.aggregate`` makes them."""
    methods, *columns = summary_columns(rows, unit)
    print_columns(console, [methods], columns)


def summary_columns(rows: Sequence[dict[str, Any]], unit: Unit) -> list[Column]:
    """The table's columns, the methods' names first."""
    several = any(len(row["seeds"]) > 1 for row in rows)

    def value(key: str) -> list[Cell]:
        return [_spread(unit.value(r[key]["mean"]), unit, r[key]["std"], several) for r in rows]

    def delta(key: str) -> list[Cell]:
        return [_delta(r, key, unit, several) for r in rows]

    columns = [
        Column("method", [r["label"] for r in rows], "left"),
        Column("Avg Δ", delta("avg_delta"), whole=True),
    ]
    if several:
        columns.append(Column("95 % interval", [_interval(r, unit) for r in rows], whole=True))
    columns += [
        Column("Worst Δ", delta("worst_delta"), whole=True),
        Column(f"{unit.tail} Δ", delta("tail_delta"), whole=True),
        Column("harmed", ["" if _alone(r) else f"{r['harmed']}/{r['clients']}" for r in rows]),
        Column(f"mean {unit.name}", value("mean")),
        Column(f"worst {unit.name}", value("worst")),
        Column("sent", [_sent(r["bytes_up"] + r["bytes_down"]) for r in rows]),
        Column("time", [duration(r["seconds"]) for r in rows]),
    ]
    return columns


def _alone(row: dict[str, Any]) -> bool:
    return bool(row["method"] == "local")


def _spread(text: str, unit: Unit, std: float, several: bool) -> str:
    return f"{text} ± {unit.value(std)}" if several else text


def _delta(row: dict[str, Any], key: str, unit: Unit, several: bool) -> Cell:
    if _alone(row):
        return ""
    mean, std = row[key]["mean"], row[key]["std"]
    return Text(_spread(unit.delta(mean), unit, std, several), unit.style(mean))


def _interval(row: dict[str, Any], unit: Unit) -> Cell:
    interval = row["avg_delta"]["interval"]
    if _alone(row) or interval is None:
        return ""
    low, high = (unit.delta(x) for x in interval)
    return Text(f"[{low}, {high}]", {1: BAD, -1: GOOD, 0: SAME}[direction(row, unit)])


def direction(row: dict[str, Any], unit: Unit) -> int:
    """1 where the whole interval is harm, -1 where it is all help, 0 where it holds zero."""
    low, high = sorted(unit.harm(x) for x in row["avg_delta"]["interval"])
    return int(low > 0) - int(high < 0)


def _sent(nbytes: float) -> str:
    return volume(nbytes) if nbytes else ""


# In words


def verdict(records: Sequence[dict[str, Any]], row: dict[str, Any], unit: Unit) -> Text:
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


def trust(records: Sequence[dict[str, Any]]) -> Text | None:
    """One line about how far a gated method trusted the proxy, in its first and its last round."""
    logs = [r["trust"] for r in records if r.get("trust")]
    if not logs or all(entry["std"] < 1e-6 for log in logs for entry in log):
        return None
    first, last = ([log[i] for log in logs] for i in (0, -1))
    bins = [sum(column) for column in zip(*(entry["histogram"] for entry in last), strict=True)]
    means = [f"{fmean(e['mean'] for e in some):.2f} in round {some[0]['round']}" for some in (first, last)]
    return Text.assemble(
        (records[0]["label"], "bold"),
        f": mean trust {', '.join(dict.fromkeys(means))}  0|",
        (blocks(bins), "cyan"),
        "|1",
    )
