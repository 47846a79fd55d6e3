"""All methods side by side: how Δ spreads over clients and seeds, with its mean and its worst."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedekd.report.html.chart import (
    Chart,
    ChartColumn,
    Row,
    Spec,
    effect_colour,
    effect_shape,
    lines_of,
    names,
    tooltip,
    zero_line,
)
from fedekd.report.html.run_data import RunData

POINTS = 1500  # more than that are summed up instead of drawn one by one


def method_rows(data: RunData) -> list[dict[str, Any]]:
    """One row per method, best mean first: mean and worst Δ, its spread, and every client's."""
    f, harm = data.scale.factor, data.unit.harm
    rows = []
    for label in data.compared:
        records = data.of(label)
        clients = [(f * c["delta"], str(c["id"]), r["seed"]) for r in records for c in r["clients"]]
        deltas = [c[0] for c in clients]
        summary = data.summary[label]
        low, high = summary["avg_delta"]["interval"] or (None, None)
        p10, p25, p75, p90 = (float(x) for x in np.percentile(deltas, (10, 25, 75, 90)))
        rows.append(
            {
                "method": label,
                "mean": f * summary["avg_delta"]["mean"],
                "low": None if low is None else f * low,
                "high": None if high is None else f * high,
                "worst": max(deltas, key=harm),
                "best": min(deltas, key=harm),
                "p10": p10,
                "p25": p25,
                "p75": p75,
                "p90": p90,
                "harmed": summary["harmed"],
                "of": summary["clients"],
                "share": summary["harmed"] / summary["clients"],
                "clients": clients,
            }
        )
    return sorted(rows, key=lambda row: harm(row["mean"]))


def strip(data: RunData) -> Chart:
    scale, rows = data.scale, method_rows(data)
    several = len(data.seeds) > 1
    columns = [
        ChartColumn("method", "method"),
        ChartColumn("mean", "mean Δ", scale.delta),
        *(
            [ChartColumn("low", "95 % from", scale.delta), ChartColumn("high", "95 % to", scale.delta)]
            if several
            else []
        ),
        ChartColumn("worst", "worst Δ", scale.delta),
        ChartColumn("best", "best Δ", scale.delta),
        ChartColumn("harmed", "harmed", ","),
        ChartColumn("of", "of", ","),
    ]
    axis = scale.stretched(d for row in rows for d, *_ in row["clients"])
    many = sum(len(row["clients"]) for row in rows) > POINTS
    gain, loss = ("right", "left") if scale.unit.higher_is_better else ("left", "right")
    if many:
        about = f"Boxes hold the middle half of all clients, thin lines 80 % of them; {gain} of zero is gain."
    else:
        about = (
            f"One mark for every client{' and seed' if several else ''}: ▲ {gain} of the line gained, ▼ {loss} lost."
        )
    about += " The tall bar is the mean"
    about += ", with its 95 % interval over seeds" if several else ""
    about += "; the ring is round the worst."
    if "type" in axis:
        about += " The axis is stretched near zero, so that small differences can be seen beside large ones."
    spec = _spec(data, axis, columns, many)
    return Chart(
        "methods", "Every method, every client", about, spec, columns, {"": _flat(rows, scale, many)}, marks=("method",)
    )


def _flat(rows: list[dict[str, Any]], scale: Any, many: bool) -> list[Row]:
    """Client rows carry their method's figures, so that one table of rows feeds every layer."""
    whole = [{k: v for k, v in row.items() if k != "clients"} for row in rows]
    if many:
        return [{**row, "delta": row["mean"], "effect": scale.effect(row["mean"]), "shift": 0.5} for row in whole]
    return [
        {
            **(head if i == 0 else dict.fromkeys(head) | {"method": head["method"]}),
            "delta": delta,
            "client": client,
            "seed": seed,
            "effect": scale.effect(delta),
            "shift": (i * 7919 % 101) / 100,
        }
        for head, row in zip(whole, rows, strict=True)
        for i, (delta, client, seed) in enumerate(sorted(row["clients"], key=lambda c: -scale.unit.harm(c[0])))
    ]


def _spec(data: RunData, axis: Spec, columns: list[ChartColumn], many: bool) -> Spec:
    scale = data.scale
    title = scale.delta_title + (" (harm ← → help)" if scale.unit.higher_is_better else " (help ← → harm)")
    x: Spec = {"field": "delta", "type": "quantitative", "title": title, "scale": axis, "axis": {"tickCount": 7}}
    strong = {"condition": {"test": "datum.label === method", "value": 700}, "value": 400}
    y = names("method", grid=True, labelFontWeight=strong)
    known = {"filter": "isValid(datum.mean)"}
    client = [
        ChartColumn("method", "method"),
        ChartColumn("client", "client"),
        ChartColumn("seed", "seed"),
        ChartColumn("delta", scale.delta_title, scale.delta),
    ]
    offset: Spec = {"type": "quantitative", "scale": {"domain": [-0.4, 1.4]}}
    if many:
        cloud: list[Spec] = [
            {
                "mark": {"type": "rule", "color": "$muted"},
                "encoding": {"x": {**x, "field": "p10"}, "x2": {"field": "p90"}},
            },
            {
                "mark": {"type": "bar", "height": 12, "color": "$muted", "opacity": 0.5},
                "encoding": {"x": {**x, "field": "p25"}, "x2": {"field": "p75"}},
            },
        ]
    else:
        cloud = [
            {
                "mark": {"type": "point", "filled": True, "size": 52, "opacity": 0.8},
                "encoding": {
                    "x": x,
                    "yOffset": {"field": "shift", **offset},
                    "color": effect_colour(legend=True),
                    "shape": effect_shape(legend=True),
                    "tooltip": tooltip(client),
                },
            }
        ]
    bars: list[Spec] = [
        {
            "transform": [known],
            "mark": {"type": "rule", "strokeWidth": 1.5, "color": "$ink", "aria": False},
            "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
        },
        {
            "transform": [known],
            "mark": {"type": "tick", "thickness": 3, "size": 22, "color": "$ink"},
            "encoding": {"x": {**x, "field": "mean"}, "tooltip": tooltip(columns)},
        },
        {
            "transform": [known],
            "mark": {"type": "point", "filled": False, "size": 170, "color": "$ink", "strokeWidth": 1.5},
            "encoding": {
                "x": {**x, "field": "worst"},
                "yOffset": {"field": "shift", **offset},
                "tooltip": tooltip(columns),
            },
        },
    ]
    return {**lines_of("method", 36), "encoding": {"y": y}, "layer": [zero_line(), *cloud, *bars]}
