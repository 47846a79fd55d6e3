"""A chart as the page carries it: a Vega-Lite specification, its rows, and the words beside it.

A specification names colours by their role (``$help``); the page puts in those of its theme. Rows come in variants,
one for each combination of the reader's choices that the chart follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedekd.report.palette import SERIES, SHAPES
from fedekd.runs.verdict_text import STATES
from fedekd.units import Unit
from fedekd.verdicts import Verdict

Row = dict[str, Any]
Spec = dict[str, Any]
MOST = 40  # clients that a chart shows one by one
PAPER_MARK = {
    "type": "point", "shape": "diamond", "filled": True, "fill": "$surface", "stroke": "$ink", "size": 70, "opacity": 1,
    "strokeWidth": 1.5,
}  # fmt: skip
"""◇, which stands for the paper's figure in every chart."""


@dataclass(frozen=True)
class Choice:
    """Something the reader picks; its options are known to the charts by their number."""

    name: str
    label: str
    options: tuple[str, ...]
    first: int = 0


@dataclass(frozen=True)
class ChartColumn:
    """A column of the table behind a chart; ``format`` as in d3, none for text."""

    field: str
    title: str
    format: str = ""
    index: int | None = None  # which element, where the field is a list


@dataclass(frozen=True)
class Chart:
    id: str
    title: str
    about: str
    spec: Spec
    columns: Sequence[ChartColumn]
    rows: Mapping[str, Sequence[Row]]
    follows: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()  # choices that change only what is drawn strongly
    notes: Mapping[str, str] = field(default_factory=dict)
    empty: str = "There is nothing to draw here."
    open: bool = False  # whether its table is shown from the start
    half: bool = False  # two stand side by side where there is room
    small: str = ""  # what must be known to be exact, below the chart
    hint: str = ""  # what a reader of the page can do, which is not for a printed figure
    name: str = ""  # of its file among the figures, where that is not its id

    def data(self) -> dict[str, Any]:
        """What the page's script needs; rows as lists, since names of fields would weigh more than the figures."""
        fields = list(dict.fromkeys(name for rows in self.rows.values() for row in rows[:1] for name in row))
        return {
            "spec": {"description": f"{self.title}. {self.about} {self.small}".rstrip(), **self.spec},
            "fields": fields,
            "rows": {key: [[_plain(row[f]) for f in fields] for row in rows] for key, rows in self.rows.items()},
            "columns": [vars(column) for column in self.columns],
            "follows": self.follows,
            "marks": self.marks,
            "notes": dict(self.notes),
        }


def variant(*numbers: int) -> str:
    return "|".join(map(str, numbers))


def _plain(value: Any) -> Any:
    """Six digits are more than any chart or table shows; JSON knows neither NaN nor infinity."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


# --- parts of specifications -------------------------------------------------------------------------------


def tooltip(columns: Iterable[ChartColumn]) -> list[Spec]:
    return [
        {"field": c.field, "title": c.title, **({"format": c.format} if c.format else {})}
        for c in columns
        if c.index is None
    ]


EFFECTS = ("helped", "equivalent", "undecided", "harmed")


def effect_colour() -> Spec:
    return {
        "field": "effect",
        "type": "nominal",
        "scale": {"domain": EFFECTS, "range": ["$help", "$muted", "$muted", "$harm"]},
        "legend": None,
    }


def effect_shape() -> Spec:
    scale = {"domain": EFFECTS, "range": ["triangle-up", "square", "circle", "triangle-down"]}
    return {**effect_colour(), "scale": scale}


NO_VERDICT = "no verdict"
DOMAIN = (*STATES.values(), NO_VERDICT)


def state_of(verdict: Verdict | None) -> str:
    return STATES[verdict.state] if verdict else NO_VERDICT


def state_colour(legend: bool = False) -> Spec:
    """Colour is for what is clear."""
    return {
        "field": "state",
        "type": "nominal",
        "scale": {"domain": DOMAIN, "range": ["$harm", "$help", "$muted", "$muted", "$muted"]},
        "legend": {"title": None, "orient": "top", "values": list(STATES.values())} if legend else None,
    }


def state_shape(legend: bool = False) -> Spec:
    scale = {"domain": DOMAIN, "range": ["triangle-down", "triangle-up", "square", "circle", "circle"]}
    return {**state_colour(legend), "scale": scale}


def zero_line(channel: str = "x") -> Spec:
    other = "y" if channel == "x" else "x"
    return {
        "data": {"values": [{}]},
        "mark": {"type": "rule", "color": "$ink", "strokeWidth": 1, "tooltip": None, "aria": False},
        "encoding": {channel: {"datum": 0}, other: None},
    }


def lines_of(field: str | int, step: int) -> Spec:
    """A height of one step for each value of the field, or for so many; set by the page's script, since Vega-Lite warns
    when it works out a height itself."""
    return {"usermeta": {"step": step, "rows": field}}


def names(field: str, **axis: Any) -> Spec:
    """A vertical axis of names in the order of the rows. Its title is not written over the longest ones."""
    plain = {"title": None, "ticks": False, "domain": False, "labelLimit": 220, "maxExtent": 240}
    return {"field": field, "type": "nominal", "sort": None, "axis": {**plain, **axis}}


def slant(labels: Sequence[str]) -> int:
    """The angle of names above columns: level where they have room on a phone, too."""
    longest = max(map(len, labels), default=0)
    return 0 if longest <= 3 or longest * len(labels) <= 24 else -35


SIZES = "datum.value ? replace(format(datum.value, '~s'), regexp('([a-zA-Z]?)$'), ' $1B') : '0'"  # of an axis of bytes


def shapes(names: Sequence[str]) -> Spec:
    return {"domain": names, "range": [SHAPES[i % len(SHAPES)] for i in range(len(names))]}


def colours(names: Sequence[str]) -> Spec:
    return {"domain": names, "range": [f"${SERIES[i % len(SERIES)]}" for i in range(len(names))]}


ROUNDS: Spec = {
    "field": "round",
    "type": "ordinal",
    "title": "round",
    "axis": {"labelAngle": 0, "labelOverlap": True},
}


def shades(field: str, title: str, format: str, most: str = "$high") -> Spec:
    """A quantity from nothing to much, by lightness alone; up to ``$cell`` it can be written on."""
    return {
        "field": field,
        "type": "quantitative",
        "scale": {"range": ["$low", most], "domainMin": 0},
        "legend": {"title": title, "format": format, "orient": "top", "gradientLength": 140},
    }


@dataclass(frozen=True)
class MetricScale:
    """A metric as charts show it: shares in percent, differences of them in points."""

    unit: Unit

    @property
    def factor(self) -> float:
        return 100.0 if self.unit.percent else 1.0

    @property
    def value(self) -> str:
        return f".{min(self.unit.decimals, 7)}f"

    @property
    def delta(self) -> str:
        return "+" + self.value

    @property
    def value_title(self) -> str:
        return f"{self.unit.name}, %" if self.unit.percent else self.unit.name

    @property
    def delta_title(self) -> str:
        return "Δ, points" if self.unit.percent else f"Δ of {self.unit.name}"

    def ways(self, title: str) -> str:
        """The title of an axis of differences, with which way is better."""
        return f"{title} ({'worse ← → better' if self.unit.higher_is_better else 'better ← → worse'})"

    @property
    def interval_columns(self) -> list[ChartColumn]:
        return [ChartColumn("low", "95 % from", self.delta), ChartColumn("high", "95 % to", self.delta)]

    def stretched(self, deltas: Iterable[float]) -> Spec:
        """Linear, or stretched near zero where a few differences dwarf the rest."""
        sizes = sorted(abs(d) for d in deltas if math.isfinite(d) and d)
        if not sizes or sizes[-1] < 12 * sizes[len(sizes) // 2]:
            return {"nice": True}
        return {"type": "symlog", "constant": sizes[len(sizes) // 2], "nice": True}
