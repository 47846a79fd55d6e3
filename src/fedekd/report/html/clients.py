"""What each client has alone and with the method: dumbbells, and for very many clients all of them at a glance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from fedekd import metrics
from fedekd.report.html.chart import (
    MANY,
    Chart,
    ChartColumn,
    MetricScale,
    Row,
    Spec,
    effect_colour,
    effect_shape,
    lines_of,
    names,
    tooltip,
    variant,
    zero_line,
)
from fedekd.report.html.run_data import RunData, fewer
from fedekd.runs.records import ClientRow, Details

WHOLE = "datum.value > 100 ? '' : datum.label"  # there is no accuracy above 100 %


def client_rows(data: RunData) -> dict[str, list[Row]]:
    """By variant, the most harmed client first. Over all seeds where clients are the same sites, else seed by seed."""
    if not data.same_sites or len(data.seeds) == 1:
        made = {key: _one_seed(data, label, seed) for key, label, seed, _ in data.runs()}
        return made if not data.same_sites else {key.split("|")[0]: rows for key, rows in made.items()}
    return {variant(m): _over_seeds(data, label) for m, label in enumerate(data.compared)}


def _one_seed(data: RunData, label: str, seed: int) -> list[Row]:
    """How sure a client's Δ is, its test samples say: those that it gets wrong with the method, and alone."""
    clients = data.by[label, seed]["clients"]
    both = [_errors(data.detail(name, seed)) for name in (label, data.alone)]
    intervals: list[tuple[float, float] | None] = [None] * len(clients)
    if all(both) and [len(e) for e in both[0]] == [len(e) for e in both[1]]:
        better = data.unit.higher_is_better
        intervals = [metrics.sample_interval(a, b, better) for a, b in zip(*both, strict=True)]
    rows = [_row(str(c["id"]), [c], i, data.scale) for c, i in zip(clients, intervals, strict=True)]
    return _ordered(rows, data.scale)


def _errors(detail: Details | None) -> list[list[float | bool]]:
    return detail.get("errors", []) if detail else []


def _over_seeds(data: RunData, label: str) -> list[Row]:
    by_client: dict[str, list[ClientRow]] = {}
    for record in data.of(label):
        for client in record["clients"]:
            by_client.setdefault(str(client["id"]), []).append(client)
    rows = [
        _row(name, group, metrics.paired_interval([c["delta"] for c in group]), data.scale)
        for name, group in by_client.items()
    ]
    return _ordered(rows, data.scale)


def _ordered(rows: list[Row], scale: MetricScale) -> list[Row]:
    return sorted(rows, key=lambda row: -scale.unit.harm(row["delta"]))


def _row(name: str, group: Sequence[ClientRow], interval: tuple[float, float] | None, scale: MetricScale) -> Row:
    f = scale.factor
    local, value, delta = (
        f * fmean(column) for column in zip(*((c["local"], c["value"], c["delta"]) for c in group), strict=True)
    )
    low, high = (f * interval[0], f * interval[1]) if interval else (delta, delta)
    most = 100.0 if scale.unit.higher_is_better else math.inf
    ends = [min(most, max(0.0, end)) for end in (local + low, local + high)]
    return {
        "client": name,
        "n": group[0]["n_train"],
        "local": local,
        "value": value,
        "delta": delta,
        "low": low,
        "high": high,
        "from": ends[0],
        "to": ends[1],
        "effect": scale.effect(delta),
    }


def dumbbells(data: RunData) -> Chart:
    scale, every = data.scale, client_rows(data)
    rows = {key: _ends(group) for key, group in every.items()}
    over_seeds = data.same_sites and len(data.seeds) > 1
    banded = any(row["low"] < row["high"] for group in every.values() for row in group)
    columns = [
        ChartColumn("client", "client"),
        ChartColumn("local", "alone", scale.value),
        ChartColumn("value", "with the method", scale.value),
        ChartColumn("delta", scale.delta_title, scale.delta),
    ]
    if banded:
        columns += [ChartColumn("low", "95 % from", scale.delta), ChartColumn("high", "95 % to", scale.delta)]
    columns += [ChartColumn("effect", "effect"), ChartColumn("n", "training samples", ",")]
    better = "right" if scale.unit.higher_is_better else "left"
    about = (
        f"Each line leads from what a client reaches alone (ring) to what it reaches with the method; further {better} "
        "is better. ▲ gained, ▼ lost by joining. Δ stands on the right; the most harmed are on top."
    )
    if over_seeds:
        about += " Bands are 95 % intervals of Δ over the seeds."
    elif banded:
        about += " Bands are 95 % intervals of Δ over the client's test samples: the fewer it has, the wider."
    if not over_seeds and len(data.seeds) > 1:
        about += " Every seed deals the data out anew, so clients are not averaged over seeds: choose one above; the "
        about += "page opens with the worst."
    count = max((len(group) for group in every.values()), default=0)
    shown = max((len(group) for group in rows.values()), default=0)
    about += fewer(count, shown, "most harmed and most helped")
    follows = ("method",) if data.same_sites else ("method", "seed")
    return Chart("clients", "Client by client", about, _spec(scale, columns, banded), columns, rows, follows)


def _ends(rows: list[Row]) -> list[Row]:
    return rows if len(rows) <= MANY else rows[: MANY // 2] + rows[-MANY // 2 :]


def _spec(scale: MetricScale, columns: Sequence[ChartColumn], band: bool) -> Spec:
    whole = {"labelExpr": WHOLE} if scale.unit.higher_is_better else {}
    x = {
        "field": "local",
        "type": "quantitative",
        "title": scale.value_title,
        "scale": {"zero": False, "nice": False, "padding": 16},
        "axis": {"orient": "top", "tickCount": 6, **whole},
    }
    layers: list[Spec] = [
        {
            "mark": {"type": "rule", "strokeWidth": 2.5, "opacity": 0.55, "aria": False},
            "encoding": {"x": x, "x2": {"field": "value"}, "color": effect_colour()},
        },
        {
            "mark": {"type": "point", "filled": True, "fill": "$surface", "stroke": "$soft", "size": 75, "opacity": 1},
            "encoding": {"x": x},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 125, "opacity": 1},
            "encoding": {"x": {**x, "field": "value"}, "color": effect_colour(), "shape": effect_shape()},
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 12, "fontWeight": 600, "aria": False},
            "encoding": {
                "x": {"value": "width"},
                "text": {
                    "condition": {"test": "datum.effect === 'same'", "value": "±0"},
                    "field": "delta",
                    "format": scale.delta,
                },
                "color": effect_colour(),
            },
        },
    ]
    if band:
        layers.insert(
            0,
            {
                "mark": {"type": "rule", "strokeWidth": 9, "opacity": 0.2, "aria": False},
                "encoding": {"x": {**x, "field": "from"}, "x2": {"field": "to"}, "color": effect_colour()},
            },
        )
    encoding = {"y": names("client", grid=True), "tooltip": tooltip(columns)}
    return {**lines_of("client", 30), "encoding": encoding, "layer": layers}


def ranks(data: RunData) -> Chart | None:
    """Every client's Δ in order; only where there are more than the dumbbells can show."""
    every = client_rows(data)
    if max((len(group) for group in every.values()), default=0) <= MANY:
        return None
    scale = data.scale
    rows = {key: [{**row, "rank": i} for i, row in enumerate(group, start=1)] for key, group in every.items()}
    keep = ("rank", "client", "local", "value", "delta", "effect")
    rows = {key: [{k: row[k] for k in keep} for row in group] for key, group in rows.items()}
    columns = [
        ChartColumn("rank", "rank", ","),
        ChartColumn("client", "client"),
        ChartColumn("local", "alone", scale.value),
        ChartColumn("value", "with the method", scale.value),
        ChartColumn("delta", scale.delta_title, scale.delta),
        ChartColumn("effect", "effect"),
    ]
    y = {"field": "delta", "type": "quantitative", "title": scale.delta_title}
    spec: Spec = {
        "height": 240,
        "layer": [
            {
                "mark": {"type": "bar", "aria": False},
                "encoding": {
                    "x": {"field": "rank", "type": "ordinal", "axis": {"labels": False, "ticks": False, "title": None}},
                    "y": y,
                    "color": effect_colour(legend=True),
                    "tooltip": tooltip(columns),
                },
            },
            zero_line("y"),
        ],
    }
    about = "Every client's Δ, from the most harmed to the most helped; what lies beyond zero on the harmed side lost."
    follows = ("method",) if data.same_sites else ("method", "seed")
    return Chart("ranks", "All clients at a glance", about, spec, columns, rows, follows)
