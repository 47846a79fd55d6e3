"""Tables of figures over seeds, and how they are written: Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from fedekd.errors import unknown

DECIMALS = 4
NOTHING = "–"
FIELDS = (
    "table", "row", "label", "group", "column", "mean", "std", "low", "high", "count", "of", "seeds", "mark",
    "paper_mean", "paper_std", "difference",
)  # fmt: skip


@dataclass(frozen=True)
class TableCell:
    """One figure: a mean over seeds with its deviation or its interval, or a count; or nothing."""

    mean: float | None = None
    std: float | None = None
    interval: tuple[float, float] | None = None
    share: tuple[int, int] | None = None
    seeds: int = 0
    few: bool = False  # fewer seeds than the table's other cells
    mark: str = ""  # best or second
    paper: tuple[float, float] | None = None  # its mean and deviation
    scaled: bool = True  # whether it is in the table's unit


@dataclass(frozen=True)
class TableRow:
    heads: tuple[str, ...]
    label: str  # the method as runs call it
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    heads: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]  # (group, name)
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    percent: bool = False  # its figures are shares, which the page shows in percent and points


def ranked(rows: Sequence[TableRow], better: Callable[[TableCell], float | None]) -> tuple[TableRow, ...]:
    """The rows with each column's best and second marked; figures that read the same share a mark.

    ``better`` gives what is larger for a better cell, or None for one that does not compete; nor does one seed.
    """
    marked = [list(row.cells) for row in rows]
    for column in range(len(rows[0].cells) if rows else 0):
        found = [better(cell) if cell.seeds > 1 else None for cell in (row.cells[column] for row in rows)]
        values = [None if v is None or math.isnan(v) else v for v in found]
        places = sorted({round(v, DECIMALS) for v in values if v is not None}, reverse=True)
        if sum(v is not None for v in values) < 2:
            continue
        for i, value in enumerate(values):
            if value is not None and (place := places.index(round(value, DECIMALS))) < 2:
                marked[i][column] = replace(marked[i][column], mark=("best", "second")[place])
    return tuple(replace(row, cells=tuple(cells)) for row, cells in zip(rows, marked, strict=True))


def select(tables: Sequence[Table], only: str) -> list[Table]:
    """The table of that name, or those whose name or title contains ``only``."""
    found = [table for table in tables if table.name == only]
    found = found or [table for table in tables if only.lower() in f"{table.name} {table.title}".lower()]
    if not found:
        raise unknown("table", only, [table.name for table in tables])
    return found


def render(tables: Sequence[Table], format: str = "markdown") -> str:
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    return FORMATS[format](tables)


def number(value: float, sign: str = "", decimals: int = DECIMALS) -> str:
    """A number with so many decimals; never a negative zero."""
    rounded = round(value, decimals)
    return f"{rounded:{sign}.{decimals}f}" if rounded else f"{0:.{decimals}f}"


# --- Markdown --------------------------------------------------------------------------------------------


def _markdown(tables: Sequence[Table]) -> str:
    return "\n\n".join(_markdown_table(table) for table in tables) + "\n"


def _markdown_table(table: Table) -> str:
    header = [*table.heads, *(" ".join(filter(None, column)) for column in table.columns)]
    body = [[*row.heads, *map(_markdown_cell, row.cells)] for row in table.rows]
    widths = [max(len(line[i]) for line in (header, *body)) for i in range(len(header))]
    rule = ["-" * w if i < len(table.heads) else "-" * (w - 1) + ":" for i, w in enumerate(widths)]

    def line(cells: Sequence[str]) -> str:
        heads = len(table.heads)
        padded = [c.ljust(w) if i < heads else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return f"| {' | '.join(padded)} |"

    notes = [f"- {note}" for note in table.notes]
    return "\n".join(
        [f"### {table.title}", f"`{table.name}`", "", line(header), line(rule), *map(line, body), "", *notes]
    )


def _markdown_cell(cell: TableCell) -> str:
    if cell.share:
        text = f"{cell.share[0]}/{cell.share[1]}"
    elif cell.mean is None:
        text = NOTHING
    elif cell.interval:
        text = f"{number(cell.mean, '+')} [{number(cell.interval[0], '+')}, {number(cell.interval[1], '+')}]"
    else:
        text = number(cell.mean) + (f"±{number(cell.std)}" if cell.std is not None else "")
    text = {"best": f"**{text}**", "second": f"<u>{text}</u>"}.get(cell.mark, text)
    if cell.few:
        text += f" n={cell.seeds}"
    return f"{text} ({number(cell.paper[0])}±{number(cell.paper[1])})" if cell.paper else text


# --- LaTeX -----------------------------------------------------------------------------------------------

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$",
    "Δ": r"$\Delta$", "α": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "±": r"$\pm$", "–": "--", "½": r"$1/2$",
}  # fmt: skip


def _latex(tables: Sequence[Table]) -> str:
    return "% \\usepackage{booktabs,graphicx}\n" + "\n\n".join(_latex_table(table) for table in tables) + "\n"


def _latex_table(table: Table) -> str:
    groups = [(name, len(list(some))) for name, some in groupby(group for group, _ in table.columns)]
    heads = len(table.heads)
    notes = (f"{note[:1].upper()}{note[1:].removesuffix('.')}." for note in table.notes)
    caption = " ".join((f"{table.title}.", *notes))
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{_escaped(caption)}}}",
        rf"\label{{tab:{table.name}}}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{'l' * heads}{'c' * len(table.columns)}}}",
        r"\toprule",
    ]
    if any(name for name, _ in groups):
        spans = [rf"\multicolumn{{{size}}}{{c}}{{{_escaped(name)}}}" for name, size in groups]
        lines.append(" & ".join([*[""] * heads, *spans]) + r" \\")
        start = heads + 1
        for _, size in groups:
            lines.append(rf"\cmidrule(lr){{{start}-{start + size - 1}}}")
            start += size
    lines.append(" & ".join(_escaped(name) for name in (*table.heads, *(name for _, name in table.columns))) + r" \\")
    lines.append(r"\midrule")
    for row in table.rows:
        lines.append(" & ".join([*map(_escaped, row.heads), *map(_latex_cell, row.cells)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}", r"\end{table}"])


def _escaped(text: str) -> str:
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def _latex_cell(cell: TableCell) -> str:
    if cell.share:
        text = f"{cell.share[0]}/{cell.share[1]}"
    elif cell.mean is None:
        return "--" + _latex_paper(cell)
    else:
        text = number(cell.mean, "+" if cell.interval else "")
    text = rf"\mathbf{{{text}}}" if cell.mark == "best" else text
    if cell.std is not None:
        text += rf"_{{\pm {number(cell.std)}}}"
    if cell.interval:
        text += rf"\;[{number(cell.interval[0], '+')}, {number(cell.interval[1], '+')}]"
    text = rf"\underline{{${text}$}}" if cell.mark == "second" else f"${text}$"
    return text + (f" $n={cell.seeds}$" if cell.few else "") + _latex_paper(cell)


def _latex_paper(cell: TableCell) -> str:
    return rf" (${number(cell.paper[0])}_{{\pm {number(cell.paper[1])}}}$)" if cell.paper else ""


# --- CSV -------------------------------------------------------------------------------------------------


def _csv(tables: Sequence[Table]) -> str:
    """One line for each cell, with unrounded figures."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(FIELDS)
    for table in tables:
        for row in table.rows:
            for (group, column), cell in zip(table.columns, row.cells, strict=True):
                difference = cell.mean - cell.paper[0] if cell.mean is not None and cell.paper else None
                place = (table.name, " ".join(row.heads), row.label, group, column.removeprefix("α="))
                writer.writerow(
                    (
                        *place,
                        cell.mean,
                        cell.std,
                        *(cell.interval or (None, None)),
                        *(cell.share or (None, None)),
                        cell.seeds,
                        cell.mark,
                        *(cell.paper or (None, None)),
                        difference,
                    )
                )
    return file.getvalue()


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {"markdown": _markdown, "latex": _latex, "csv": _csv}
