"""What each client gains by joining, how sure that is, and what it should do; for very many clients at a glance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedekd.report.html.chart import (
    MOST,
    Chart,
    ChartColumn,
    MetricScale,
    Row,
    Spec,
    lines_of,
    names,
    state_colour,
    state_of,
    state_shape,
    tooltip,
    variant,
    zero_line,
)
from fedekd.report.html.run_data import RunData, extremes
from fedekd.report.html.section import Block, Variants
from fedekd.runs.transfer import ClientTransfer
from fedekd.runs.verdict_text import Advice, advice_by_client, alone_label, best_alone, caveats, decided


def client_rows(data: RunData) -> dict[str, list[Row]]:
    """By variant, the client that loses most first. Over all seeds where they share one split, else seed by seed."""
    rows: dict[str, list[Row]] = {}
    for m, method in enumerate(data.transfer.values()):
        for client in method.clients:
            keys = [variant(m)] if data.one_split else [variant(m, data.seeds.index(seed)) for seed in client.seeds]
            for key in keys:
                rows.setdefault(key, []).append(_row(client, data))
    return {key: sorted(group, key=lambda row: _place(data.unit.harm(row["gain"]))) for key, group in rows.items()}


def _place(harm: float) -> float:
    return math.inf if math.isnan(harm) else -harm


def _row(client: ClientTransfer, data: RunData) -> Row:
    f, verdict, floor = data.scale.factor, client.verdict, data.floor(client.client, client.seeds)
    alone, value = (f * value for value in client.values)
    gain = f * client.parts["gain"]
    low, high = (f * verdict.low, f * verdict.high) if verdict and math.isfinite(verdict.low) else (None, None)
    return {
        "client": client.client,
        "model": data.model(client.client, client.seeds[0]),
        "n_train": data.training_rows(client.client, client.seeds[0]),
        "n": client.n_test,
        "alone": alone,
        "by": alone_label(client),
        "floor": None if floor is None else f * floor,
        "value": value,
        "gain": gain,
        "low": low,
        "high": high,
        "said": data.unit.delta(client.parts["gain"]),
        "detectable": f * verdict.detectable if verdict else None,
        "state": state_of(verdict),
    }


def gains(data: RunData) -> Chart:
    scale, every = data.scale, client_rows(data)
    rows = {
        key: extremes([row for row in group if row["gain"]]) if len(group) > MOST else group
        for key, group in every.items()
    }
    banded = any(row["low"] is not None for group in every.values() for row in group)
    floors = any(row["floor"] is not None for group in every.values() for row in group)
    named = any(row["model"] for group in every.values() for row in group)
    methods = list(data.transfer.values())
    gain = f"gain{', points' if scale.unit.percent else f' of {scale.unit.name}'}"
    columns = [
        ChartColumn("client", "client"),
        *([ChartColumn("model", "model")] if named else []),
        ChartColumn("n_train", "training rows", ","),
        ChartColumn("n", "test rows", ","),
        *([ChartColumn("floor", "floor", scale.value)] if floors else []),
        ChartColumn("alone", "alone", scale.value),
        *([ChartColumn("by", "best alone")] if any(len(method.menu) > 1 for method in methods) else []),
        ChartColumn("value", "with the method", scale.value),
        ChartColumn("gain", gain, scale.delta),
    ]
    if banded:
        columns += [
            *scale.interval_columns,
            ChartColumn("detectable", "can show", scale.value),
        ]
    columns.append(ChartColumn("state", "verdict"))
    better = "right" if scale.unit.higher_is_better else "left"
    about = (
        f"What each client gains with the chosen method over {best_alone(methods)}; further {better} is better. Colour "
        "and ▲ or ▼ mark what is clear; ■ is equivalent, ● undecided."
    )
    small = hint = ""
    if floors:
        small += "Floor: the same answer for every row, the commonest class or the mean of its training rows. "
    if banded:
        about += " Lines are 95 % intervals of the gain: the fewer test rows, the wider."
    small += " ".join(caveats(methods, data.unit)[:2])
    if not data.one_split and len(data.seeds) > 1:
        about += " Every seed splits the data anew."
        hint = "Choose one above; the page opens with the worst."
    count = max((len(group) for group in every.values()), default=0)
    shown = max((len(group) for group in rows.values()), default=0)
    if shown < count:
        about += f" Of {count:,} clients at most {MOST} are shown: those that lose and gain most."
    return Chart(
        "clients",
        "Client by client",
        about,
        _spec(scale, columns, banded),
        columns,
        rows,
        follows(data),
        small=small,
        hint=hint,
        open=True,
        empty="No client loses or gains anything.",
    )


def follows(data: RunData) -> tuple[str, ...]:
    return ("method",) if data.one_split else ("method", "seed")


def advice(data: RunData) -> Block | None:
    """Join, stay alone or undecided, over all methods; the reader's choice of method changes nothing."""
    found = advice_by_client(data.transfer.values(), data.unit)
    by: dict[str, dict[tuple[str, tuple[int, ...]], Advice]] = {}
    for (client, seeds), one in found.items():
        keys = [""] if data.one_split else [variant(data.seeds.index(seed)) for seed in seeds]
        for key in keys:
            by.setdefault(key, {})[client, seeds] = one
    if not by:
        return None
    several = len(data.transfer) > 1
    content = {
        key: {
            "decided": (f"Seed {data.seeds[int(key)]}: " if key and len(data.seeds) > 1 else "")
            + decided(group.values()),
            "rows": [(client, one.decision, one.reason) for (client, _), one in group.items()]
            if len(group) <= MOST
            else [],
        }
        for key, group in by.items()
    }
    first = "" if data.one_split else variant(data.worst_seed)
    about = (
        f"Join: a method is clearly better for this client than {best_alone(data.transfer.values())}. Stay alone: no "
        "method is, and its test rows are enough to say so."
    )
    about += f" The methods compared are {', '.join(data.transfer)}." if several else ""
    block = Variants(("seed",), content, first, "Nothing is known of this seed.")
    return Block("advice.html", block, "Should each client join?", about)


def _spec(scale: MetricScale, columns: Sequence[ChartColumn], band: bool) -> Spec:
    x = {
        "field": "gain",
        "type": "quantitative",
        "title": gain_title(scale),
        "scale": {"nice": True, "padding": 16},
        "axis": {"orient": "top", "tickCount": 6},
    }
    interval: Spec = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 2, "aria": False},
        "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": state_colour()},
    }
    layers: list[Spec] = [
        zero_line(),
        {  # before the intervals, which not every client has: the names are in the order of the first layer
            "mark": {"type": "text", "align": "left", "dx": 12, "fontWeight": 600, "aria": False},
            "encoding": {"x": {"value": "width"}, "text": {"field": "said"}, "color": state_colour()},
        },
        *([interval] if band else []),
        {
            "mark": {"type": "point", "filled": True, "size": 125, "opacity": 1},
            "encoding": {"x": x, "color": state_colour(), "shape": state_shape()},
        },
    ]
    encoding = {"y": names("client", grid=True), "tooltip": tooltip(columns)}
    return {**lines_of("client", 30), "encoding": encoding, "layer": layers}


def gain_title(scale: MetricScale) -> str:
    return scale.ways(f"gain, {'points' if scale.unit.percent else scale.unit.name}")


def ranks(data: RunData) -> Chart | None:
    """Every client's gain in order; only where there are more than the chart of clients can show."""
    every = client_rows(data)
    if max((len(group) for group in every.values()), default=0) <= MOST:
        return None
    scale = data.scale
    rows = {key: [{**row, "rank": i} for i, row in enumerate(group, start=1)] for key, group in every.items()}
    keep = ("rank", "client", "alone", "value", "gain", "state")
    rows = {key: [{k: row[k] for k in keep} for row in group] for key, group in rows.items()}
    columns = [
        ChartColumn("rank", "rank", ","),
        ChartColumn("client", "client"),
        ChartColumn("alone", "alone", scale.value),
        ChartColumn("value", "with the method", scale.value),
        ChartColumn("gain", "gain", scale.delta),
        ChartColumn("state", "verdict"),
    ]
    y = {"field": "gain", "type": "quantitative", "title": gain_title(scale)}
    spec: Spec = {
        "height": 240,
        "layer": [
            {
                "mark": {"type": "bar", "aria": False},
                "encoding": {
                    "x": {"field": "rank", "type": "ordinal", "axis": {"labels": False, "ticks": False, "title": None}},
                    "y": y,
                    "color": state_colour(legend=True),
                    "tooltip": tooltip(columns),
                },
            },
            zero_line("y"),
        ],
    }
    over = best_alone(data.transfer.values())
    about = f"Every client's gain over {over}, from the worst to the best; colour marks what is clear."
    return Chart("ranks", "All clients at a glance", about, spec, columns, rows, follows(data))
