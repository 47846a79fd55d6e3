"""The paper's nine tables computed from a study's records, and what it lacks: paired differences, verdicts,
sweeps.

Which tables there are, with which rows and columns, is read from the file of the paper's own figures.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from fedekd.report.study_records import StudyRecords
from fedekd.report.sweeps import sweep_tables
from fedekd.report.table_formats import NOTHING, Table, TableRow, ranked
from fedekd.report.transfer_tables import SHORT, TransferTables, marked_by_interval
from fedekd.runs.records import FailureRow, Figure, Record

METHODS = {  # (aggregator, method) in the paper's tables: ours
    ("FedDyn", "-"): "feddyn",
    ("FedProx", "-"): "fedprox",
    ("FedProx", "FedType"): "fedtype-prox",
    ("FedAvg", "-"): "fedavg",
    ("FedAvg", "FedType"): "fedtype",
    ("FedAvg", "FedeKD"): "fedekd",
    ("FedAvg", "No Gating"): "fedekd-ungated",
    ("FedAvg", "ENTROPY"): "fedekd-entropy",
    ("FedAvg", "MARGIN"): "fedekd-margin",
    ("FedAvg", "LSE"): "fedekd-lse",
    ("FedAvg", "FEAT"): "fedekd-feature",
}
OURS = {  # rows that the paper lacks, below its own
    "local": (NOTHING, "Local"),
    "fml": ("FedAvg", "FML"),
    "fedekd-ungated": ("FedAvg", "No Gating"),
    "fedekd-half": ("FedAvg", "constant w=½"),
    "fedekd-permuted": ("FedAvg", "permuted weights"),
    "fedtype-nograd": ("FedAvg", "FedType, no gradient"),
    "constant": (NOTHING, "client's training mean"),
}
QUANTITIES: dict[str, tuple[Figure, str]] = {
    "Avg_Delta": ("avg_delta", "Avg Δ"),
    "Worst_Delta": ("worst_delta", "Worst Δ"),
    "P10_Delta": ("tail_delta", "{unit.tail} Δ"),
    "P90_Delta": ("tail_delta", "{unit.tail} Δ"),
    "Mean_Acc": ("mean", "Mean client {unit.name}"),
    "Mean_RMSE": ("mean", "Mean client {unit.name}"),
}
ABLATION = "ablation_energy_cls"
ONE_SEED = "one seed has neither deviation nor interval, and nothing of it is marked"


@cache
def paper_figures() -> tuple[dict[str, str], ...]:
    """Every figure of the paper's tables, as printed there."""
    text = files("fedekd.report").joinpath("paper_figures.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def paper_deltas() -> dict[tuple[str, str, float | None], tuple[float, float]]:
    """The paper's Avg Δ and its deviation, by our method, dataset and alpha."""
    return {
        key: value
        for one in _layouts()
        if QUANTITIES[one.metric][0] == "avg_delta"
        for key, value in one.figures.items()
    }


@dataclass(frozen=True)
class Layout:
    """One of the paper's tables: its rows, its columns and its figures by (method, dataset, alpha)."""

    name: str
    metric: str
    task: str
    rows: dict[str, tuple[str, str]]
    columns: tuple[tuple[str, float], ...]
    figures: dict[tuple[str, str, float | None], tuple[float, float]]


@cache
def _layouts() -> tuple[Layout, ...]:
    layouts = []
    for name in dict.fromkeys(f["table"] for f in paper_figures()):
        rows: dict[str, tuple[str, str]] = {}
        values: dict[tuple[str, str, float | None], tuple[float, float]] = {}
        for f in paper_figures():
            if f["table"] == name:
                method, dataset = METHODS[f["aggregator"], f["method"]], StudyRecords.key_of(f["dataset"])
                rows[method] = (f["aggregator"], f["method"].replace("-", NOTHING))
                values[method, dataset, float(f["alpha"])] = (float(f["mean"]), float(f["std"]))
                metric = f["metric"]
        columns = tuple(dict.fromkeys((dataset, alpha or 0.0) for _, dataset, alpha in values))
        task = "regression" if any(dataset == "dr_regular" for dataset, _ in columns) else "classification"
        layouts.append(Layout(name.removeprefix("tab:"), metric, task, rows, columns, values))
    return tuple(layouts)


def make_tables(
    records: Sequence[Record],
    failures: Sequence[FailureRow] = (),
    against_paper: bool = False,
    folder: str | Path | None = None,
    best_of: bool = False,
) -> list[Table]:
    """``folder``: where the records lie; ``best_of`` as ``StudyRecords`` takes it."""
    return study_tables(StudyRecords(records, failures, folder, best_of), against_paper)


def study_tables(study: StudyRecords, against_paper: bool = False) -> list[Table]:
    """Every table that the records give something for.

    With ``against_paper`` each cell also holds the paper's figure.
    """
    tables = []
    for layout in _layouts():
        table = _paper_table(layout, study, against_paper)
        tables += [_with_absent(table, layout, study)] if table else []
    for task in SHORT:
        layout = next(one for one in _layouts() if one.task == task)
        methods, columns = _all_rows(layout, study, "local"), _columns(layout, study)
        made = [_paired(layout, study, "fedekd"), _paired(layout, study, "local")]
        made += TransferTables(study, task, methods, columns).tables()
        tables += [_with_absent(table, layout, study) for table in made]
    return [table for table in tables if table.rows] + sweep_tables(study)


def _columns(layout: Layout, study: StudyRecords) -> list[tuple[str, float | None]]:
    """The records' columns; if they train as the paper does, all of its columns for the datasets that were run."""
    own = study.columns(layout.task)
    run = {dataset for dataset, _ in own}
    known = [column for column in layout.columns if column in own or (study.like_paper and column[0] in run)]
    return list(dict.fromkeys([*known, *own]))


def _about_paper(layout: Layout, study: StudyRecords) -> bool:
    return any(column in layout.columns for column in _columns(layout, study))


def _with_absent(table: Table, layout: Layout, study: StudyRecords) -> Table:
    """Add a note on the paper's datasets that have no column, if any of them has one."""
    datasets = {dataset for dataset, _ in layout.columns} if _about_paper(layout, study) else set()
    return replace(table, notes=(*table.notes, *study.absent(datasets)))


def _rows(layout: Layout, study: StudyRecords, against_paper: bool) -> dict[str, tuple[str, ...]]:
    """The methods that were run; next to the paper's figures, also every row of the paper's table."""
    columns = _columns(layout, study)
    whole = against_paper and _about_paper(layout, study)
    rows: dict[str, tuple[str, ...]] = {m: heads for m, heads in layout.rows.items() if whole or study.has(m, columns)}
    energies = next(one for one in _layouts() if one.name == ABLATION).rows
    if layout.name == ABLATION:
        if not set(rows) - {"fedekd", "fedekd-ungated"}:
            return {}
        others = ["local", "fedekd-half", "fedekd-permuted"]
    else:
        others = [*OURS, *(m for m in study.shown_labels() if m not in energies)]
    return rows | {m: OURS.get(m, (NOTHING, m)) for m in others if m not in rows and study.has(m, columns)}


def _paper_table(layout: Layout, study: StudyRecords, against_paper: bool) -> Table | None:
    columns, rows = _columns(layout, study), _rows(layout, study, against_paper)
    if not columns or not rows:
        return None
    unit = study.unit(layout.task)
    key, title = QUANTITIES[layout.metric][0], QUANTITIES[layout.metric][1].format(unit=unit)
    title += "" if key == "mean" or study.in_usual_metric(layout.task) else f" of {unit.name}"
    higher, paper = unit.higher_is_better, _about_paper(layout, study)
    names = ("aggregation", "model") if paper else ("method",)
    rows = rows if paper else {m: (m,) for m in rows}
    made = [TableRow(heads, m, tuple(study.mean(m, c, key) for c in columns)) for m, heads in rows.items()]
    sign = 1 if higher else -1
    marked = ranked(made, lambda cell: None if cell.mean is None else sign * cell.mean)
    what = "gating ablation, " if layout.name == ABLATION else ""
    title = f"{title}, {what}{layout.task} ({'higher' if higher else 'lower'} is better)"
    notes = (*_legend(marked), *study.notes(rows, columns))
    table = Table(layout.name, title, names, study.heads(columns), marked, notes, unit.percent)
    beside = against_paper and paper and study.in_usual_metric(layout.task)
    return _beside_paper(table, layout, columns) if beside else table


def _legend(rows: Sequence[TableRow]) -> list[str]:
    seeds = {cell.seeds for row in rows for cell in row.cells if cell.mean is not None}
    one = [ONE_SEED] if 1 in seeds else []
    several = ["mean±std over seeds; bold: best of the column, underlined: second"] if seeds - {1} else []
    return several + one


def _beside_paper(table: Table, layout: Layout, columns: Sequence[tuple[str, float | None]]) -> Table:
    rows = tuple(
        replace(
            row,
            cells=tuple(
                replace(cell, paper=layout.figures.get((row.label, *column)))
                for column, cell in zip(columns, row.cells, strict=True)
            ),
        )
        for row in table.rows
    )
    return replace(table, rows=rows, notes=(*table.notes, "in parentheses: the paper's figure"))


# --- what the paper lacks --------------------------------------------------------------------------------


def _all_rows(layout: Layout, study: StudyRecords, without: str) -> list[str]:
    known = dict.fromkeys((*METHODS.values(), *OURS, *study.shown_labels()))
    return [m for m in known if m != without and study.has(m, _columns(layout, study))]


def _paired(layout: Layout, study: StudyRecords, one: str) -> Table:
    """FedeKD minus each other method, or each method minus Local, seed by seed."""
    columns, unit = _columns(layout, study), study.unit(layout.task)
    higher = unit.higher_is_better
    rows = []
    for other in _all_rows(layout, study, one):
        pair = ("fedekd", other) if one == "fedekd" else (other, "local")
        cells = (marked_by_interval(study.difference(*pair, c), unit) for c in columns)
        rows.append(TableRow((other,), other, tuple(cells)))
    rows = [row for row in rows if any(cell.mean is not None for cell in row.cells)]
    what = "FedeKD minus each method" if one == "fedekd" else "Each method minus Local"
    several = any(cell.interval for row in rows for cell in row.cells)
    legend = (
        "mean of the differences by seed with its 95 % interval; bold: the whole interval lies on the better side "
        "of zero, underlined: on the worse"
    )
    notes = (legend if several else ONE_SEED, *study.notes([row.label for row in rows], columns))
    title = f"{what}, mean client {unit.name}, paired by seed ({'positive' if higher else 'negative'} is better)"
    heads = study.heads(columns)
    return Table(f"paired_{one}_{SHORT[layout.task]}", title, ("method",), heads, tuple(rows), notes, unit.percent)
