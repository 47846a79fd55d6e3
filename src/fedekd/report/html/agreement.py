"""Ours against the paper's figure, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from fedekd.report.html.chart import (
    PAPER_MARK,
    Chart,
    ChartColumn,
    Choice,
    Row,
    Spec,
    lines_of,
    names,
    shapes,
    tooltip,
    variant,
)
from fedekd.report.table_formats import DECIMALS, Table, number
from fedekd.units import count

DIGITS = ".3~r"
UNIT = "Accuracy in %, its Δ in points."


def agreement_rows(table: Table) -> list[Row]:
    """One row per cell that both have."""
    rows, factor = [], 100 if table.percent else 1
    for row in table.rows:
        for (dataset, alpha), cell in zip(table.columns, row.cells, strict=True):
            if cell.mean is not None and cell.paper:
                ours, theirs = factor * cell.mean, factor * cell.paper[0]
                rows.append(
                    {
                        "method": row.label,
                        "dataset": dataset,
                        "alpha": alpha,
                        "ours": ours,
                        "paper": theirs,
                        "difference": ours - theirs,
                        "std": factor * cell.paper[1],
                    }
                )
    return rows


def compared(tables: list[Table]) -> list[Table]:
    return [table for table in tables if agreement_rows(table)]


def quantity_choice(tables: list[Table]) -> Choice:
    return Choice("quantity", "Compare", tuple(table.title.split(" (")[0] for table in compared(tables)))


def agreement(tables: list[Table]) -> Chart | None:
    usable = compared(tables)
    if not usable:
        return None
    rows = {variant(i): agreement_rows(table) for i, table in enumerate(usable)}
    columns = [
        ChartColumn("method", "method"),
        ChartColumn("dataset", "dataset"),
        ChartColumn("alpha", "α"),
        ChartColumn("ours", "ours", DIGITS),
        ChartColumn("paper", "the paper's", DIGITS),
        ChartColumn("difference", "difference", "+" + DIGITS),
        ChartColumn("std", "its ±", DIGITS),
    ]
    datasets = list(dict.fromkeys(row["dataset"] for group in rows.values() for row in group))
    shape: Spec = {
        "field": "dataset",
        "type": "nominal",
        "scale": shapes(datasets),
        "legend": {"title": None, "orient": "top", "columns": 3},
    }
    scale = {"zero": False, "padding": 10}
    x: Spec = {"field": "paper", "type": "quantitative", "title": "the paper's", "scale": scale}
    y: Spec = {"field": "ours", "type": "quantitative", "title": "ours", "scale": scale}
    spec: Spec = {
        "height": 360,
        "layer": [
            {  # unseen, so that both axes are over the same range
                "mark": {"type": "point", "opacity": 0, "tooltip": None, "aria": False},
                "encoding": {"x": {**x, "field": "ours"}, "y": {**y, "field": "paper"}},
            },
            {
                "transform": [
                    {"fold": ["paper", "ours"], "as": ["who", "v"]},
                    {"aggregate": [{"op": "min", "field": "v", "as": "from"}, {"op": "max", "field": "v", "as": "to"}]},
                ],
                "mark": {"type": "rule", "color": "$muted", "strokeDash": [4, 4], "aria": False},
                "encoding": {
                    "x": {**x, "field": "from"},
                    "x2": {"field": "to"},
                    "y": {**y, "field": "from"},
                    "y2": {"field": "to"},
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 95},
                "encoding": {
                    "x": x,
                    "y": y,
                    "shape": shape,
                    "tooltip": tooltip(columns),
                    "color": {"condition": {"test": "datum.method === method", "value": "$accent"}, "value": "$muted"},
                    "opacity": {"condition": {"test": "datum.method === method", "value": 1}, "value": 0.5},
                },
            },
        ],
    }
    about = (
        "A mark for each cell of the table: on the dashed line both agree, above it ours is higher. Blue: the chosen "
        f"method, whose cells are shown one by one beside this. {UNIT}"
    )
    notes = {key: _words(rows[key], table.percent) for key, table in zip(rows, usable, strict=True)}
    return Chart(
        "agreement", "Ours against the paper", about, spec, columns, rows, ("quantity",), ("method",), notes, half=True
    )


def by_cell(tables: list[Table], methods: Sequence[str]) -> Chart | None:
    """The chosen method's cells one under another, since in the cloud the good ones lie on one spot."""
    usable = compared(tables)
    if not usable:
        return None
    rows: dict[str, list[Row]] = {}
    for q, table in enumerate(usable):
        for m, method in enumerate(methods):
            for row in agreement_rows(table):
                if row["method"] == method:
                    ends = {"low": row["paper"] - row["std"], "high": row["paper"] + row["std"]}
                    said = number(row["difference"], "+", 2 if table.percent else DECIMALS).replace("-", "−")
                    own = {**row, "cell": f"{row['dataset']} {row['alpha']}", **ends, "said": said}
                    rows.setdefault(variant(q, m), []).append(own)
    columns = [
        ChartColumn("cell", "cell"),
        ChartColumn("ours", "ours", DIGITS),
        ChartColumn("paper", "the paper's", DIGITS),
        ChartColumn("std", "its ±", DIGITS),
        ChartColumn("difference", "difference", "+" + DIGITS),
    ]
    x: Spec = {
        "field": "paper",
        "type": "quantitative",
        "title": None,
        "scale": {"zero": False, "padding": 10},
        "axis": {"orient": "top", "tickCount": 6},
    }
    spec: Spec = {
        **lines_of("cell", 28),
        "encoding": {"y": names("cell", grid=True), "tooltip": tooltip(columns)},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 7, "color": "$muted", "opacity": 0.3, "aria": False},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
            },
            {
                "mark": PAPER_MARK,
                "encoding": {"x": x},
            },
            {
                "mark": {"type": "point", "filled": True, "color": "$accent", "size": 90, "opacity": 1},
                "encoding": {"x": {**x, "field": "ours"}},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 12, "color": "$soft", "aria": False},
                "encoding": {"x": {"value": "width"}, "text": {"field": "said"}},
            },
        ],
    }
    about = f"◇ the paper's figure with its deviation over seeds, ● ours; the difference stands on the right. {UNIT}"
    return Chart(
        "agreement-cells",
        "The chosen method, cell by cell",
        about,
        spec,
        columns,
        rows,
        ("quantity", "method"),
        empty="The paper has no figures of this method.",
        half=True,
    )


def _words(rows: list[Any], percent: bool) -> str:
    near = sum(abs(row["difference"]) <= 2 * row["std"] for row in rows)
    middle = median(abs(row["difference"]) for row in rows)
    return (
        f"{count(len(rows), 'cell')}; {near} of ours within two of the paper's deviations over seeds; the median "
        f"difference is {f'{middle:.2f} points' if percent else f'{middle:.4f}'}."
    )
