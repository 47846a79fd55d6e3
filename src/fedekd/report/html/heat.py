"""Heat maps of Δ: one method over dataset and alpha, and all methods over every cell of the study."""

from __future__ import annotations

import json
import math
from typing import Any

from fedekd.report.html.chart import Chart, ChartColumn, MetricScale, Spec, lines_of, names, tooltip, variant
from fedekd.report.html.study_data import StudyData, alpha_title, dataset_title
from fedekd.runs.verdict_text import told


def heat_rows(data: StudyData, task: str) -> list[dict[str, Any]]:
    """One row per method and cell; ``shade`` runs from -1 (harm) to 1 (help), stretched near zero."""
    rows = []
    for label in data.compared:
        for dataset, alpha in data.study.columns(task):
            figures = data.delta(label, (dataset, alpha))
            if figures:
                place = {"method": label, "dataset": dataset_title(dataset), "alpha": alpha_title(alpha)}
                said = data.scales[task].unit.delta(figures["mean"] / data.scales[task].factor)
                method = data.study.transfer[label, (dataset, alpha)]
                rows.append(
                    {
                        **place,
                        "cell": f"{place['dataset']} {place['alpha']}",
                        **figures,
                        "said": said,
                        "clients": told(method),
                    }
                )
    shade = _shade(data.scales[task], [row["mean"] for row in rows])
    return [{**row, "shade": shade(row["mean"])} for row in rows]


def _shade(scale: MetricScale, means: list[float]) -> Any:
    sizes = sorted(abs(m) for m in means if m)
    middle, top = (sizes[len(sizes) // 2], sizes[-1]) if sizes else (1.0, 1.0)

    def shade(mean: float) -> float:
        size = math.log1p(abs(mean) / middle) / math.log1p(top / middle)
        return -math.copysign(size, scale.unit.harm(mean)) if mean else 0.0

    return shade


SURE = "datum.verdict === 'helps' || datum.verdict === 'harms'"


def _cell(size: int = 12) -> list[Spec]:
    colour = {
        "field": "shade",
        "type": "quantitative",
        "legend": None,
        "scale": {"domain": [-1, 0, 1], "range": ["$cell-harm", "$low", "$cell"], "interpolate": "rgb"},
    }
    words: Spec = {"type": "text", "fontSize": size, "aria": False, "tooltip": None, "color": "$ink"}
    cell: Spec = {"mark": {"type": "rect", "stroke": "$surface", "strokeWidth": 2}, "encoding": {"color": colour}}
    figures: list[Spec] = [
        {
            "transform": [{"filter": test}],
            "mark": {**words, "fontWeight": weight},
            "encoding": {"text": {"field": "said"}},
        }
        for test, weight in ((f"!({SURE})", 400), (SURE, 700))
    ]
    return [cell, *figures]


def _columns(scale: MetricScale, *first: ChartColumn) -> list[ChartColumn]:
    return [
        *first,
        ChartColumn("mean", scale.delta_title, scale.delta),
        *scale.interval_columns,
        ChartColumn("verdict", "verdict"),
        ChartColumn("clients", "clients or client-runs"),
        ChartColumn("seeds", "seeds"),
    ]


WORDS = (
    "Blue cells gained, orange ones lost; bold figures are those whose 95 % interval over seeds leaves out zero. "
    "Shades are stretched near zero."
)


def one_method(data: StudyData, task: str) -> Chart:
    scale, rows = data.scales[task], heat_rows(data, task)
    columns = _columns(scale, ChartColumn("dataset", "dataset"), ChartColumn("alpha", "α"))
    by = {
        variant(m): [{k: v for k, v in row.items() if k != "cell"} for row in rows if row["method"] == label]
        for m, label in enumerate(data.compared)
    }
    spec: Spec = {
        **lines_of("dataset", 56),
        "encoding": {
            "x": {
                "field": "alpha",
                "type": "nominal",
                "sort": None,
                "title": None,
                "axis": {"orient": "top", "labelAngle": 0, "ticks": False, "domain": False},
            },
            "y": names("dataset"),
            "tooltip": tooltip(columns),
        },
        "layer": _cell(14),
    }
    about = f"The chosen method's mean Δ ({_unit(scale)}) over datasets and splits. {WORDS}"
    return Chart(
        f"heat-{task}",
        f"Δ by dataset and α, {task}",
        about,
        spec,
        columns,
        by,
        ("method",),
        empty="This method has not run on such data.",
    )


def all_methods(data: StudyData, task: str) -> Chart:
    scale, rows = data.scales[task], heat_rows(data, task)
    columns = _columns(scale, ChartColumn("method", "method"), ChartColumn("cell", "dataset and α"))
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    first = {row["dataset"]: row["cell"] for row in reversed(rows)}
    alphas = {row["cell"]: row["alpha"] for row in rows if row["cell"] not in first.values()}
    spec: Spec = {
        **lines_of("method", 34),
        "encoding": {
            "x": {
                "field": "cell",
                "type": "nominal",
                "scale": {"domain": cells},
                "title": None,
                "axis": {
                    "orient": "top",
                    "labelAngle": -40,
                    "labelLimit": 230,
                    "labelExpr": f"{json.dumps(alphas)}[datum.label] || datum.label",  # a dataset is named once
                    "ticks": False,
                    "domain": False,
                },
            },
            "y": names(
                "method", labelFontWeight={"condition": {"test": "datum.label === method", "value": 700}, "value": 400}
            ),
            "tooltip": tooltip(columns),
        },
        "layer": _cell(),
    }
    spec["usermeta"]["least"] = 230 + 62 * len(cells)
    spec["padding"] = {"left": 5, "top": 5, "bottom": 5, "right": 60}  # for the slanted labels
    about = f"Every method's mean Δ ({_unit(scale)}) in every cell of the study. {WORDS}"
    return Chart(f"grid-{task}", f"All methods, {task}", about, spec, columns, {"": rows}, marks=("method",))


def _unit(scale: MetricScale) -> str:
    return f"points of {scale.unit.name}" if scale.unit.percent else scale.unit.name
