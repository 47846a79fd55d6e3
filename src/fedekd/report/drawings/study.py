"""The figures of a study: results (the paper's Figure 2), sweeps (3 and 4), heat maps of Δ, agreement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedekd.report.drawings.style import COLUMN, MARKERS, PAGE, SIDES, figure, listed
from fedekd.report.html import agreement, bars, heat, sweep
from fedekd.report.html.chart import Row
from fedekd.report.html.study_data import StudyData, dataset_title
from fedekd.report.palette import LIGHT, SERIES
from fedekd.report.paper_tables import make_tables
from fedekd.report.table_formats import Table


def study_figures(data: StudyData) -> Iterator[tuple[str, Figure]]:
    for task in data.tasks:
        for alpha in data.alphas:
            name = f"results-{task}" + ("" if alpha is None else f"-alpha{alpha:g}")
            if sheet := _results(data, task, alpha):
                yield name, sheet
        if data.compared:
            yield f"heat-{task}", _heat(data, task)
        for (method, parameter), rows in sweep.sweep_rows(data, task).items():
            yield f"sweep-{task}-{method}-{parameter}", _sweep(data, task, parameter, rows)
    for table in agreement.compared(make_tables(data.records, against_paper=True)):
        yield f"agreement-{table.name}", _agreement(table)


def _results(data: StudyData, task: str, alpha: float | None) -> Figure | None:
    found = {dataset: bars.bar_rows(data, dataset, alpha) for dataset in bars.datasets(data, task)}
    found = {dataset: rows for dataset, rows in found.items() if rows}
    if not found:
        return None
    across = min(len(found), 3)
    down = -(-len(found) // across)
    longest = max(len(rows) for rows in found.values())
    sheet, panels = figure(PAGE if across > 1 else COLUMN, down * (0.9 + 0.17 * longest), across, down)
    colours = {"fedekd": LIGHT["accent"], "local": LIGHT["soft"], "other": LIGHT["bar"]}
    for axes, (dataset, rows) in zip(panels, found.items(), strict=False):
        spread = [row["std"] for row in rows]
        axes.barh(
            range(len(rows)),
            [row["mean"] for row in rows],
            0.66,
            xerr=spread,
            color=[colours[row["kind"]] for row in rows],
            error_kw={"elinewidth": 0.8},
        )
        paper = [(row["paper"], y) for y, row in enumerate(rows) if row["paper"] is not None]
        if paper:
            axes.plot(
                *zip(*paper, strict=True), "D", markerfacecolor="white", markeredgecolor=LIGHT["ink"], markersize=3.5
            )
        listed(axes, [row["method"] for row in rows])
        axes.set(title=dataset_title(dataset), xlabel=data.scales[task].value_title)
    for axes in panels[len(found) :]:
        axes.set_visible(False)
    return sheet


def _heat(data: StudyData, task: str) -> Figure:
    rows = heat.heat_rows(data, task)
    methods, cells = (list(dict.fromkeys(row[key] for row in rows)) for key in ("method", "cell"))
    shades = np.full((len(methods), len(cells)), np.nan)
    sheet, (axes,) = figure(PAGE, 1.3 + 0.22 * len(methods))
    for row in rows:
        y, x = methods.index(row["method"]), cells.index(row["cell"])
        shades[y, x] = row["shade"]
        sure = row["verdict"] in ("helps", "harms")
        words = f"{row['mean']:{data.scales[task].delta}}".replace("-", "−")
        axes.text(
            x + 0.5,
            y + 0.5,
            words,
            ha="center",
            va="center",
            fontsize=6.5,
            fontweight="bold" if sure else "normal",
            color="white" if abs(row["shade"]) > 0.85 else LIGHT["ink"],
        )
    axes.pcolormesh(np.ma.masked_invalid(shades), cmap=SIDES, vmin=-1, vmax=1, edgecolor="white", linewidth=1)
    axes.invert_yaxis()
    axes.set_xticks(np.arange(len(cells)) + 0.5, cells, rotation=35, ha="right")
    axes.set_yticks(np.arange(len(methods)) + 0.5, methods)
    axes.grid(False)
    unit = "points" if data.scales[task].unit.higher_is_better else data.scales[task].unit.name
    axes.set_title(f"Mean Δ ({unit}); bold: 95 % interval without zero")
    return sheet


def _sweep(data: StudyData, task: str, parameter: str, rows: list[Row]) -> Figure:
    sheet, (axes,) = figure(COLUMN, 2.5)
    values = sweep.order(rows)
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    for i, cell in enumerate(cells):
        own: list[Any] = sorted(
            (row for row in rows if row["cell"] == cell), key=lambda row: values.index(row["value"])
        )
        x = np.array([values.index(row["value"]) for row in own]) + 0.12 * (i - (len(cells) - 1) / 2)
        y = np.array([row["mean"] for row in own])
        half = [0.0 if row["low"] is None else row["mean"] - row["low"] for row in own]
        axes.errorbar(
            x,
            y,
            half,
            fmt=f"{MARKERS[i % len(MARKERS)]}-",
            color=LIGHT[SERIES[i % len(SERIES)]],
            markersize=4.5,
            linewidth=1,
            elinewidth=1,
            label=cell,
        )
    axes.axhline(0, color=LIGHT["ink"], linewidth=0.8)
    axes.set_xticks(range(len(values)), values)
    axes.set(xlabel=sweep.SYMBOLS.get(parameter, parameter), ylabel=data.scales[task].delta_title)
    axes.legend()
    return sheet


def _agreement(table: Table) -> Figure:
    rows = agreement.agreement_rows(table)
    sheet, (axes,) = figure(COLUMN, COLUMN)
    ends = [v for row in rows for v in (row["ours"], row["paper"])]
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], "--", color=LIGHT["muted"], linewidth=0.8)
    for i, dataset in enumerate(dict.fromkeys(row["dataset"] for row in rows)):
        for own in (False, True):
            some = [row for row in rows if row["dataset"] == dataset and (row["method"] == "fedekd") == own]
            colour = LIGHT["accent"] if own else LIGHT["muted"]
            axes.plot(
                [row["paper"] for row in some],
                [row["ours"] for row in some],
                MARKERS[i % len(MARKERS)],
                color=colour,
                alpha=1 if own else 0.5,
                markersize=4.5,
                label="_" if own else dataset,
            )
    axes.set(xlabel="the paper's", ylabel="ours (blue: fedekd)", title=table.title.split(" (")[0])
    axes.legend()
    return sheet
