"""Every method's mean Δ against Local with its paired interval, dataset by dataset, best first."""

from __future__ import annotations

from fedekd.report.html.chart import (
    PAPER_MARK,
    Chart,
    ChartColumn,
    Row,
    Spec,
    lines_of,
    names,
    tooltip,
    variant,
    zero_line,
)
from fedekd.report.html.study_data import StudyData, dataset_title
from fedekd.report.paper_tables import paper_deltas


def dot_rows(data: StudyData, dataset: str, alpha: float | None) -> list[Row]:
    """One row per method: its mean Δ with the interval over seeds, and the paper's Δ where it has one."""
    task = data.study.task.get((dataset, alpha))
    if task is None:
        return []
    scale, paper = data.scales[task], paper_deltas() if data.study.like_paper else {}
    rows = []
    for label in data.compared:
        figures = data.delta(label, (dataset, alpha))
        if figures:
            theirs = paper.get((label, dataset, alpha))
            delta = None if theirs is None else scale.factor * theirs[0]
            said = scale.unit.delta(figures["mean"] / scale.factor)
            rows.append({"method": label, **figures, "said": said, "paper": delta})
    return sorted(rows, key=lambda row: scale.unit.harm(row["mean"]))


def datasets(data: StudyData, task: str) -> list[str]:
    return list(dict.fromkeys(dataset for dataset, _ in data.study.columns(task)))


def dots(data: StudyData, task: str, dataset: str, number: int) -> Chart:
    scale = data.scales[task]
    own = (dataset, None) in data.study.task  # sites of its own, whatever α is chosen
    rows = {variant(a): dot_rows(data, dataset, alpha) for a, alpha in enumerate(data.alphas)}
    rows = {variant(): dot_rows(data, dataset, None)} if own else rows
    theirs = any(row["paper"] is not None for group in rows.values() for row in group)
    columns = [
        ChartColumn("method", "method"),
        ChartColumn("mean", scale.delta_title, scale.delta),
        *scale.interval_columns,
        ChartColumn("verdict", "verdict"),
        *([ChartColumn("paper", "the paper's", scale.delta)] if theirs else []),
        ChartColumn("seeds", "seeds"),
    ]
    axis = scale.stretched(
        row[name] for group in rows.values() for row in group for name in ("mean", "paper") if row[name] is not None
    )
    x: Spec = {
        "field": "mean",
        "type": "quantitative",
        "title": scale.ways(scale.delta_title),
        "scale": axis,
        "axis": {"tickCount": 5, "labelOverlap": "greedy", "labelSeparation": 6},
    }
    spec: Spec = {
        **lines_of("method", 24),
        "encoding": {"y": names("method", grid=True), "tooltip": tooltip(columns)},
        "layer": [
            zero_line(),
            {
                "transform": [{"filter": "isValid(datum.low)"}],
                "mark": {"type": "rule", "strokeWidth": 2, "aria": False},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": _clear("$help", "$harm")},
            },
            {
                "transform": [{"filter": "isValid(datum.paper)"}],
                "mark": PAPER_MARK,
                "encoding": {"x": {**x, "field": "paper"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
                "encoding": {
                    "x": x,
                    "color": _clear("$help", "$harm"),
                    "shape": _clear("triangle-up", "triangle-down", "circle"),
                },
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 8, "color": "$soft", "fontSize": 11, "aria": False},
                "encoding": {"x": {"value": "width"}, "text": {"field": "said"}},
            },
        ],
    }
    about = (
        "Mean Δ against Local over clients and seeds, the best method first; lines: 95 % intervals, paired by seed. "
        "Colour and ▲ or ▼ mark intervals that leave out zero."
    )
    about += " ◇: the paper's Δ." if theirs else ""
    about += " The axis is stretched near zero." if "type" in axis else ""
    return Chart(
        f"dots-{number}",
        dataset_title(dataset),
        about,
        spec,
        columns,
        rows,
        () if own else ("alpha",),
        half=True,
        name=f"results-{dataset}",
        empty="No runs with this α.",
    )


def _clear(helps: str, harms: str, otherwise: str = "$muted") -> Spec:
    scale = {"domain": ["helps", "harms", "undecided", "one seed"], "range": [helps, harms, otherwise, otherwise]}
    return {"field": "verdict", "type": "nominal", "legend": None, "scale": scale}
