"""What becomes of Δ when a parameter is varied (the paper's Figures 3 and 4)."""

from __future__ import annotations

from typing import Any

from fedekd.report.html.chart import Chart, ChartColumn, MetricScale, Row, Spec, colours, shapes, tooltip, zero_line
from fedekd.report.html.study_data import StudyData
from fedekd.report.sweeps import VARIED, ordered

SYMBOLS = {"beta": "β", "lambda_kd": "λ"}


def sweep_rows(data: StudyData, task: str) -> dict[tuple[str, str], list[Row]]:
    """By method and parameter: a row for each value on each cell that was swept."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for column in data.study.columns(task):
        labels = [label for label, where in data.study.by if where == column]
        for method in dict.fromkeys(m["method"] for label in labels if (m := VARIED.fullmatch(label))):
            for (parameter, value), label in ordered(data.study, method, column, labels):
                figures = data.delta(label, column)
                if figures and "," not in parameter:
                    cell = " ".join(filter(None, data.study.heads([column])[0]))
                    row = {"cell": cell, "value": value, "usual": label == method, **figures}
                    found.setdefault((method, parameter), []).append(row)
    return {key: rows for key, rows in found.items() if len({row["value"] for row in rows}) > 1}


def order(rows: list[Row]) -> list[str]:
    def number(text: str) -> tuple[bool, float, str]:
        try:
            return False, float(text), text
        except ValueError:
            return True, 0.0, text

    return sorted({row["value"] for row in rows}, key=number)


def sweeps(data: StudyData) -> list[Chart]:
    charts = []
    for task in data.tasks:
        for (method, parameter), rows in sweep_rows(data, task).items():
            charts.append(_chart(data.scales[task], task, method, parameter, rows))
    return charts


def _chart(scale: MetricScale, task: str, method: str, parameter: str, rows: list[Row]) -> Chart:
    name = SYMBOLS.get(parameter, parameter)
    columns = [
        ChartColumn("cell", "dataset"),
        ChartColumn("value", name),
        ChartColumn("mean", scale.delta_title, scale.delta),
        *scale.interval_columns,
        ChartColumn("seeds", "seeds"),
    ]
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    who: Spec = {
        "field": "cell",
        "type": "nominal",
        "legend": {"title": None, "orient": "top", "columns": 2, "labelLimit": 220, "symbolOpacity": 1},
    }
    colour, shape = {**who, "scale": colours(cells)}, {**who, "scale": shapes(cells)}
    x: Spec = {"field": "value", "type": "nominal", "sort": order(rows), "title": name, "axis": {"labelAngle": 0}}
    y: Spec = {"field": "mean", "type": "quantitative", "title": scale.delta_title}
    apart: Spec = {"xOffset": {"field": "cell", "sort": cells, "scale": {"paddingOuter": 1.2}}}
    spec: Spec = {
        "height": 280,
        "layer": [
            zero_line("y"),
            {
                "mark": {"type": "line", "opacity": 0.45, "aria": False},
                "encoding": {"x": x, "y": y, "color": colour, **apart},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 2, "aria": False},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour, **apart},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 95, "opacity": 1},
                "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip(columns), **apart},
            },
        ],
    }
    usual = next((row["value"] for row in rows if row["usual"]), None)
    about = f"Mean Δ of {method} for each {name}, with 95 % intervals over seeds; the line at zero is training alone."
    about += f" By default {name} = {usual}." if usual else ""
    return Chart(
        f"sweep-{task}-{method}-{parameter}",
        f"{method}: sensitivity to {name}",
        about,
        spec,
        columns,
        {"": rows},
        half=True,
    )
