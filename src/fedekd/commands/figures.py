"""fedekd figures: the report's charts as files for a manuscript."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedekd.commands.parser import command


def add(commands: Any) -> None:
    figures = command(commands, "figures", draw_figures, "write the report's charts as files for a manuscript")
    figures.add_argument("folder", metavar="DIR", help="the results folder of a run or a study")
    figures.add_argument("--format", default="pdf", choices=["pdf", "svg", "png"], help="(default: pdf)")
    figures.add_argument("--out", metavar="DIR", help="the folder to write to (default: figures in DIR)")
    figures.add_argument("--method", metavar="NAME", help="for charts of one method (default: fedekd, or the first)")
    figures.add_argument("--seed", type=int, metavar="N", help="for charts of one seed (default: the first)")


def draw_figures(given: argparse.Namespace) -> None:
    from fedekd.report.figures import write_figures

    out = Path(given.out) if given.out else None
    for path in write_figures(given.folder, given.format, out, given.method, given.seed):
        print(path)
