"""Is low energy really more reliable? How often the proxy and the private model are right, by decile of energy."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedekd.report.html.chart import Chart, ChartColumn, MetricScale, Row, Spec, tooltip
from fedekd.report.html.run_data import RunData
from fedekd.runs.records import Reliability
from fedekd.units import Unit, describe, usual_metric

NAMES = ("proxy", "private")
EMPTY = "This method has no gate, or its run left no energies."

TENTHS: Spec = {
    "field": "decile",
    "type": "ordinal",
    "title": "energy: lowest tenth → highest tenth",
    "axis": {"labelAngle": 0},
}


def _scale(data: RunData) -> MetricScale:
    """Of the task's own metric, whatever Δ is taken in: how often answers are right, or how far they are off."""
    usual = usual_metric(data.first["task"])
    return data.scale if data.unit.metric == usual else MetricScale(Unit(usual, 1 if describe(usual).share else 4))


def reliability_rows(data: RunData) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    f = _scale(data).factor
    for key, label, seed, _ in data.runs():
        detail = data.detail(label, seed)
        if detail and (found := detail["reliability"]):
            rows[key] = [
                {
                    "decile": i,
                    "energy": energy,
                    "count": count,
                    "proxy": _times(f, proxy),
                    "private": _times(f, private),
                    "trust": trust,
                }
                for i, (energy, count, proxy, private, trust) in enumerate(_tenths(found), start=1)
            ]
    return rows


def _tenths(found: Reliability) -> Iterable[tuple[float, int, float | None, float | None, float]]:
    return zip(found["energy"], found["count"], found["proxy"], found["private"], found["trust"], strict=False)


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else factor * value


def reliability(data: RunData) -> Chart:
    scale, rows = _scale(data), reliability_rows(data)
    right = "right, %" if scale.unit.percent else scale.unit.name
    columns = [
        ChartColumn("decile", "decile of energy"),
        ChartColumn("energy", "mean energy", ".3~g"),
        ChartColumn("proxy", f"proxy {right}", scale.value),
        ChartColumn("private", f"private model {right}", scale.value),
        ChartColumn("trust", "mean trust", ".2f"),
        ChartColumn("count", "samples", ","),
    ]
    domain = ["proxy", "private model"]
    who: Spec = {
        "field": "who",
        "type": "nominal",
        "legend": {"title": None, "orient": "top", "symbolDash": [1, 0], "symbolStrokeWidth": 0},
    }
    spec: Spec = {
        "height": 250,
        "transform": [
            {"fold": list(NAMES), "as": ["who", "right"]},
            {"calculate": "datum.who === 'private' ? 'private model' : 'proxy'", "as": "who"},
        ],
        "encoding": {
            "x": TENTHS,
            "y": {"field": "right", "type": "quantitative", "title": right, "scale": {"zero": False}},
            "color": {**who, "scale": {"domain": domain, "range": ["$accent", "$soft"]}},
            "tooltip": tooltip(columns),
        },
        "layer": [
            {
                "mark": {"type": "line", "strokeWidth": 2.5},
                "encoding": {"strokeDash": {**who, "scale": {"domain": domain, "range": [[1, 0], [5, 4]]}}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": {"shape": {**who, "scale": {"domain": domain, "range": ["circle", "square"]}}},
            },
        ],
    }
    worse = "falls" if scale.unit.higher_is_better else "rises"
    about = (
        "All clients' test samples in ten groups, from the lowest energy to the highest. If energy tells how far the "
        f"proxy can be trusted, the proxy's line {worse} to the right, and does so faster than the private model's."
    )
    notes = {key: _verdict(group, scale.unit.higher_is_better) for key, group in rows.items()}
    return Chart(
        "reliability",
        "Is low energy more reliable?",
        about,
        spec,
        columns,
        rows,
        ("method", "seed"),
        notes=notes,
        empty=EMPTY,
        half=True,
    )


def _verdict(rows: list[Row], higher: bool) -> str:
    known = [row["proxy"] for row in rows if row["proxy"] is not None]
    if len(known) < 2:
        return ""
    low, high = (f"{x:.1f} % right" if higher else f"at an RMSE of {x:.4g}" for x in (known[0], known[-1]))
    return f"The proxy is {low} in the lowest tenth and {high} in the highest."


def weights(data: RunData) -> Chart:
    columns = [
        ChartColumn("decile", "decile of energy"),
        ChartColumn("energy", "mean energy", ".3~g"),
        ChartColumn("trust", "mean trust", ".2f"),
        ChartColumn("count", "samples", ","),
    ]
    rows = {
        key: [{k: row[k] for k in ("decile", "energy", "trust", "count")} for row in group]
        for key, group in reliability_rows(data).items()
    }
    spec: Spec = {
        "height": 250,
        "encoding": {
            "x": TENTHS,
            "y": {"field": "trust", "type": "quantitative", "title": "mean trust", "scale": {"domain": [0, 1]}},
            "tooltip": tooltip(columns),
        },
        "layer": [
            {"mark": {"type": "bar", "color": "$accent", "opacity": 0.8, "cornerRadiusEnd": 2, "width": {"band": 0.7}}},
            {
                "mark": {"type": "text", "dy": -7, "color": "$soft", "fontSize": 10, "aria": False},
                "encoding": {"text": {"field": "trust", "format": ".2f"}},
            },
        ],
    }
    about = "The weight that the gate gives to the same ten groups: it should fall from left to right."
    return Chart(
        "energy-trust",
        "What the gate makes of it",
        about,
        spec,
        columns,
        rows,
        ("method", "seed"),
        empty=EMPTY,
        half=True,
    )
