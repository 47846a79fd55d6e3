"""fedekd report: one HTML page about a run or a study."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedekd.commands.parser import command


def add(commands: Any) -> None:
    report = command(commands, "report", write_report, "one HTML page about a run or a study, for any browser")
    report.add_argument("folder", metavar="DIR", help="where a run or a study has left its results")
    report.add_argument("--out", metavar="FILE", help="(default: report.html in DIR)")


def write_report(given: argparse.Namespace) -> None:
    from fedekd.report.page import write_page

    print(write_page(given.folder, Path(given.out) if given.out else None))
