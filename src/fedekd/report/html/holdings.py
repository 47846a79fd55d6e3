"""Who holds which labels: the partition as a heat map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from fedekd.report.html.chart import MOST, Chart, ChartColumn, Row, Spec, lines_of, names, shades, slant, variant
from fedekd.report.html.run_data import RunData, fewer
from fedekd.runs.records import Details

SPLITS = {"n_train": "training", "n_val": "validation", "n_test": "test"}


def holdings_rows(data: RunData) -> dict[str, list[Row]]:
    """By seed, one row per client: its samples per class, or per range of the target."""
    rows: dict[str, list[Row]] = {}
    for s, seed in enumerate(data.seeds):
        detail = data.any_detail(seed)
        if not detail or not detail["partition"]:
            continue
        labels, rows_of = _labels(detail), {str(one["id"]): one for one in data.clients(seed)}
        held: list[Row] = [
            {
                "client": str(one["client"]),
                "total": sum(one["counts"]),
                "counts": list(one["counts"]),
                "labels": labels,
                **{name: dict(rows_of.get(str(one["client"]), {})).get(name) for name in SPLITS},
            }
            for one in detail["partition"]
        ]
        largest = {row["client"] for row in sorted(held, key=lambda row: -row["total"])[:MOST]}
        rows[variant(s)] = [row for row in held if row["client"] in largest]
    return rows


def _labels(detail: Details) -> list[str]:
    edges = detail.get("edges")
    if edges:
        return _ranges(edges)
    width = len(detail["partition"][0]["counts"])
    names = [str(name) for name in detail.get("classes") or range(width)]
    return names if len(set(names)) == width else [str(i) for i in range(width)]


def _ranges(edges: Sequence[float]) -> list[str]:
    """Rounded, and open at both ends: the lowest and the highest target are rows of somebody's."""
    size = 10 ** math.floor(math.log10(edges[1] - edges[0] or 1.0))
    inner = [f"{size * round(edge / size):.6g}" for edge in edges[1:-1]]
    return [f"below {inner[0]}", *(f"{low} to {high}" for low, high in pairwise(inner)), f"above {inner[-1]}"]


def holdings(data: RunData) -> Chart:
    rows = holdings_rows(data)
    any_row = next((group[0] for group in rows.values() if group), None)
    labels = any_row["labels"] if any_row else []
    regression = data.first["task"] == "regression"
    columns = [ChartColumn("client", "client"), ChartColumn("total", "all rows", ",")]
    columns += [ChartColumn(name, title, ",") for name, title in SPLITS.items()]
    columns += [ChartColumn("counts", label, ",", index=i) for i, label in enumerate(labels)]
    what = "range of the target" if regression else "class"
    about = f"How many samples of each {what} each client holds; the stronger the colour, the more; blank is none."
    about += " The table also counts its training, validation and test rows."
    about += fewer(len(data.names), MOST, "largest")
    spec: Spec = {
        **lines_of("client", 28),
        "transform": [{"flatten": ["counts", "labels"], "as": ["count", "label"]}],
        "encoding": {
            "x": {
                "field": "label",
                "type": "nominal",
                "sort": None,
                "title": "target" if regression else "class",
                "scale": {"domain": labels},
                "axis": {
                    "orient": "top",
                    "labelAngle": slant(labels),
                    "labelLimit": 90,
                    "ticks": False,
                    "domain": False,
                },
            },
            "y": names("client"),
            "tooltip": [
                {"field": "client", "title": "client"},
                {"field": "label", "title": "label"},
                {"field": "count", "title": "samples", "format": ","},
            ],
        },
        "layer": [
            {
                "transform": [{"filter": "datum.count > 0"}],
                "mark": {"type": "rect", "stroke": "$surface", "strokeWidth": 1.5},
                "encoding": {"color": shades("count", "samples", "~s", "$cell")},
            },
            *([_numbers()] if len(labels) <= 12 else []),
        ],
    }
    empty = "This folder holds no details of the split; older versions of fedekd left none."
    return Chart("holdings", "Who holds which labels", about, spec, columns, rows, ("seed",), empty=empty)


def _numbers() -> Spec:
    return {
        "transform": [{"filter": "datum.count > 0"}],
        "mark": {"type": "text", "aria": False, "fontSize": 11, "tooltip": None, "color": "$ink"},
        "encoding": {"text": {"field": "count", "format": ","}},
    }
