"""Learning curves: the metric on the test data after every round, for all methods and for one method's clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedekd.report.html.chart import MOST, Chart, ChartColumn, Row, Spec, tooltip, variant
from fedekd.report.html.run_data import RunData
from fedekd.runs.alone import twin_label
from fedekd.runs.records import Record

MISSING = "This run left no learning curve."
SHOWN_ONLY = "Nothing was chosen by these curves: they are measured on test data, after training."
NAMED = 8  # lines that can be told apart by names at their ends
HEIGHT, NAME_HEIGHT = 260, 15  # of a chart and of a name, in pixels
WHOLE = "datum.value % 1 ? '' : format(datum.value, 'd')"  # a narrow axis has ticks between two rounds


def mean_rows(data: RunData) -> dict[str, list[Row]]:
    """By seed: each method's mean over its clients, round by round, and its twin's."""
    rows: dict[str, list[Row]] = {}
    for s, seed in enumerate(data.seeds):
        for label, kind in _drawn(data).items():
            curve = np.asarray(_curve(data, label, seed), float)
            if not curve.size:
                continue
            defined = ~np.isnan(curve).all(0)  # the metric, on a client's test rows
            shown = curve[:, defined] if defined.any() else curve
            for number, values in zip(_measured(data, label, seed), shown, strict=True):
                mean = data.scale.factor * float(np.mean(values))
                rows.setdefault(variant(s), []).append({"method": label, "round": number, "value": mean, **kind})
    return _with_ends(rows, "method", "value")


def _drawn(data: RunData) -> dict[str, Row]:
    """What has a line: training alone, the methods, and of each method the twin that exchanges nothing."""
    found: dict[str, Row] = {label: {"alone": label == data.alone, "twin_of": ""} for label in data.shown}
    for label in data.compared:
        if (twin := twin_label(data.of(label)[0])) in data.labels:
            found[twin] = {"alone": False, "twin_of": label}
    return found


def client_curves(data: RunData) -> dict[str, list[Row]]:
    f = data.scale.factor
    rows: dict[str, list[Row]] = {
        key: [
            {"client": name, "round": number, "value": f * value}
            for number, values in zip(_measured(data, label, seed), _curve(data, label, seed), strict=True)
            for name, value in zip(_names(record), values, strict=False)
        ]
        for key, label, seed, record in data.runs()
    }
    return _with_ends(rows, "client", "value")


def _with_ends(rows: dict[str, list[Row]], line: str, field: str) -> dict[str, list[Row]]:
    """Add ``at`` to each line's last row: where its name is written, so that names do not overlap."""
    for group in rows.values():
        named = [row for row in group if not row.get("twin_of")]
        last = {row[line]: row for row in named}
        values = [row[field] for row in named if np.isfinite(row[field])]
        apart = (max(values) - min(values)) * NAME_HEIGHT / HEIGHT if values else 0.0
        for row in group:
            row["at"] = None
        ends = sorted((row for row in last.values() if np.isfinite(row[field])), key=lambda row: row[field])
        for place, row in zip(_apart([row[field] for row in ends], apart), ends, strict=True):
            row["at"] = place
    return rows


def _apart(places: Sequence[float], least: float) -> list[float]:
    """Ascending positions, moved as little as needed to be at least ``least`` apart."""
    blocks: list[list[float]] = []  # sum of where they would begin, and how many
    for k, place in enumerate(places):
        blocks.append([place - k * least, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, many = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + many]
    begun = [total / many for total, many in blocks for _ in range(int(many))]
    return [begin + k * least for k, begin in enumerate(begun)]


def _names(record: Record) -> list[str]:
    return [str(client["id"]) for client in record["clients"]]


def _curve(data: RunData, label: str, seed: int) -> Sequence[Sequence[float]]:
    detail = data.detail(label, seed)
    return detail["curve"] if detail else []


def _measured(data: RunData, label: str, seed: int) -> Sequence[int]:
    """The rounds of a curve."""
    detail = data.detail(label, seed)
    return [] if detail is None else detail.get("rounds", range(1, len(detail["curve"]) + 1))


def method_curves(data: RunData) -> Chart:
    scale = data.scale
    columns = [
        ChartColumn("method", "method"),
        ChartColumn("round", "round"),
        ChartColumn("value", scale.value_title, scale.value),
    ]
    about = (
        f"Mean over the clients after each round. Blue: the chosen method; dashed: training alone; {_twin(data)}grey: "
        f"the other methods. {SHOWN_ONLY}"
    )
    return Chart(
        "curves",
        "How the methods learn",
        about,
        _lines("value", scale.value_title, columns, data),
        columns,
        mean_rows(data),
        ("seed",),
        ("method",),
        empty=MISSING,
        half=True,
        name="learning",
    )


def _twin(data: RunData) -> str:
    twins = any(kind["twin_of"] for kind in _drawn(data).values())
    return "thin and dashed: the chosen method without exchange; " if twins else ""


def _lines(field: str, title: str, columns: Sequence[ChartColumn], data: RunData) -> Spec:
    """A line for each method, the chosen one and training alone drawn strongly, and a thin one for its twin."""
    base: Spec = {
        "x": _rounds(),
        "y": {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False}},
        "detail": {"field": "method"},
        "tooltip": tooltip(columns),
    }
    chosen, quiet = "datum.method === method", "datum.method !== method && !datum.alone && !datum.twin_of"

    def line(test: str, **mark: Any) -> Spec:
        return {"transform": [{"filter": test}], "mark": {"type": "line", "point": {"size": 36, **mark}, **mark}}

    return {
        "height": HEIGHT,
        "encoding": base,
        "layer": [
            line(quiet, color="$muted", strokeWidth=1.3, opacity=0.8),
            line("datum.alone", color="$ink", strokeWidth=2, strokeDash=[5, 4]),
            line("datum.twin_of === method", color="$accent", strokeWidth=1.3, strokeDash=[3, 3]),
            line(chosen, color="$accent", strokeWidth=3),
            _label(chosen, color="$accent", fontWeight=600),
            _label("datum.alone", color="$ink"),
            *([_label(quiet, color="$soft")] if len(data.shown) <= NAMED else []),
        ],
    }


def _label(test: str, field: str = "method", **mark: Any) -> Spec:
    """A name at the end of its line."""
    return {
        "transform": [{"filter": f"isValid(datum.at) && ({test})"}],
        "mark": {"type": "text", "align": "left", "dx": 7, "fontSize": 11, "aria": False, "tooltip": None, **mark},
        "encoding": {"text": {"field": field}, "y": {"field": "at", "type": "quantitative"}},
    }


def _named_clients(y: Spec) -> Spec:
    label = _label("true", "client", color="$soft")
    return {**label, "encoding": {**label["encoding"], "x": _rounds(), "y": {**y, "field": "at"}}}


def loss_rows(data: RunData) -> dict[str, list[Row]]:
    """By seed: each method's loss on validation rows, and its twin's, the mean over the clients that have any."""
    rows: dict[str, list[Row]] = {}
    for s, seed in enumerate(data.seeds):
        for label, kind in _drawn(data).items():
            record = data.by.get((label, seed))
            known = [client["curve"] for client in record["clients"] if "curve" in client] if record else []
            curves = [curve["val_loss"] for curve in known]
            rounds = known[0].get("round", range(1, len(curves[0]) + 1)) if known else []
            for number, values in zip(rounds, zip(*curves, strict=False), strict=False):
                row = {"method": label, "round": number, "loss": float(np.mean(values)), **kind}
                rows.setdefault(variant(s), []).append(row)
    return _with_ends(rows, "method", "loss")


def validation_losses(data: RunData) -> Chart:
    columns = [ChartColumn("method", "method"), ChartColumn("round", "round"), ChartColumn("loss", "loss", ".4f")]
    about = (
        "The loss on validation rows after each round, mean over the clients. Where it rises while training goes on, "
        f"a method overfits. Blue: the chosen method; {_twin(data)}dashed: training alone."
    )
    return Chart(
        "losses",
        "Validation loss",
        about,
        _lines("loss", "validation loss", columns, data),
        columns,
        loss_rows(data),
        ("seed",),
        ("method",),
        empty="This run kept no losses of its rounds.",
        half=True,
    )


def two_losses(data: RunData) -> Chart:
    """Of the chosen method: the loss on training rows beside that on validation rows."""
    rows: dict[str, list[Row]] = {}
    for key, label, seed, record in data.runs():
        detail = data.detail(label, seed)
        curves = [client["curve"]["val_loss"] for client in record["clients"] if "curve" in client]
        if detail is None or not (trained := detail.get("train_loss")) or not curves:
            continue
        series: dict[str, Sequence[Sequence[float]]] = {
            "training": trained,
            "validation": list(zip(*curves, strict=False)),
        }
        rows[key] = [
            {"rows": name, "round": number, "loss": float(np.mean(values))}
            for name, by_round in series.items()
            for number, values in enumerate(by_round, start=1)
        ]
    rows = _with_ends(rows, "rows", "loss")
    columns = [ChartColumn("rows", "rows"), ChartColumn("round", "round"), ChartColumn("loss", "loss", ".4f")]
    base: Spec = {
        "x": _rounds(),
        "y": {"field": "loss", "type": "quantitative", "title": "loss", "scale": {"zero": False}},
    }
    names = list(SERIES)
    line: Spec = {
        "mark": {"type": "line", "point": {"size": 36}, "strokeWidth": 2.5},
        "encoding": {
            "color": {
                "field": "rows",
                "type": "nominal",
                "scale": {"domain": names, "range": list(SERIES.values())},
                "legend": None,
            },
            "strokeDash": {
                "field": "rows",
                "type": "nominal",
                "scale": {"domain": names, "range": [[1, 0], [5, 4]]},
                "legend": None,
            },
            "tooltip": tooltip(columns),
        },
    }
    ends = [_label(f"datum.rows === '{name}'", "rows", color=SERIES[name]) for name in names]
    about = (
        "The chosen method's mean loss over the clients, on at most 200 of each client's training rows and on its "
        "validation rows. Where the two diverge, the models overfit."
    )
    return Chart(
        "two-losses",
        "Training and validation loss",
        about,
        {"height": HEIGHT, "encoding": base, "layer": [line, *ends]},
        columns,
        rows,
        ("method", "seed"),
        empty="This run kept no training loss: runs in stacks do not.",
        half=True,
    )


SERIES = {"training": "$accent", "validation": "$other"}


def clients_learning(data: RunData) -> Chart:
    scale, rows = data.scale, client_curves(data)
    columns = [
        ChartColumn("client", "client"),
        ChartColumn("round", "round"),
        ChartColumn("value", scale.value_title, scale.value),
    ]
    y: Spec = {"field": "value", "type": "quantitative", "title": scale.value_title, "scale": {"zero": False}}
    mean: Spec = {
        "mark": {"type": "line", "color": "$ink", "strokeWidth": 2.5, "strokeDash": [2, 3], "aria": False},
        "encoding": {"x": _rounds(), "y": {**y, "aggregate": "mean"}},
    }
    many = len(data.names) > MOST
    if many:
        rows, columns = (
            _bands(rows),
            [
                ChartColumn("round", "round"),
                *(ChartColumn(name, title, scale.value) for name, title in zip(BANDS, BAND_TITLES, strict=True)),
            ],
        )
        layers: list[Spec] = [
            _band("p0", "p100", 0.12, y),
            _band("p10", "p90", 0.2, y),
            _band("p25", "p75", 0.3, y),
            {
                "mark": {"type": "line", "color": "$accent", "strokeWidth": 2.5, "point": True},
                "encoding": {"x": _rounds(), "y": {**y, "field": "p50"}, "tooltip": tooltip(columns)},
            },
        ]
        hint = ""
        about = f"Bands hold half, 80 % and all of the {len(data.names):,} clients; the line is the median client."
    else:
        layers = [
            {
                "params": [{"name": "near", "select": {"type": "point", "on": "pointerover", "fields": ["client"]}}],
                "mark": {"type": "line", "color": "$accent", "point": {"size": 34, "color": "$accent"}},
                "encoding": {
                    "x": _rounds(),
                    "y": y,
                    "detail": {"field": "client"},
                    "opacity": {"condition": {"param": "near", "value": 0.95}, "value": 0.15},
                    "tooltip": tooltip(columns),
                },
            },
            mean,
            *([_named_clients(y)] if len(data.names) <= NAMED else []),
        ]
        about, hint = (
            "One line per client of the chosen method, dotted: their mean.",
            "Point at a line to single it out.",
        )
    return Chart(
        "client-curves",
        "How its clients learn",
        about,
        {"height": HEIGHT, "layer": layers},
        columns,
        rows,
        ("method", "seed"),
        empty=MISSING,
        half=True,
        hint=hint,
    )


BANDS = ("p0", "p10", "p25", "p50", "p75", "p90", "p100")
BAND_TITLES = ("lowest", "10th percentile", "25th", "median", "75th", "90th", "highest")


def _bands(rows: dict[str, list[Row]]) -> dict[str, list[Row]]:
    made: dict[str, list[Row]] = {}
    for key, group in rows.items():
        by_round: dict[int, list[float]] = {}
        for row in group:
            by_round.setdefault(row["round"], []).append(row["value"])
        levels = [int(name[1:]) for name in BANDS]
        made[key] = [
            {"round": number} | dict(zip(BANDS, map(float, np.percentile(values, levels)), strict=True))
            for number, values in by_round.items()
        ]
    return made


def _band(low: str, high: str, opacity: float, y: Spec) -> Spec:
    return {
        "mark": {"type": "area", "color": "$accent", "opacity": opacity, "aria": False},
        "encoding": {"x": _rounds(), "y": {**y, "field": low}, "y2": {"field": high}},
    }


def _rounds() -> Spec:
    return {
        "field": "round",
        "type": "quantitative",
        "title": "round",
        "axis": {"tickMinStep": 1, "labelExpr": WHOLE, "grid": False},
        "scale": {"zero": False, "nice": False, "padding": 14},
    }
