"""The page of a study: where each method helps and harms, the paper's figures and tables, and how near we are to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedekd.report.html import agreement, bars, heat, sweep
from fedekd.report.html.chart import Choice
from fedekd.report.html.section import Block, Page, Section, Variants
from fedekd.report.html.study_data import StudyData, alpha_title
from fedekd.report.paper_tables import study_tables
from fedekd.report.table_formats import NOTHING, Table, TableCell, number
from fedekd.runs.records import FailureRow, Record
from fedekd.runs.verdict_text import counted
from fedekd.units import count


def study_page(
    records: Sequence[Record], failures: Sequence[FailureRow] = (), folder: str | Path | None = None
) -> Page:
    data = StudyData(records, failures, folder)
    tables = study_tables(data.study, against_paper=True)
    heads = {str(m): _headline(data, label) for m, label in enumerate(data.compared)}
    heads = heads or {"": {"title": "Nothing to compare yet", "tone": "", "lines": [], "sure": "", "figures": []}}
    hero = Variants(("method",), heads, str(data.favourite) if data.compared else "")
    near = agreement.agreement(tables)
    cells = agreement.by_cell(tables, data.compared)
    choices = data.choices()
    if len(data.alphas) > 1:
        choices.append(Choice("alpha", "α", tuple(map(alpha_title, data.alphas))))
    if near:
        choices.append(agreement.quantity_choice(tables))
    maps = [heat.one_method(data, task) for task in data.tasks if data.compared]
    grids = [heat.all_methods(data, task) for task in data.tasks if data.compared]
    pairs = [(task, dataset) for task in data.tasks for dataset in bars.datasets(data, task)]
    figures = [bars.bars(data, *pair, number=i) for i, pair in enumerate(pairs)]
    sections = [
        Section("where", "Where does it help?", maps),
        Section("methods", "All methods", grids),
        Section("results", "Results", figures, "Choose an α above." if len(data.alphas) > 1 else ""),
        Section("sweeps", "Sensitivity", sweep.sweeps(data)),
        Section("agreement", "Agreement with the paper", [chart for chart in (near, cells) if chart]),
        Section("tables", "Tables", [_table(table, i == 0) for i, table in enumerate(tables)]),
    ]
    notes = _notes(data, failures)
    return Page("fedekd study", _kicker(data), hero, [s for s in sections if s.parts], choices, notes)


def _kicker(data: StudyData) -> str:
    datasets = {r["dataset"] for r in data.records}
    seeds = {r["seed"] for r in data.records}
    parts = [f"{len(data.records):,} runs", count(len(datasets), "dataset"), count(len(data.alphas), "split")]
    return " · ".join(["Study", *parts, count(len(data.labels), "method"), count(len(seeds), "seed")])


def _notes(data: StudyData, failures: Sequence[FailureRow]) -> list[str]:
    notes = []
    if left := sum(data.study.left_out.values()):
        notes.append(f"{left:,} runs with other settings are left out.")
    return notes + [f"{note[0].upper()}{note[1:]}." for note in data.study.failed()]


def _headline(data: StudyData, label: str) -> dict[str, Any]:
    """How many cells a method helps and harms by their paired intervals, and the states of all clients."""
    columns = [column for task in data.tasks for column in data.columns(task)]
    cells = [figures for column in columns if (figures := data.delta(label, column))]
    methods = [method for column in columns if (method := data.study.transfer.get((label, column)))]
    verdicts = Counter(cell["verdict"] for cell in cells)
    helps, harms, total = verdicts["helps"], verdicts["harms"], len(cells)
    states = Counter[str]()
    for method in methods:
        states.update(method.states)
    unjudged = [method for method in methods if not method.states]
    worse, runs = sum(method.by_sign for method in unjudged), sum(method.client_runs for method in unjudged)
    clients = [f"Clients against the best alone: {counted(states)}."] if states else []
    clients += [f"By sign alone, {worse:,} of {runs:,} client-runs ended worse than alone."] if unjudged else []
    title = f"{label} helps in {helps} of {total} cells"
    title += " and harms in none" if not harms else f", harms in {harms}"
    seeds = sorted({cell["seeds"] for cell in cells})
    span = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return {
        "title": title,
        "tone": "" if bool(harms) == bool(helps) else "harm" if harms else "help",
        "lines": clients,
        "sure": f"A cell is one dataset and split. It counts as helped or harmed when the 95 % interval of its mean Δ "
        f"against Local over {span} seeds, paired by seed, lies wholly on one side of zero.",
        "figures": [
            (f"{helps} of {total}", "cells helped", "help" if helps else ""),
            (f"{verdicts['undecided'] + verdicts['one seed']} of {total}", "cells undecided", ""),
            (f"{harms} of {total}", "cells harmed", "harm" if harms else ""),
        ],
    }


def _table(table: Table, first: bool) -> Block:
    rows = [(row.heads, [_words(cell) for cell in row.cells]) for row in table.rows]
    content = {"table": table, "rows": rows, "open": first}
    return Block("table.html", content)


def _words(cell: TableCell) -> dict[str, str]:
    def text(value: float, sign: str = "") -> str:
        return number(value, sign).replace("-", "−")

    if cell.share:
        main, small = f"{cell.share[0]}/{cell.share[1]}", ""
    elif cell.mean is None:
        main, small = NOTHING, ""
    elif cell.interval:
        main, small = text(cell.mean, "+"), f"{text(cell.interval[0], '+')} to {text(cell.interval[1], '+')}"
    else:
        main, small = text(cell.mean), f"±{number(cell.std)}" if cell.std is not None else ""
    seeds = f" n={cell.seeds}" if cell.few else ""
    paper = f"({text(cell.paper[0])} ±{number(cell.paper[1])})" if cell.paper else ""
    return {"main": main, "small": small + seeds, "paper": paper, "mark": cell.mark}
