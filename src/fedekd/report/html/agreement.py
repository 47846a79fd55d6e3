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
from fedekd.report.table_formats import Table


def agreement_rows(table: Table) -> list[Row]:
    """One row per cell that both have."""
    rows = []
    for row in table.rows:
        for (dataset, alpha), cell in zip(table.columns, row.cells, strict=True):
            if cell.mean is not None and cell.paper:
                ours, theirs = cell.mean, cell.paper[0]
                rows.append(
                    {
                        "method": row.label,
                        "dataset": dataset,
                        "alpha": alpha,
                        "ours": ours,
                        "paper": theirs,
                        "difference": ours - theirs,
                        "std": cell.paper[1],
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
        ChartColumn("ours", "ours", ".4f"),
        ChartColumn("paper", "the paper's", ".4f"),
        ChartColumn("difference", "difference", "+.4f"),
        ChartColumn("std", "its ±", ".4f"),
    ]
    datasets = list(dict.fromkeys(row["dataset"] for group in rows.values() for row in group))
    shape: Spec = {
        "field": "dataset",
        "type": "nominal",
        "scale": shapes(datasets),
        "legend": {"title": None, "orient": "top", "columns": 3},
    }
    x: Spec = {
        "field": "paper",
        "type": "quantitative",
        "title": "the paper's",
        "scale": {"zero": False, "padding": 10},
    }
    y: Spec = {"field": "ours", "type": "quantitative", "title": "ours", "scale": {"zero": False, "padding": 10}}
    spec: Spec = {
        "height": 380,
        "layer": [
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
        "method. Accuracy and its Δ are shares here, as in the paper's tables: 0.01 is one point."
    )
    notes = {key: _words(group) for key, group in rows.items()}
    return Chart("agreement", "Ours against the paper", about, spec, columns, rows, ("quantity",), ("method",), notes)


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
                    own = {**row, "cell": f"{row['dataset']} {row['alpha']}", **ends}
                    rows.setdefault(variant(q, m), []).append(own)
    columns = [
        ChartColumn("cell", "cell"),
        ChartColumn("ours", "ours", ".4f"),
        ChartColumn("paper", "the paper's", ".4f"),
        ChartColumn("std", "its ±", ".4f"),
        ChartColumn("difference", "difference", "+.4f"),
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
                "encoding": {"x": {"value": "width"}, "text": {"field": "difference", "format": "+.4f"}},
            },
        ],
    }
    about = "◇ the paper's figure with its deviation over seeds, ● ours; the difference stands on the right."
    return Chart(
        "agreement-cells",
        "The chosen method, cell by cell",
        about,
        spec,
        columns,
        rows,
        ("quantity", "method"),
        empty="The paper has no figures of this method.",
    )


def _words(rows: list[Any]) -> str:
    near = sum(abs(row["difference"]) <= 2 * row["std"] for row in rows)
    middle = median(abs(row["difference"]) for row in rows)
    return (
        f"{len(rows)} cells; {near} of ours lie within two of the paper's deviations over seeds; the median difference "
        f"is {middle:.4f}."
    )
