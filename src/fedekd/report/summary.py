"""The summary over clients and seeds on the terminal: the table, and what each method did in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich.console import Console
from rich.text import Text

from fedekd.report.clients import COLOURS
from fedekd.report.tables import Column, print_columns
from fedekd.runs.aggregate import SummaryRow
from fedekd.runs.records import Record
from fedekd.runs.summary import summary_columns
from fedekd.runs.transfer import MethodTransfer
from fedekd.runs.verdict_text import counts, parts_told, told, who
from fedekd.units import Unit, blocks

ENOUGH_SEEDS = 5  # of fewer, the interval is so wide that zero within it says little


def print_summary(console: Console, rows: Sequence[SummaryRow], analysed: Sequence[MethodTransfer], unit: Unit) -> None:
    """``rows`` as ``aggregate`` makes them, ``analysed`` as ``analyse`` does."""
    methods, *columns = (
        Column(column.header, [Text(*cell) for cell in column.cells], column.justify, whole=column.whole)
        for column in summary_columns(rows, analysed, unit)
    )
    print_columns(console, [methods], columns)


def verdict(method: MethodTransfer, unit: Unit) -> Text:
    """One line about one method: who is in which state, or by sign alone where the records hold no test rows."""
    text = Text.assemble((method.label, "bold"), ": ")
    if not method.states:
        text.append(told(method))
    for k, (state, words) in enumerate(counts(method.states, who(method)).items() if method.states else ()):
        text.append(", " if k else "").append(words, COLOURS.get(state, ""))
    if len(method.seeds) > 1:
        text.append(f"; {_average(method, unit)}")
    return text


def _average(method: MethodTransfer, unit: Unit) -> str:
    if direction := unit.direction(method.summary["gain"]["interval"]):
        return f"on average it {'helps' if direction > 0 else 'harms'}"
    seeds = len(method.seeds)
    if seeds < ENOUGH_SEEDS:
        return f"{seeds} seeds are too few to tell whether it helps on average"
    return "on average it makes no clear difference"


def parts(method: MethodTransfer, unit: Unit) -> Text:
    """Δ taken apart into recipe and federation, and the gain over the best alone, as means over clients."""
    known = {}
    for part, name in parts_told(method).items():
        low_high = method.interval(part)
        sure = f" [{' to '.join(unit.delta(x) for x in low_high)}]" if low_high else ""
        known[part] = f"{name} {unit.delta(method.summary[part]['mean'])}{sure}"
    within = ", ".join(known[part] for part in ("recipe", "federation") if part in known)
    gain = f", {known['gain']}" if "gain" in known else ""
    return Text(f"  mean over clients: {known['delta']}{f' ({within})' if within else ''}{gain}")


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
