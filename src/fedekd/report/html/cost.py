"""What a method costs: bytes up and down, against sending the private model, and time."""

from __future__ import annotations

from statistics import fmean

from fedekd.report.html.chart import ROUNDS, SIZES, Chart, ChartColumn, Row, Spec, lines_of, names, tooltip
from fedekd.report.html.run_data import RunData
from fedekd.units import volume

BYTES = ".3s"
LEGEND: Spec = {"title": None, "orient": "top"}


def method_rows(data: RunData) -> list[Row]:
    """One row per method: bytes of a run of all clients, what sending private models would take, seconds."""
    rows = []
    for label in data.labels:
        records = data.of(label)
        rows.append(
            {
                "method": label,
                "up": fmean(r["bytes_up"] for r in records),
                "down": fmean(r["bytes_down"] for r in records),
                "seconds": fmean(r["seconds"] for r in records),
                "whole": _whole(data, label),
            }
        )
    return rows


def _whole(data: RunData, label: str) -> float | None:
    """Every client sending its private model up and getting one back, each round."""
    for seed in data.seeds:
        detail = data.detail(label, seed)
        if detail and detail["private_bytes"]:
            record = data.by[label, seed]
            return 2.0 * detail["private_bytes"] * len(record["clients"]) * record["params"]["rounds"]
    return None


def round_rows(data: RunData) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for key, label, seed, record in data.runs():
        detail = data.detail(label, seed)
        if not detail or not any(e["up"] or e["down"] for e in detail["exchange"]):
            continue
        whole = detail["private_bytes"] * len(record["clients"])
        rows[key] = [
            {"round": number, "up": e["up"], "down": e["down"], "whole": whole}
            for number, e in enumerate(detail["exchange"], start=1)
        ]
    return rows


def traffic(data: RunData) -> Chart:
    rows = [row for row in method_rows(data) if row["up"] or row["down"]]
    columns = [
        ChartColumn("method", "method"),
        ChartColumn("up", "bytes up", BYTES),
        ChartColumn("down", "bytes down", BYTES),
        ChartColumn("whole", "sending private models", BYTES),
    ]
    spec: Spec = {
        **lines_of("method", 28),
        "encoding": {"y": names("method"), "tooltip": tooltip(columns)},
        "layer": [
            {
                "transform": [{"fold": ["up", "down"], "as": ["way", "bytes"]}],
                "mark": {"type": "bar", "height": {"band": 0.62}},
                "encoding": {
                    "x": {
                        "field": "bytes",
                        "type": "quantitative",
                        "title": "bytes, all clients and rounds",
                        "axis": {"labelExpr": SIZES, "tickCount": 4},
                    },
                    "color": _ways(),
                },
            },
            {
                "transform": [{"filter": "isValid(datum.whole)"}],
                "mark": {"type": "tick", "color": "$ink", "thickness": 3, "size": 20},
                "encoding": {"x": {"field": "whole", "type": "quantitative"}},
            },
        ],
    }
    about = (
        "What all clients send and get over a whole run; the upright line marks what sending their private models "
        "would take."
    )
    return Chart(
        "traffic",
        "What crosses the wire",
        about,
        spec,
        columns,
        {"": rows},
        half=True,
        name="communication",
        empty="No method that ran sends anything.",
    )


def per_round(data: RunData) -> Chart:
    rows = round_rows(data)
    columns = [
        ChartColumn("round", "round"),
        ChartColumn("up", "bytes up", BYTES),
        ChartColumn("down", "bytes down", BYTES),
        ChartColumn("whole", "private models, one way", BYTES),
    ]
    spec: Spec = {
        "height": 220,
        "encoding": {"x": ROUNDS, "tooltip": tooltip(columns)},
        "layer": [
            {
                "transform": [{"fold": ["up", "down"], "as": ["way", "bytes"]}],
                "mark": {"type": "bar"},
                "encoding": {
                    "xOffset": {"field": "way", "sort": ["up", "down"]},
                    "y": {
                        "field": "bytes",
                        "type": "quantitative",
                        "title": "bytes, all clients",
                        "axis": {"labelExpr": SIZES, "tickCount": 4},
                    },
                    "color": _ways(),
                },
            },
            {
                "mark": {"type": "rule", "color": "$ink", "strokeWidth": 2, "strokeDash": [6, 4]},
                "encoding": {"x": None, "y": {"field": "whole", "aggregate": "max", "type": "quantitative"}},
            },
        ],
    }
    about = (
        "The chosen method's bytes in each round; the dashed line is what sending the private models would take one "
        "way."
    )
    notes = {key: _saving(group) for key, group in rows.items()}
    return Chart(
        "per-round",
        "Round by round",
        about,
        spec,
        columns,
        rows,
        ("method", "seed"),
        notes=notes,
        empty="This method sends nothing, or its run left no count of bytes.",
    )


def _saving(rows: list[Row]) -> str:
    up, whole = fmean(row["up"] for row in rows), rows[0]["whole"]
    if not up or not whole:
        return ""
    less = f"{whole / up:.1f} times less than" if whole > 1.05 * up else "no less than"
    return f"{volume(up)} up per round, {less} the private models' {volume(whole)}."


def _ways() -> Spec:
    return {
        "field": "way",
        "type": "nominal",
        "sort": ["up", "down"],
        "legend": LEGEND,
        "scale": {"domain": ["up", "down"], "range": ["$accent", "$muted"]},
    }


def time(data: RunData) -> Chart:
    columns = [ChartColumn("method", "method"), ChartColumn("seconds", "seconds per run", ".1f")]
    rows = [{"method": row["method"], "seconds": row["seconds"]} for row in method_rows(data)]
    room = 1.12 * max((row["seconds"] for row in rows), default=1.0)  # for the longest bar's number
    x: Spec = {
        "field": "seconds",
        "type": "quantitative",
        "title": "seconds",
        "axis": {"tickCount": 5, "labelOverlap": True},
        "scale": {"domain": [0, room], "nice": False},
    }
    spec: Spec = {
        **lines_of("method", 28),
        "encoding": {"y": names("method"), "x": x, "tooltip": tooltip(columns)},
        "layer": [
            {"mark": {"type": "bar", "color": "$accent", "opacity": 0.8, "height": {"band": 0.62}}},
            {
                "mark": {"type": "text", "align": "left", "dx": 5, "color": "$soft", "aria": False},
                "encoding": {"text": {"field": "seconds", "format": ".1f"}},
            },
        ],
    }
    over = ", mean over seeds" if len(data.seeds) > 1 else ""
    about = f"Training and measuring all clients once{over}. Local trains for as many epochs as the others."
    return Chart("time", "Time", about, spec, columns, {"": rows}, half=True)
