"""How often a client is right when it is sure: alone and with the method, over all clients' test rows."""

from __future__ import annotations

from fedekd.report.html.chart import Chart, ChartColumn, Row, Spec, shapes, tooltip
from fedekd.report.html.run_data import RunData
from fedekd.runs.records import Details

SERIES = ("with the method", "alone")


def calibration(data: RunData) -> Chart | None:
    """None where no run kept it: regressions, and runs of older versions."""
    rows: dict[str, list[Row]] = {}
    for key, label, seed, _ in data.runs():
        found = [
            row
            for name, run in zip(SERIES, (label, data.alone), strict=True)
            for row in _rows(name, data.detail(run, seed))
        ]
        if found:
            rows[key] = found
    if not rows:
        return None
    columns = [
        ChartColumn("who", "answers"),
        ChartColumn("sure", "how sure, %", ".1f"),
        ChartColumn("right", "right, %", ".1f"),
        ChartColumn("count", "test rows", ","),
    ]
    axis: Spec = {"type": "quantitative", "scale": {"domain": [0, 100]}, "axis": {"tickCount": 10}}
    legend = {"title": None, "orient": "top"}
    places: Spec = {
        "x": {**axis, "field": "sure", "title": "how sure, %"},
        "y": {**axis, "field": "right", "title": "right, %"},
        "color": {
            "field": "who",
            "type": "nominal",
            "scale": {"domain": SERIES, "range": ["$accent", "$ink"]},
            "legend": legend,
        },
    }
    line: Spec = {"mark": {"type": "line", "strokeWidth": 2, "aria": False}, "encoding": places}
    points: Spec = {
        "mark": {"type": "point", "filled": True, "opacity": 1},
        "encoding": {
            **places,
            "shape": {"field": "who", "type": "nominal", "scale": shapes(SERIES), "legend": legend},
            "size": {"field": "count", "type": "quantitative", "scale": {"range": [25, 260]}, "legend": None},
            "tooltip": tooltip(columns),
        },
    }
    diagonal: Spec = {
        "data": {"values": [{"sure": 0, "right": 0}, {"sure": 100, "right": 100}]},
        "mark": {"type": "line", "color": "$muted", "strokeDash": [4, 4], "tooltip": None, "aria": False},
        "encoding": {"x": {**axis, "field": "sure"}, "y": {**axis, "field": "right"}},
    }
    about = (
        "The test rows of all clients, grouped by how probable the model found its answer. On the dashed line it is "
        "right as often as it says; below it, it is too sure of itself. The larger a point, the more rows: small ones "
        "are mostly chance."
    )
    return Chart(
        "calibration",
        "How sure, and how right",
        about,
        {"height": 320, "layer": [diagonal, line, points]},
        columns,
        rows,
        ("method", "seed"),
        empty="This run kept nothing of how sure its clients were.",
    )


def _rows(who: str, detail: Details | None) -> list[Row]:
    found = detail.get("calibration", []) if detail else []
    rows = []
    for tenth in zip(*(zip(one["count"], one["sure"], one["right"], strict=True) for one in found), strict=True):
        total = sum(count for count, *_ in tenth)
        if total:
            sure = sum(count * mean for count, mean, _ in tenth) / total
            right = sum(right for *_, right in tenth) / total
            rows.append({"who": who, "sure": 100 * sure, "right": 100 * right, "count": total})
    return rows
