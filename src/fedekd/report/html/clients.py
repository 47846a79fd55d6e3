"""What each client has alone and with the method: dumbbells, and for very many clients all of them at a glance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from fedekd import metrics
from fedekd.report.html.chart import (
    MANY,
    Chart,
    Column,
    Row,
    Scale,
    Spec,
    effect_colour,
    effect_shape,
    lines_of,
    names,
    tooltip,
    variant,
    zero_line,
)
from fedekd.report.html.run_data import Material, fewer
from fedekd.runs.records import ClientRow, Details

WHOLE = "datum.value > 100 ? '' : datum.label"  # there is no accuracy above 100 %


def client_rows(material: Material) -> dict[str, list[Row]]:
    """By variant, the most harmed client first. Over all seeds where clients are the same sites, else seed by seed."""
    if not material.same_sites or len(material.seeds) == 1:
        made = {key: _one_seed(material, label, seed) for key, label, seed, _ in material.runs()}
        return made if not material.same_sites else {key.split("|")[0]: rows for key, rows in made.items()}
    return {variant(m): _over_seeds(material, label) for m, label in enumerate(material.compared)}


def _one_seed(material: Material, label: str, seed: int) -> list[Row]:
    """How sure a client's Δ is, its test samples say: those that it gets wrong with the method, and alone."""
    clients = material.by[label, seed]["clients"]
    both = [_errors(material.detail(name, seed)) for name in (label, material.alone)]
    intervals: list[tuple[float, float] | None] = [None] * len(clients)
    if all(both) and [len(e) for e in both[0]] == [len(e) for e in both[1]]:
        better = material.unit.higher_is_better
        intervals = [metrics.sample_interval(a, b, better) for a, b in zip(*both, strict=True)]
    rows = [_row(str(c["id"]), [c], i, material.scale) for c, i in zip(clients, intervals, strict=True)]
    return _ordered(rows, material.scale)


def _errors(detail: Details | None) -> list[list[float | bool]]:
    return detail.get("errors", []) if detail else []


def _over_seeds(material: Material, label: str) -> list[Row]:
    by_client: dict[str, list[ClientRow]] = {}
    for record in material.of(label):
        for client in record["clients"]:
            by_client.setdefault(str(client["id"]), []).append(client)
    rows = [
        _row(name, group, metrics.paired_interval([c["delta"] for c in group]), material.scale)
        for name, group in by_client.items()
    ]
    return _ordered(rows, material.scale)


def _ordered(rows: list[Row], scale: Scale) -> list[Row]:
    return sorted(rows, key=lambda row: -scale.unit.harm(row["delta"]))


def _row(name: str, group: Sequence[ClientRow], interval: tuple[float, float] | None, scale: Scale) -> Row:
    f = scale.factor
    local, value, delta = (
        f * fmean(column) for column in zip(*((c["local"], c["value"], c["delta"]) for c in group), strict=True)
    )
    low, high = (f * interval[0], f * interval[1]) if interval else (delta, delta)
    most = 100.0 if scale.unit.higher_is_better else math.inf
    ends = [min(most, max(0.0, end)) for end in (local + low, local + high)]
    return {
        "client": name, "n": group[0]["n_train"], "local": local, "value": value, "delta": delta,
        "low": low, "high": high, "from": ends[0], "to": ends[1],
        "effect": scale.effect(delta),
    }  # fmt: skip


def dumbbells(material: Material) -> Chart:
    scale, every = material.scale, client_rows(material)
    rows = {key: _ends(group) for key, group in every.items()}
    over_seeds = material.same_sites and len(material.seeds) > 1
    banded = any(row["low"] < row["high"] for group in every.values() for row in group)
    columns = [
        Column("client", "client"),
        Column("local", "alone", scale.value),
        Column("value", "with the method", scale.value),
        Column("delta", scale.delta_title, scale.delta),
    ]
    if banded:
        columns += [Column("low", "95 % from", scale.delta), Column("high", "95 % to", scale.delta)]
    columns += [Column("effect", "effect"), Column("n", "training samples", ",")]
    better = "right" if scale.unit.higher_is_better else "left"
    about = (
        f"Each line leads from what a client reaches alone (ring) to what it reaches with the method; further {better} "
        "is better. ▲ gained, ▼ lost by joining. Δ stands on the right; the most harmed are on top."
    )
    if over_seeds:
        about += " Bands are 95 % intervals of Δ over the seeds."
    elif banded:
        about += " Bands are 95 % intervals of Δ over the client's test samples: the fewer it has, the wider."
    if not over_seeds and len(material.seeds) > 1:
        about += " Every seed deals the data out anew, so clients are not averaged over seeds: choose one above; the "
        about += "page opens with the worst."
    count = max((len(group) for group in every.values()), default=0)
    shown = max((len(group) for group in rows.values()), default=0)
    about += fewer(count, shown, "most harmed and most helped")
    follows = ("method",) if material.same_sites else ("method", "seed")
    return Chart("clients", "Client by client", about, _spec(scale, columns, banded), columns, rows, follows)


def _ends(rows: list[Row]) -> list[Row]:
    return rows if len(rows) <= MANY else rows[: MANY // 2] + rows[-MANY // 2 :]


def _spec(scale: Scale, columns: Sequence[Column], band: bool) -> Spec:
    whole = {"labelExpr": WHOLE} if scale.unit.higher_is_better else {}
    x = {
        "field": "local", "type": "quantitative", "title": scale.value_title,
        "scale": {"zero": False, "nice": False, "padding": 16}, "axis": {"orient": "top", "tickCount": 6, **whole},
    }  # fmt: skip
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


def ranks(material: Material) -> Chart | None:
    """Every client's Δ in order; only where there are more than the dumbbells can show."""
    every = client_rows(material)
    if max((len(group) for group in every.values()), default=0) <= MANY:
        return None
    scale = material.scale
    rows = {key: [{**row, "rank": i} for i, row in enumerate(group, start=1)] for key, group in every.items()}
    keep = ("rank", "client", "local", "value", "delta", "effect")
    rows = {key: [{k: row[k] for k in keep} for row in group] for key, group in rows.items()}
    columns = [
        Column("rank", "rank", ","), Column("client", "client"), Column("local", "alone", scale.value),
        Column("value", "with the method", scale.value), Column("delta", scale.delta_title, scale.delta),
        Column("effect", "effect"),
    ]  # fmt: skip
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
    follows = ("method",) if material.same_sites else ("method", "seed")
    return Chart("ranks", "All clients at a glance", about, spec, columns, rows, follows)
