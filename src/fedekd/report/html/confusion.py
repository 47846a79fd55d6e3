"""What is mistaken for what: a client's test rows by true class and answer, alone and with the method."""

from __future__ import annotations

from fedekd.report.html.chart import (
    MOST,
    Chart,
    ChartColumn,
    Choice,
    Row,
    Spec,
    lines_of,
    names,
    shades,
    slant,
    variant,
)
from fedekd.report.html.run_data import RunData
from fedekd.runs.records import Details

CLASSES = 12  # more than that make no readable map


def client_choice(data: RunData) -> Choice | None:
    """None where there is nothing to choose for: no matrices were kept, or they would be too many or too large."""
    known = any("confusion" in detail for detail in data.details.values())
    if not known or len(data.names) > MOST or len(_classes(data)) > CLASSES:
        return None
    return Choice("client", "Client", tuple(data.names))


def confusion_charts(data: RunData) -> list[Chart]:
    """Of the chosen client, alone and with the chosen method side by side; nothing where there is no choice."""
    if client_choice(data) is None:
        return []
    alone: dict[str, list[Row]] = {}
    joined: dict[str, list[Row]] = {}
    for s, seed in enumerate(data.seeds):
        alone |= {variant(s, c): rows for c, rows in enumerate(_rows(data.detail(data.alone, seed), data))}
        for m, label in enumerate(data.compared):
            joined |= {variant(m, s, c): rows for c, rows in enumerate(_rows(data.detail(label, seed), data))}
    return [
        _chart(data, "confusion-alone", "Answers alone (Local)", alone, ("seed", "client")),
        _chart(data, "confusion", "Answers with the method", joined, ("method", "seed", "client")),
    ]


def _classes(data: RunData) -> list[str]:
    return next((list(detail.get("classes") or ()) for detail in data.details.values()), [])


def _rows(detail: Details | None, data: RunData) -> list[list[Row]]:
    classes = _classes(data)
    return [
        [
            {"true": classes[i], "answer": classes[j], "count": count}
            for i, counts in enumerate(matrix)
            for j, count in enumerate(counts)
            if count
        ]
        for matrix in (detail.get("confusion", []) if detail else [])
    ]


def _chart(data: RunData, id: str, title: str, rows: dict[str, list[Row]], follows: tuple[str, ...]) -> Chart:
    classes = _classes(data)
    columns = [
        ChartColumn("true", "true class"),
        ChartColumn("answer", "answer"),
        ChartColumn("count", "test rows", ","),
    ]
    spec: Spec = {
        **lines_of(len(classes), 30),
        "encoding": {
            "x": {
                "field": "answer",
                "type": "nominal",
                "title": "answer",
                "scale": {"domain": classes},
                "axis": {"orient": "top", "labelAngle": slant(classes), "ticks": False, "domain": False},
            },
            "y": {**names("true", title="true class"), "scale": {"domain": classes}},
            "tooltip": [{"field": column.field, "title": column.title} for column in columns],
        },
        "layer": [
            {
                "mark": {"type": "rect", "stroke": "$surface", "strokeWidth": 1.5},
                "encoding": {"color": {**shades("count", "", ",", "$cell"), "legend": None}},
            },
            {
                "mark": {"type": "text", "aria": False, "fontSize": 12, "tooltip": None, "color": "$ink"},
                "encoding": {"text": {"field": "count", "format": ","}},
            },
        ],
    }
    about = f"The chosen client's test rows {data.after}, by true class and answer; on the diagonal it was right."
    empty = "This run kept no answers by class."
    notes = {key: _right(data.names[int(key.rpartition("|")[2])], group) for key, group in rows.items()}
    return Chart(id, title, about, spec, columns, rows, follows, notes=notes, half=True, empty=empty)


def _right(client: str, rows: list[Row]) -> str:
    right = sum(row["count"] for row in rows if row["true"] == row["answer"])
    return f"Client {client}: {right:,} of {sum(row['count'] for row in rows):,} test rows right."
