"""How figures for a manuscript look: the report's palette, small type, fonts in the file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from fedekd.report.palette import LIGHT

COLUMN, PAGE = 3.4, 7.0  # inches: one column, and the whole width of a page
EFFECTS = {"helped": ("^", LIGHT["help"]), "same": ("o", LIGHT["muted"]), "harmed": ("v", LIGHT["harm"])}
MARKERS = ("o", "s", "^", "D", "P")
AMOUNTS = LinearSegmentedColormap.from_list("amounts", [LIGHT["low"], LIGHT["high"]])
SIDES = LinearSegmentedColormap.from_list("sides", [LIGHT["harm"], LIGHT["low"], LIGHT["help"]])
SETTINGS: Any = {
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "fedekd",
    "text.parse_math": False,  # a dollar sign in a client's name is one
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LIGHT["muted"],
    "axes.labelcolor": LIGHT["ink"],
    "xtick.color": LIGHT["soft"],
    "ytick.color": LIGHT["soft"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.6,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.06,
    "savefig.dpi": 300,
}


@contextmanager
def styled() -> Iterator[None]:
    with matplotlib.rc_context(SETTINGS):
        yield


def figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    sheet = Figure(figsize=(width, height))
    return sheet, list(sheet.subplots(rows, columns, squeeze=False).flat)


def encoded(sheet: Figure, format: str) -> bytes:
    """The file's content, the same bytes for the same figure."""
    date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(format, {})
    file = io.BytesIO()
    sheet.savefig(file, format=format, metadata=date)
    return file.getvalue()


def listed(axes: Axes, names: list[str]) -> None:
    """A vertical axis of names, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
