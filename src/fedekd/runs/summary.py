"""The summary over clients and seeds as a table of plain text, a row per method, and the same as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal, NamedTuple

from fedekd.runs.aggregate import SummaryRow, aggregate, grouped
from fedekd.runs.choosing import chooses_rounds
from fedekd.runs.records import Record
from fedekd.runs.transfer import MethodTransfer, analyse
from fedekd.runs.verdict_text import STATES, after, caveats
from fedekd.units import BAD, GOOD, SAME, Unit, count, duration, volume
from fedekd.verdicts import HARMED, HELPED

PARTITIONS = {"sites": "the data's own sites", "iid": "dealt out evenly"}  # without an alpha

Deltas = Literal["avg_delta", "worst_delta", "tail_delta"]


class StyledText(NamedTuple):
    text: str
    style: str = ""


@dataclass(frozen=True)
class SummaryColumn:
    header: str
    cells: Sequence[StyledText]
    justify: Literal["left", "right"] = "right"
    whole: bool = False  # keep the header on one line


def summary_columns(rows: Sequence[SummaryRow], methods: Sequence[MethodTransfer], unit: Unit) -> list[SummaryColumn]:
    """``rows`` as ``aggregate`` makes them, ``methods`` as ``analyse`` does; the methods' names come first.

    Colour is for what is clear: an interval on one side of zero, clients that are clearly helped or harmed.
    """
    several = any(len(row["seeds"]) > 1 for row in rows)

    def plain(header: str, cells: Sequence[str], justify: Literal["left", "right"] = "right") -> SummaryColumn:
        return SummaryColumn(header, [StyledText(cell) for cell in cells], justify)

    def value(header: str, key: Literal["mean", "worst"]) -> SummaryColumn:
        return plain(header, [_spread(unit.value(r[key]["mean"]), unit, r[key]["std"], several) for r in rows])

    def delta(header: str, key: Deltas) -> SummaryColumn:
        return SummaryColumn(header, [_delta(r, key, unit, several) for r in rows], whole=True)

    columns = [plain("method", [r["label"] for r in rows], "left"), delta("Avg Δ", "avg_delta")]
    if any(interval_of(row) for row in rows):
        columns.append(SummaryColumn("95 % interval", [_interval(r, unit) for r in rows], whole=True))
    return [
        *columns,
        *state_columns(rows, methods),
        delta("Worst Δ", "worst_delta"),
        delta(f"{unit.tail} Δ", "tail_delta"),
        value(f"mean {unit.name}", "mean"),
        value(f"worst {unit.name}", "worst"),
        plain("sent", [_sent(r["bytes_up"] + r["bytes_down"]) for r in rows]),
        plain("time", [duration(r["seconds"]) for r in rows]),
    ]


def state_columns(rows: Sequence[SummaryRow], methods: Sequence[MethodTransfer]) -> list[SummaryColumn]:
    """How many are clearly helped and harmed; without test rows, how many lie below alone by sign."""
    by = {method.label: method for method in methods}
    found = [by.get(row["label"]) for row in rows]
    if not any(one and one.states for one in found):
        cells = [StyledText(f"{one.by_sign:,}/{one.client_runs:,}" if one else "") for one in found]
        return [SummaryColumn("harmed, by sign alone", cells)] if methods else []
    colours = {HELPED: GOOD, HARMED: BAD}
    return [
        SummaryColumn(
            STATES[state],
            [
                StyledText(f"{one.states[state]:,}/{sum(one.states.values()):,}", colour if one.states[state] else "")
                if one and one.states
                else StyledText("")
                for one in found
            ],
        )
        for state, colour in colours.items()
    ]


def _alone(row: SummaryRow) -> bool:
    return bool(row["method"] == "local")


def _spread(text: str, unit: Unit, std: float, several: bool) -> str:
    return f"{text} ± {unit.value(std)}" if several else text


def _delta(row: SummaryRow, key: Deltas, unit: Unit, several: bool) -> StyledText:
    if _alone(row):
        return StyledText("")
    mean, std = row[key]["mean"], row[key]["std"]
    return StyledText(_spread(unit.delta(mean), unit, std, several))


def _interval(row: SummaryRow, unit: Unit) -> StyledText:
    interval = interval_of(row)
    if _alone(row) or interval is None:
        return StyledText("")
    low, high = (unit.delta(x) for x in interval)
    return StyledText(f"{low} to {high}", {1: GOOD, -1: BAD, 0: SAME}[unit.direction(row["avg_delta"]["interval"])])


def interval_of(row: SummaryRow) -> tuple[float, float] | None:
    """The interval of Avg Δ: over seeds, or over the test rows of a single one."""
    return row["avg_delta"]["interval"] or row["avg_delta"]["over_rows"]


def _sent(nbytes: float) -> str:
    return volume(nbytes) if nbytes else ""


def title(records: Sequence[Record], unit: Unit) -> str:
    """What follows the dataset's name above the table."""
    first, params, kind = records[0], records[0]["params"], records[0]["partition"]["kind"]
    seeds = list(dict.fromkeys(r["seed"] for r in records))
    parts = [
        f"alpha {first['alpha']:g}" if first["alpha"] is not None else PARTITIONS.get(kind, kind),
        count(len(first["clients"]), "client"),
        f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds",
        *([f"{first['partition']['folds']} folds"] if "folds" in first["partition"] else []),
        f"{count(params['rounds'], 'round')} of {count(params['epochs'], 'epoch')}",
        unit.titled if unit.higher_is_better else f"{unit.titled} (lower is better)",
    ]
    return ", ".join(parts)


NEGATIVE = "negative is better (also for gain)"


def legend(unit: Unit, rows: Sequence[SummaryRow], choose_rounds: bool) -> str:
    """``rows`` are those of the table."""
    sign = f"{'in points, ' if unit.percent else ''}{'positive is better' if unit.higher_is_better else NEGATIVE}"
    spread = ""
    if any(len(row["seeds"]) > 1 for row in rows):
        spread = "; ± is the deviation over seeds, the interval is paired by seed"
    elif any(interval_of(row) for row in rows):
        spread = "; the interval is over test rows: it is about these trained models, not about the method"
    return f"Δ: with the method minus Local, both {after(choose_rounds)}, {sign}{spread}; sent: by all, up and down"


def as_html(records: Sequence[Record], folder: Path | None = None) -> str:
    """A table for each dataset and alpha. Whatever a name holds, it is text and never markup."""
    return "".join(_table(some, folder) for some in grouped(records, "dataset", "alpha")) or "no results"


def _table(records: Sequence[Record], folder: Path | None) -> str:
    unit = Unit.of(records)
    methods, rows = analyse(records, folder), aggregate(records, folder)
    columns = summary_columns(rows, methods, unit)
    caption = escape(f"{records[0]['dataset']}, {title(records, unit)}")
    heads = "".join(f'<th scope="col" style="text-align: {c.justify}">{escape(c.header)}</th>' for c in columns)
    body = "".join(
        f"<tr>{''.join(map(_cell, columns, row))}</tr>" for row in zip(*(c.cells for c in columns), strict=True)
    )
    notes = [legend(unit, rows, chooses_rounds(records[0])) + ".", *caveats(methods, unit)]
    return (
        f'<table><caption style="text-align: left; white-space: nowrap">{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
        f"<small>{escape(' '.join(notes))}</small>"
    )


def _cell(column: SummaryColumn, cell: StyledText) -> str:
    colour = f"; color: {cell.style}" if cell.style in (GOOD, BAD) else ""
    return f'<td style="text-align: {column.justify}; white-space: nowrap{colour}">{escape(cell.text)}</td>'
