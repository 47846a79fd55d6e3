"""The parts of a page in their order: sections that hold charts and blocks of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedekd.report.html.chart import Chart, Choice


@dataclass(frozen=True)
class Block:
    """Something that is not a chart, written by a template of its own."""

    template: str
    content: Any
    title: str = ""
    about: str = ""


Cell = dict[str, str]


def cell(main: str, small: str = "", mark: str = "", paper: str = "") -> Cell:
    """Of a table: its figure or words, what stands smaller beside it, its CSS class, and the paper's figure below."""
    return {"main": main, "small": small, "paper": paper, "mark": mark}


def table(
    title: str,
    heads: Sequence[str],
    columns: Sequence[tuple[str, str]],
    rows: Sequence[tuple[Sequence[str], Sequence[Cell]]],
    notes: Sequence[str] = (),
) -> Block:
    """``heads`` are above each row's own, ``columns`` (group and name) above its cells."""
    about = {"title": title, "heads": heads, "columns": columns, "notes": notes}
    return Block("table.html", {"table": about, "rows": rows, "open": True})


@dataclass(frozen=True)
class Variants:
    """What a block says for each combination of the reader's choices."""

    follows: tuple[str, ...]
    by: Mapping[str, Any]
    first: str
    otherwise: str = ""  # where a combination has nothing of its own


@dataclass(frozen=True)
class Headline:
    title: str
    lines: Sequence[str] = ()  # below the title
    tone: str = ""  # help or harm, where that is clear
    sure: str = ""  # how sure that is
    figures: Sequence[tuple[str, str, str]] = ()  # each with what it is and its tone
    use: Sequence[str] = ()  # what to do


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    parts: Sequence[Chart | Block]
    intro: str = ""


@dataclass(frozen=True)
class Page:
    title: str
    kicker: str  # what was run, in one line
    hero: Variants
    sections: Sequence[Section]
    choices: Sequence[Choice]
    notes: Sequence[str] = field(default_factory=tuple)

    def charts(self) -> list[Chart]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Chart)]
