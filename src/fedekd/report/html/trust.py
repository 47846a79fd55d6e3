"""Trust weights: how far the gate let the proxy in, round by round and client by client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedekd.report.html.chart import MOST, ROUNDS, Chart, ChartColumn, Row, Spec, lines_of, names, shades, tooltip
from fedekd.report.html.run_data import RunData, extremes, fewer
from fedekd.runs.records import ClientsTrust, TrustRow

EDGE = 0.1  # below it a sample counts as distrusted, above 1 - EDGE as trusted
BELOW, ABOVE = f"below {EDGE:g}", f"above {1 - EDGE:g}"
EMPTY = "This method has no gate, or its run left no trust weights."
COLUMNS = (
    ChartColumn("mean", "mean trust", ".2f"),
    ChartColumn("below", f"share {BELOW}", ".1%"),
    ChartColumn("above", f"share {ABOVE}", ".1%"),
)


def round_rows(data: RunData) -> dict[str, list[Row]]:
    """By variant, one row per round over all clients."""
    return {
        key: [{"round": entry["round"], **_figures(entry["clients"])} for entry in log]
        for key, log in _logs(data).items()
    }


def client_rows(data: RunData) -> dict[str, list[Row]]:
    """By variant, one row per client in the last round, the least trusting first."""
    records = {key: record for key, _, _, record in data.runs()}
    made: dict[str, list[Row]] = {}
    for key, log in _logs(data).items():
        names = [str(client["id"]) for client in records[key]["clients"]]
        rows = [
            {"client": name, **_figures([entry])}
            for name, entry in zip(names, log[-1]["clients"], strict=False)
            if entry and sum(entry["histogram"])
        ]
        made[key] = extremes(sorted(rows, key=lambda row: row["mean"]))
    return made


def course_rows(data: RunData) -> dict[str, list[Row]]:
    """By variant, one row per client and round, the clients as in ``client_rows``."""
    records = {key: record for key, _, _, record in data.runs()}
    shown = client_rows(data)
    made: dict[str, list[Row]] = {}
    for key, log in _logs(data).items():
        place = {str(client["id"]): at for at, client in enumerate(records[key]["clients"])}
        made[key] = [
            {"client": row["client"], "round": entry["round"], **_figures([own])}
            for row in shown[key]
            for entry in log
            if (own := entry["clients"][place[row["client"]]]) and sum(own["histogram"])
        ]
        for row in made[key]:
            del row["shares"]
    return made


def _logs(data: RunData) -> dict[str, list[ClientsTrust]]:
    logs: dict[str, list[ClientsTrust]] = {}
    for key, label, seed, _ in data.runs():
        detail = data.detail(label, seed)
        log = [e for e in (detail["trust"] if detail else []) if any(c and sum(c["histogram"]) for c in e["clients"])]
        if log:
            logs[key] = log
    return logs


def _figures(clients: Sequence[TrustRow | None]) -> dict[str, Any]:
    """Over these clients' samples: the mean, the shares at both ends, and the share in each twentieth."""
    there = [client for client in clients if client and sum(client["histogram"])]
    counts = np.sum([client["histogram"] for client in there], axis=0).astype(float)
    weights = [sum(client["histogram"]) for client in there]
    share, ends = counts / counts.sum(), round(EDGE * len(counts))
    return {
        "mean": float(np.average([client["mean"] for client in there], weights=weights)),
        "below": float(share[:ends].sum()),
        "above": float(share[-ends:].sum()),
        "shares": share.tolist(),
    }


def _distribution(x: Spec, y: Spec, first: ChartColumn, height: Spec) -> Spec:
    """Shares of the twentieths as lightness, and the mean as a line or ticks over it."""
    return {
        **height,
        "transform": [
            {"calculate": "sequence(0, 0.999, 0.05)", "as": "from"},
            {"flatten": ["shares", "from"], "as": ["share", "low"]},
            {"calculate": "datum.low + 0.05", "as": "high"},
        ],
        "encoding": {
            "tooltip": [
                *tooltip([first]),
                {"field": "low", "title": "trust from", "format": ".2f"},
                {"field": "high", "title": "to", "format": ".2f"},
                {"field": "share", "title": "share of samples", "format": ".1%"},
                *tooltip(COLUMNS),
            ]
        },
        "layer": [
            {
                "mark": {"type": "rect", "aria": False, "stroke": "$surface", "strokeWidth": 0.5},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": shades("share", "share of samples", ".0%"),
                    **({"y2": {"field": "high"}} if y["field"] == "low" else {"x2": {"field": "high"}}),
                },
            },
        ],
    }


TRUST: Spec = {
    "field": "low",
    "type": "quantitative",
    "title": "trust weight",
    "scale": {"domain": [0, 1]},
    "axis": {"grid": False, "values": [0, EDGE, 0.5, 1 - EDGE, 1], "format": "~g", "labelOverlap": False},
}


def rounds(data: RunData) -> Chart:
    rows = round_rows(data)
    spec = _distribution(ROUNDS, TRUST, ChartColumn("round", "round"), {"height": 240})
    spec["layer"].append(
        {
            "mark": {
                "type": "line",
                "color": "$ink",
                "strokeWidth": 2.5,
                "point": {"filled": True, "color": "$ink"},
                "tooltip": None,
            },
            "encoding": {"x": ROUNDS, "y": {**TRUST, "field": "mean", "aggregate": "max"}},
        }
    )
    about = (
        "How the weights of all samples spread in each round: the stronger the colour, the more samples; the line is "
        "their mean. A weight near 1 lets the proxy teach, near 0 keeps it out."
    )
    notes = {key: _last(group[-1]) for key, group in rows.items()}
    columns = (ChartColumn("round", "round"), *COLUMNS)
    return Chart(
        "trust",
        "Trust, round by round",
        about,
        spec,
        columns,
        rows,
        ("method", "seed"),
        notes=notes,
        empty=EMPTY,
        half=True,
    )


def _last(row: Row) -> str:
    return (
        f"In round {row['round']} the mean weight is {row['mean']:.2f}; {100 * row['below']:.1f} % of the samples "
        f"lie {BELOW} and {100 * row['above']:.1f} % {ABOVE}."
    )


def ends(data: RunData) -> Chart:
    """How many samples are decided on: the shares at both ends."""
    columns = (ChartColumn("round", "round"), *COLUMNS)
    spec: Spec = {
        "height": 240,
        "transform": [
            {"fold": ["below", "above"], "as": ["end", "part"]},
            {"calculate": f"datum.end === 'below' ? '{BELOW}' : '{ABOVE}'", "as": "end"},
        ],
        "encoding": {
            "x": ROUNDS,
            "y": {"field": "part", "type": "quantitative", "title": "share of samples", "axis": {"format": "~%"}},
            "color": _ends(["$accent", "$third"]),
            "tooltip": tooltip(columns),
        },
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2.5}},
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": {"shape": _ends(["triangle-up", "triangle-down"])},
            },
        ],
    }
    about = f"The share of samples on which the gate nearly ignores the proxy ({BELOW}) or trusts it fully ({ABOVE})."
    return Chart(
        "trust-ends",
        "How decided the gate is",
        about,
        spec,
        columns,
        round_rows(data),
        ("method", "seed"),
        empty=EMPTY,
        half=True,
    )


def _ends(marks: list[str]) -> Spec:
    scale = {"domain": [ABOVE, BELOW], "range": marks}
    return {"field": "end", "type": "nominal", "scale": scale, "legend": {"title": None, "orient": "top"}}


def by_client(data: RunData) -> Chart:
    rows = client_rows(data)
    y = names("client")
    spec = _distribution(TRUST, y, ChartColumn("client", "client"), lines_of("client", 28))
    spec["layer"].append(
        {
            "mark": {"type": "tick", "thickness": 3, "size": 18, "color": "$ink", "tooltip": None},
            "encoding": {"x": {**TRUST, "field": "mean", "aggregate": "max"}, "y": y},
        }
    )
    about = "The same in the last round for each client; the bar is the client's mean. The least trusting on top."
    about += fewer(len(data.names), MOST, "least and most trusting")
    columns = (ChartColumn("client", "client"), *COLUMNS)
    return Chart(
        "trust-clients", "Trust, client by client", about, spec, columns, rows, ("method", "seed"), empty=EMPTY
    )


def course(data: RunData) -> Chart:
    """Which client shuts the proxy out, and when."""
    columns = (ChartColumn("client", "client"), ChartColumn("round", "round"), *COLUMNS)
    spec: Spec = {
        **lines_of("client", 28),
        "mark": {"type": "rect", "stroke": "$surface", "strokeWidth": 1.5},
        "encoding": {
            "x": ROUNDS,
            "y": names("client"),
            "color": shades("below", f"share {BELOW}", ".0%"),
            "tooltip": tooltip(columns),
        },
    }
    about = (
        "The share of its samples that each client keeps the proxy out of, round by round: the stronger the colour, "
        "the more."
    )
    about += fewer(len(data.names), MOST, "least and most trusting")
    return Chart(
        "trust-course",
        "Trust, client by round",
        about,
        spec,
        columns,
        course_rows(data),
        ("method", "seed"),
        empty=EMPTY,
    )
