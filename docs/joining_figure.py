"""The figure of docs/joining.md: gain over the best alone against training rows, one line for each method."""

from __future__ import annotations

import json

import vl_convert
from joining_records import NEAR, Setting

from fedekd.runs.findings import TITLES

COLOURS = {
    NEAR: "#1f5fbf",
    "ditto": "#7b4fa3",
    "knnper": "#0f8b8d",
    "fedavg-tuned": "#5a9e3d",
    "fedrep": "#d08a1d",
    "fml": "#a98467",
    "fedekd": "#c05a9e",
    "fedavg": "#222222",
}


def figure(every: list[Setting]) -> str:
    dots = [
        {
            "rows": one.rows,
            "gain": 100 * method.summary["gain"]["mean"],
            "method": label,
            "data": f"{TITLES[one.dataset]} α={one.alpha:g}",
            "place": -len(one.by) + place / 100,
            "ours": label == NEAR,
        }
        for place, one in enumerate(every)
        for label, method in one.taken_apart.items()
        if one.clients == 6 and label in COLOURS and "gain" in method.summary
    ]
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": dots},
        "facet": {"field": "data", "type": "nominal", "title": None, "sort": {"field": "place"}},
        "columns": 2,
        "padding": 12,
        "spec": {
            "width": 300,
            "height": 220,
            "layer": [
                {
                    "mark": {"type": "line", "point": True, "clip": True},
                    "encoding": {
                        "color": {
                            "field": "method",
                            "type": "nominal",
                            "scale": {"domain": list(COLOURS), "range": list(COLOURS.values())},
                            "legend": {"title": None, "orient": "top", "labelLimit": 0, "columnPadding": 24},
                        },
                        "strokeWidth": {"condition": {"test": "datum.ours", "value": 3.5}, "value": 1.5},
                    },
                },
                {"mark": {"type": "rule", "color": "#888"}, "encoding": {"y": {"datum": 0}, "x": None}},
            ],
            "encoding": {
                "x": {
                    "field": "rows",
                    "type": "quantitative",
                    "scale": {"type": "log", "nice": False, "padding": 20},
                    "axis": {"values": [100, 300, 1000, 3000], "format": ",d"},
                    "title": "training rows per client",
                },
                "y": {
                    "field": "gain",
                    "type": "quantitative",
                    "scale": {"domain": [-6, 14]},
                    "title": "points over the best alone",
                },
            },
        },
    }
    return vl_convert.vegalite_to_svg(json.dumps(spec))
