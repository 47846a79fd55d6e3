"""The mean client's accuracy or RMSE of every method, dataset by dataset (the paper's Figure 2)."""

from __future__ import annotations

from fedekd.report.html.chart import Chart, ChartColumn, Row, Spec, lines_of, names, tooltip, variant
from fedekd.report.html.study_data import StudyData, dataset_title
from fedekd.report.paper_tables import paper_means


def bar_rows(data: StudyData, dataset: str, alpha: float | None) -> list[Row]:
    """One row per method: mean and deviation over seeds, and the paper's mean where it has one."""
    task = data.study.task.get((dataset, alpha))
    if task is None:
        return []
    factor, paper = data.scales[task].factor, paper_means()
    rows = []
    for label in data.labels:
        cell = data.study.mean(label, (dataset, alpha), "mean")
        if cell.mean is not None:
            std = cell.std or 0.0
            theirs = paper.get((label, dataset, alpha))
            rows.append(
                {
                    "method": label,
                    "mean": factor * cell.mean,
                    "std": None if cell.std is None else factor * cell.std,
                    "seeds": cell.seeds,
                    "low": factor * (cell.mean - std),
                    "high": factor * (cell.mean + std),
                    "paper": None if theirs is None else factor * theirs[0],
                    "kind": _kind(label),
                }
            )
    return rows


def _kind(label: str) -> str:
    return label if label in ("local", "fedekd") else "other"


def datasets(data: StudyData, task: str) -> list[str]:
    return list(dict.fromkeys(dataset for dataset, _ in data.columns(task)))


def bars(data: StudyData, task: str, dataset: str, number: int) -> Chart:
    scale = data.scales[task]
    rows = {variant(a): bar_rows(data, dataset, alpha) for a, alpha in enumerate(data.alphas)}
    columns = [
        ChartColumn("method", "method"),
        ChartColumn("mean", scale.value_title, scale.value),
        ChartColumn("std", "± over seeds", scale.value),
        ChartColumn("paper", "the paper's", scale.value),
        ChartColumn("seeds", "seeds"),
    ]
    x: Spec = {"field": "mean", "type": "quantitative", "title": scale.value_title, "axis": {"tickCount": 5}}
    spec: Spec = {
        **lines_of("method", 24),
        "encoding": {"y": names("method"), "tooltip": tooltip(columns)},
        "layer": [
            {"mark": {"type": "bar", "height": {"band": 0.66}}, "encoding": {"x": x, "color": _kinds()}},
            {
                "mark": {"type": "rule", "color": "$ink", "strokeWidth": 1.5, "aria": False},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
            },
            {
                "transform": [{"filter": "isValid(datum.paper)"}],
                "mark": {
                    "type": "point",
                    "shape": "diamond",
                    "filled": True,
                    "fill": "$surface",
                    "stroke": "$ink",
                    "size": 70,
                    "opacity": 1,
                    "strokeWidth": 1.5,
                },
                "encoding": {"x": {**x, "field": "paper"}},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 8, "color": "$soft", "fontSize": 11, "aria": False},
                "encoding": {"x": {"value": "width"}, "text": {"field": "mean", "format": scale.value}},
            },
        ],
    }
    better = "longer" if scale.unit.higher_is_better else "shorter"
    about = f"Mean over clients and seeds, {better} is better; lines: ± deviation over seeds; ◇: the paper's figure."
    return Chart(
        f"bars-{number}",
        dataset_title(dataset),
        about,
        spec,
        columns,
        rows,
        ("alpha",),
        half=True,
        name=f"results-{dataset}",
        empty="No runs with this α.",
    )


def _kinds() -> Spec:
    return {
        "field": "kind",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": ["fedekd", "local", "other"], "range": ["$accent", "$soft", "$bar"]},
    }
