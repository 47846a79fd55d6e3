"""The figures of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedekd.report.drawings.style import AMOUNTS, COLUMN, EFFECTS, PAGE, figure, listed
from fedekd.report.html import clients, cost, holdings, learning, methods, reliability, trust
from fedekd.report.html.chart import MANY, variant
from fedekd.report.html.run_data import RunData
from fedekd.report.palette import LIGHT


def run_figures(data: RunData, method: int, seed: int) -> Iterator[tuple[str, Figure]]:
    """Name and figure, for the chosen method and seed by their numbers; what has no data is left out."""
    drawings: dict[str, Callable[[RunData, int, int], Figure | None]] = {
        "clients": _clients,
        "methods": _methods,
        "learning": _learning,
        "holdings": _holdings,
        "trust": _trust,
        "reliability": _reliability,
        "communication": _communication,
        "time": _time,
    }
    for name, draw in drawings.items():
        sheet = draw(data, method, seed)
        if sheet is not None:
            yield name, sheet


def _clients(data: RunData, method: int, seed: int) -> Figure | None:
    every = clients.client_rows(data)
    rows = every.get(variant(method) if data.same_sites else variant(method, seed), [])
    if not rows:
        return None
    shown = rows if len(rows) <= MANY else rows[: MANY // 2] + rows[-MANY // 2 :]
    sheet, (axes,) = figure(COLUMN, 0.8 + 0.2 * len(shown))
    for y, row in enumerate(shown):
        marker, colour = EFFECTS[row["effect"]]
        axes.plot([row["local"], row["value"]], [y, y], color=colour, linewidth=1.6, alpha=0.6)
        if row["low"] < row["high"]:
            axes.plot([row["from"], row["to"]], [y, y], color=colour, linewidth=5, alpha=0.2, solid_capstyle="butt")
        axes.plot(row["local"], y, "o", markerfacecolor="white", markeredgecolor=LIGHT["soft"], markersize=4.5)
        axes.plot(row["value"], y, marker, color=colour, markersize=5.5)
        sign = f"{row['delta']:{data.scale.delta}}".replace("-", "−")
        axes.text(1.02, y, sign, transform=axes.get_yaxis_transform(), va="center", color=colour, fontsize=7)
    listed(axes, [row["client"] for row in shown])
    axes.set(xlabel=data.scale.value_title, title=f"{data.compared[method]}: alone (ring) and joined")
    return sheet


def _methods(data: RunData, method: int, seed: int) -> Figure | None:
    rows = methods.method_rows(data) if data.compared else []
    if not rows:
        return None
    sheet, (axes,) = figure(PAGE, 0.9 + 0.28 * len(rows))
    shift = np.random.default_rng(0)
    for y, row in enumerate(rows):
        for effect, (marker, colour) in EFFECTS.items():
            deltas = [d for d, *_ in row["clients"] if data.scale.effect(d) == effect]
            heights = y + shift.uniform(-0.18, 0.18, len(deltas))
            axes.plot(deltas, heights, marker, color=colour, markersize=3.2, alpha=0.75, linestyle="", rasterized=True)
        if row["low"] is not None:
            axes.plot([row["low"], row["high"]], [y, y], color=LIGHT["ink"], linewidth=1)
        axes.plot(row["mean"], y, "|", color=LIGHT["ink"], markersize=11, markeredgewidth=1.8)
    axis = data.scale.stretched(d for row in rows for d, *_ in row["clients"])
    if "type" in axis:
        axes.set_xscale("symlog", linthresh=axis["constant"])
    axes.axvline(0, color=LIGHT["ink"], linewidth=0.8)
    listed(axes, [row["method"] for row in rows])
    axes.set_xlabel(f"{data.scale.delta_title} of each client; bar: mean")
    return sheet


def _learning(data: RunData, method: int, seed: int) -> Figure | None:
    rows = learning.mean_rows(data).get(variant(seed), [])
    if not rows:
        return None
    sheet, (axes,) = figure(COLUMN, 2.4)
    for label in data.labels:
        curve = [(row["round"], row["value"]) for row in rows if row["method"] == label]
        chosen, alone = label == data.compared[method], label == data.alone
        style = {"color": LIGHT["accent"], "linewidth": 2.0, "zorder": 3} if chosen else {"color": LIGHT["bar"]}
        style = {"color": LIGHT["ink"], "linestyle": "--"} if alone else style
        name = label if chosen or alone else "_"
        axes.plot([r for r, _ in curve], [v for _, v in curve], marker="o", markersize=3, label=name, **style)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="round", ylabel=f"{data.scale.value_title}, mean client")
    axes.legend()
    return sheet


def _holdings(data: RunData, method: int, seed: int) -> Figure | None:
    rows = holdings.holdings_rows(data).get(variant(seed), [])
    if not rows:
        return None
    counts, labels = np.array([row["counts"] for row in rows]), rows[0]["labels"]
    sheet, (axes,) = figure(PAGE if len(labels) > 6 else COLUMN, 1.1 + 0.2 * len(rows))
    picture = axes.pcolormesh(np.ma.masked_equal(counts, 0), cmap=AMOUNTS, vmin=0, edgecolor="white", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xticks(np.arange(len(labels)) + 0.5, labels, rotation=35 if max(map(len, labels)) > 4 else 0)
    axes.set_yticks(np.arange(len(rows)) + 0.5, [row["client"] for row in rows])
    axes.grid(False)
    sheet.colorbar(picture, ax=axes, label="samples", fraction=0.04)
    axes.set_ylabel("client")
    return sheet


def _trust(data: RunData, method: int, seed: int) -> Figure | None:
    rows = trust.round_rows(data).get(variant(method, seed), [])
    if not rows:
        return None
    sheet, (spread, ends) = figure(PAGE, 2.3, columns=2)
    shares, numbers = np.array([row["shares"] for row in rows]).T, [row["round"] for row in rows]
    edges = np.arange(len(rows) + 1) + 0.5
    picture = spread.pcolormesh(edges, np.linspace(0, 1, len(shares) + 1), shares, cmap=AMOUNTS, vmin=0)
    places = np.arange(len(rows)) + 1
    spread.plot(places, [row["mean"] for row in rows], "o-", color=LIGHT["harm"], markersize=3, label="mean")
    spread.set_xticks(places, numbers)
    spread.set(xlabel="round", ylabel="trust weight")
    spread.grid(False)
    sheet.colorbar(picture, ax=spread, label="share of samples")
    for key, marker, colour, name in (("above", "^", "help", "above 0.9"), ("below", "v", "harm", "below 0.1")):
        ends.plot(places, [100 * row[key] for row in rows], f"{marker}-", color=LIGHT[colour], markersize=4, label=name)
    ends.set_xticks(places, numbers)
    ends.set(xlabel="round", ylabel="share of samples, %")
    ends.set_ylim(bottom=0)
    ends.legend()
    return sheet


def _reliability(data: RunData, method: int, seed: int) -> Figure | None:
    rows = reliability.reliability_rows(data).get(variant(method, seed), [])
    if not rows:
        return None
    sheet, (axes,) = figure(COLUMN, 2.4)
    tenths = [row["decile"] for row in rows]
    for key, style, colour in (("proxy", "o-", "accent"), ("private", "s--", "soft")):
        values = [np.nan if row[key] is None else row[key] for row in rows]
        axes.plot(
            tenths,
            values,
            style,
            color=LIGHT[colour],
            markersize=4,
            label=f"{key} model".replace("proxy model", "proxy"),
        )
    axes.set_xticks(tenths)
    right = "right, %" if data.unit.higher_is_better else data.unit.name
    axes.set(xlabel="energy: lowest tenth → highest tenth", ylabel=right)
    axes.legend()
    return sheet


def _communication(data: RunData, method: int, seed: int) -> Figure | None:
    rows = [row for row in cost.method_rows(data) if row["up"] or row["down"]]
    if not rows:
        return None
    sheet, (axes,) = figure(COLUMN, 0.8 + 0.22 * len(rows))
    places = np.arange(len(rows))
    up, down = (np.array([row[way] / 1e6 for row in rows]) for way in ("up", "down"))
    axes.barh(places, up, 0.6, color=LIGHT["accent"], label="up")
    axes.barh(places, down, 0.6, left=up, color=LIGHT["bar"], label="down")
    marks = [(row["whole"] / 1e6, y) for y, row in enumerate(rows) if row["whole"]]
    if marks:
        axes.plot(
            *zip(*marks, strict=True),
            "|",
            color=LIGHT["harm"],
            markersize=11,
            markeredgewidth=2,
            label="private models",
        )
    listed(axes, [row["method"] for row in rows])
    axes.set_xlabel("MB, all clients and rounds")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.25), ncols=3)
    return sheet


def _time(data: RunData, method: int, seed: int) -> Figure:
    rows = cost.method_rows(data)
    sheet, (axes,) = figure(COLUMN, 0.7 + 0.22 * len(rows))
    axes.barh(range(len(rows)), [row["seconds"] for row in rows], 0.6, color=LIGHT["accent"])
    listed(axes, [row["method"] for row in rows])
    axes.set_xlabel("seconds per run")
    return sheet
