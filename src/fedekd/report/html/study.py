"""The page of a study: what it finds of each method, the paper's figures and tables, and how near we are to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedekd.report.html import agreement, heat, study_dots, sweep
from fedekd.report.html.chart import Choice
from fedekd.report.html.section import Block, Cell, Headline, Page, Section, Variants, cell
from fedekd.report.html.study_data import StudyData, alpha_title
from fedekd.report.paper_tables import study_tables
from fedekd.report.table_formats import DECIMALS, NOTHING, Table, TableCell, number
from fedekd.runs.findings import AGAINST, Finding, headline, legend, losses, not_known
from fedekd.runs.records import FailureRow, Record
from fedekd.runs.verdict_text import PART_WORDS, chosen, counted
from fedekd.units import count

SURE = (
    "Clearly: the 95 % interval of the mean over a dataset's clients and splits, paired by seed, lies wholly on one "
    "side of zero."
)


def study_page(records: Sequence[Record], failures: Sequence[FailureRow], folder: str | Path, best_of: bool) -> Page:
    data = StudyData(records, failures, folder, best_of)
    tables = study_tables(data.study, against_paper=data.study.like_paper)
    heads = {str(m): _headline(data, label) for m, label in enumerate(data.compared)}
    nothing = {"": Headline("Nothing to compare yet")}
    hero = Variants(("method",), heads or nothing, str(data.favourite) if heads else "")
    near = agreement.agreement(tables)
    cells = agreement.by_cell(tables, data.compared)
    choices = data.choices()
    if len(data.alphas) > 1:
        choices.append(Choice("alpha", "α", tuple(map(alpha_title, data.alphas))))
    if near:
        choices.append(agreement.quantity_choice(tables))
    maps = [heat.one_method(data, task) for task in data.tasks if data.compared]
    grids = [heat.all_methods(data, task) for task in data.tasks if data.compared]
    pairs = [(task, dataset) for task in data.tasks for dataset in study_dots.datasets(data, task)]
    figures = [study_dots.dots(data, *pair, number=i) for i, pair in enumerate(pairs)]
    runs = f"From {len(data.records):,} runs of {count(len(data.labels), 'method')}."
    sections = [
        Section("findings", "What it gives, and how much of that is federation", [_findings(data)] if heads else []),
        Section("where", "Where does it help?", maps),
        Section("methods", "All methods", grids),
        Section("results", "Results", figures, "For the α that is chosen at the top." if len(data.alphas) > 1 else ""),
        Section("sweeps", "Sensitivity", sweep.sweeps(data)),
        Section("agreement", "Agreement with the paper", [chart for chart in (near, cells) if chart]),
        Section("tables", "Tables", [_table(table, i == 0) for i, table in enumerate(tables)], runs),
    ]
    return Page("fedekd study", _kicker(data), hero, [s for s in sections if s.parts], choices, _notes(data))


def _kicker(data: StudyData) -> str:
    datasets = {r["dataset"] for r in data.records}
    seeds = {r["seed"] for r in data.records}
    sizes = ((len(datasets), "dataset"), (len(data.alphas), "split"), (len(seeds), "seed"))
    return " · ".join(["Study", *(count(*size) for size in sizes)])


def _notes(data: StudyData) -> list[str]:
    notes = []
    if left := sum(data.study.left_out.values()):
        notes.append(f"Left out: {count(left, 'run')} with other settings.")
    return notes + [f"{note[0].upper()}{note[1:]}." for note in data.study.failed()]


def _headline(data: StudyData, label: str) -> Headline:
    """What the study finds of a method over all datasets."""
    own = [one for one in data.study.findings if one.label == label]
    known = {one.direction(part) for one in own for part in AGAINST if part in one.parts}
    notes = [f"{note[0].upper()}{note[1:]}." for note in not_known(own)]
    return Headline(
        headline(own),
        [f"{line}." for line in (losses(own),) if line] + notes,
        tone="" if {1, -1} <= known else "help" if 1 in known else "harm" if -1 in known else "",
        sure=" ".join([SURE, *_states(data, label)]),
    )


def _states(data: StudyData, label: str) -> list[str]:
    """How many clients are in which state against the best alone; nothing if the records lack test rows."""
    states = Counter[str]()
    for (method, _), one in data.study.transfer.items():
        states.update(one.states if method == label else {})
    return [f"Client by client, where the records hold the test rows: {counted(states)}."] if states else []


def _findings(data: StudyData) -> Block:
    """The figures behind the headline, for the chosen method."""
    by = {}
    for m, label in enumerate(data.compared):
        own = [one for one in data.study.findings if one.label == label]
        parts = [part for part in PART_WORDS if any(part in one.parts for one in own)]
        rows = [(one.title, [_figure(one, part) for part in parts]) for one in own]
        sentences = [one.sentence() for one in own]
        by[str(m)] = {"heads": [PART_WORDS[part] for part in parts], "rows": rows, "sentences": sentences}
    content = {"follows": ("method",), "by": by, "first": str(data.favourite)}
    choice, menu = data.study.chosen_by, any("gain" in one.parts for one in data.study.findings)
    how = f" Each client's best alone is chosen {chosen(choice)}." if choice != "metric" and menu else ""
    told = legend({part for one in data.study.findings for part in one.parts})
    about = f"{told}{how} Accuracy and other shares in points; of errors less is better."
    return Block("findings.html", content, "Dataset by dataset", about)


def _figure(one: Finding, part: str) -> tuple[str, str, str]:
    mark = {1: "helped", -1: "harmed", 0: ""}[one.direction(part)] if part in one.parts else ""
    return one.mean(part), one.interval(part), mark


def _table(table: Table, first: bool) -> Block:
    rows = [(row.heads, [_words(one, table.percent) for one in row.cells]) for row in table.rows]
    counts = all(one.share for row in table.rows for one in row.cells if one.mean is not None or one.share)
    unit = ("in %" if "Mean client" in table.title else "in points",) if table.percent and not counts else ()
    content = {"table": replace(table, notes=(*unit, *table.notes)), "rows": rows, "open": first}
    return Block("table.html", content)


def _words(one: TableCell, percent: bool) -> Cell:
    """A cell's text: shares in percent as elsewhere on the page, with the digits that ``fedekd table`` prints."""
    factor, decimals = (100, DECIMALS - 2) if percent and one.scaled else (1, DECIMALS)

    def text(value: float, sign: str = "") -> str:
        return number(factor * value, sign, decimals).replace("-", "−")

    if one.share:
        main, small = f"{one.share[0]}/{one.share[1]}", ""
    elif one.mean is None:
        main, small = NOTHING, ""
    elif one.interval:
        main, small = text(one.mean, "+"), f"{text(one.interval[0], '+')} to {text(one.interval[1], '+')}"
    else:
        main, small = text(one.mean), f"±{text(one.std)}" if one.std is not None else ""
    seeds = f" n={one.seeds}" if one.few else ""
    paper = f"({text(one.paper[0])} ±{text(one.paper[1])})" if one.paper else ""
    return cell(main, small + seeds, one.mark, paper)
