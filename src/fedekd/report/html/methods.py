"""All methods side by side: how the gain spreads over clients and seeds, and what Δ is made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedekd.report.html.chart import (
    Chart,
    ChartColumn,
    Row,
    Spec,
    lines_of,
    names,
    shapes,
    state_colour,
    state_of,
    state_shape,
    tooltip,
    zero_line,
)
from fedekd.report.html.clients import gain_title
from fedekd.report.html.run_data import RunData
from fedekd.report.html.words import about_models, over
from fedekd.runs.transfer import PARTS
from fedekd.runs.verdict_text import PART_WORDS, best_alone, told

POINTS = 1500  # more than that are summed up instead of drawn one by one


def method_rows(data: RunData) -> list[dict[str, Any]]:
    """One row per method, best mean first: mean and worst gain, its spread, and every client's."""
    f, harm = data.scale.factor, data.unit.harm
    rows = []
    for label, method in data.transfer.items():
        known = [c for c in method.clients if math.isfinite(c.parts["gain"])] or method.clients
        clients = [(f * c.parts["gain"], c.client, ", ".join(map(str, c.seeds)), state_of(c.verdict)) for c in known]
        gains = [c[0] for c in clients]
        low, high = method.interval("gain") or (None, None)
        p10, p25, p75, p90 = (float(x) for x in np.percentile(gains, (10, 25, 75, 90)))
        rows.append(
            {
                "method": label,
                "mean": f * method.summary["gain"]["mean"],
                "low": None if low is None else f * low,
                "high": None if high is None else f * high,
                "worst": max(gains, key=harm),
                "best": min(gains, key=harm),
                "p10": p10,
                "p25": p25,
                "p75": p75,
                "p90": p90,
                "states": told(method),
                "clients": clients,
            }
        )
    return sorted(rows, key=lambda row: harm(row["mean"]))


def strip(data: RunData) -> Chart:
    scale, rows = data.scale, method_rows(data)
    several, known = len(data.seeds) > 1, any(row["low"] is not None for row in rows)
    columns = [
        ChartColumn("method", "method"),
        ChartColumn("mean", "mean gain", scale.delta),
        *(scale.interval_columns if known else []),
        ChartColumn("worst", "lowest gain of a client", scale.delta),
        ChartColumn("best", "highest", scale.delta),
        ChartColumn("states", "clients"),
    ]
    axis = scale.stretched(d for row in rows for d, *_ in row["clients"])
    many = sum(len(row["clients"]) for row in rows) > POINTS
    over_alone = best_alone(data.transfer.values())
    gain, loss = ("right", "left") if scale.unit.higher_is_better else ("left", "right")
    if many:
        about = (
            f"Boxes hold the middle half of all clients' gains over {over_alone}, thin lines 80 % of them; {gain} is "
            "better."
        )
    else:
        about = (
            f"One mark for every client{' and seed' if several and not data.one_split else ''}: its gain over "
            f"{over_alone}, {gain} of the line better, {loss} worse. Colour and ▲ or ▼ mark what is clear."
        )
    about += " The tall bar is the mean"
    about += f", with its {over(data)}" if known else ""
    about += "; a ring marks the client that loses most."
    about += about_models(data) if known else ""
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
        return [{**row, "gain": row["mean"], "shift": 0.5} for row in whole]
    return [
        {
            **(head if i == 0 else dict.fromkeys(head) | {"method": head["method"]}),
            "gain": gain,
            "client": client,
            "seed": seed,
            "state": state,
            "shift": (i * 7919 % 101) / 100,
        }
        for head, row in zip(whole, rows, strict=True)
        for i, (gain, client, seed, state) in enumerate(sorted(row["clients"], key=lambda c: -scale.unit.harm(c[0])))
    ]


def _spec(data: RunData, axis: Spec, columns: list[ChartColumn], many: bool) -> Spec:
    scale = data.scale
    x: Spec = {
        "field": "gain",
        "type": "quantitative",
        "title": gain_title(scale),
        "scale": axis,
        "axis": {"tickCount": 7},
    }
    strong = {"condition": {"test": "datum.label === method", "value": 700}, "value": 400}
    y = names("method", grid=True, labelFontWeight=strong)
    known = {"filter": "isValid(datum.mean)"}
    client = [
        ChartColumn("method", "method"),
        ChartColumn("client", "client"),
        ChartColumn("seed", "seed"),
        ChartColumn("gain", "gain", scale.delta),
        ChartColumn("state", "verdict"),
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
                    "color": state_colour(legend=True),
                    "shape": state_shape(legend=True),
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


def parts(data: RunData) -> Chart | None:
    """Recipe, federation and gain; only where a method's twin has run."""
    if not any("recipe" in method.summary for method in data.transfer.values()):
        return None
    scale = data.scale
    known = any(method.interval("delta") for method in data.transfer.values())
    rows = []
    for method in sorted(data.transfer.values(), key=lambda one: data.unit.harm(one.summary["gain"]["mean"])):
        for part, found in method.summary.items():
            low, high = method.interval(part) or (found["mean"], found["mean"])
            place = {"method": method.label, "part": PART_WORDS[part]}
            rows.append(
                {**place} | {k: scale.factor * v for k, v in (("mean", found["mean"]), ("low", low), ("high", high))}
            )
    columns = [
        ChartColumn("method", "method"),
        ChartColumn("part", "part"),
        ChartColumn("mean", "mean", scale.delta),
        *(scale.interval_columns if known else []),
    ]
    words = [PART_WORDS[part] for part in PARTS]
    unit = "points" if scale.unit.percent else scale.unit.name
    x: Spec = {"field": "mean", "type": "quantitative", "title": f"mean over clients, {unit}", "axis": {"tickCount": 7}}
    by_part: Spec = {"field": "part", "type": "nominal", "legend": {"title": None, "orient": "top"}}
    colour = {**by_part, "scale": {"domain": words, "range": ["$muted", "$other", "$accent", "$ink"]}}
    spec: Spec = {
        **lines_of("method", 64),
        "encoding": {
            "y": names("method", grid=True),
            "yOffset": {"field": "part", "type": "nominal", "sort": words},
            "tooltip": tooltip(columns),
        },
        "layer": [
            zero_line(),
            {
                "mark": {"type": "rule", "strokeWidth": 1.5, "aria": False},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": colour},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
                "encoding": {"x": x, "color": colour, "shape": {**by_part, "scale": shapes(words)}},
            },
        ],
    }
    spec["layer"][0]["encoding"]["yOffset"] = None
    about = (
        "Δ is the method minus plain Local. Of it the recipe is what the method's isolated twin, which exchanges "
        "nothing, gives as well; federation is the rest. Gain is the method minus the best that each client can do "
        "alone, both at the round chosen on validation rows."
    )
    about += f" Lines: {over(data)}.{about_models(data)}" if known else ""
    return Chart("parts", "What Δ is made of", about, spec, columns, {"": rows})
