"""The report's charts as files for a manuscript: PDF, SVG or PNG."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedekd.errors import FedekdError, unknown
from fedekd.files import write_whole
from fedekd.report.page import is_study, latest_settings
from fedekd.runs.results import load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")


def write_figures(
    folder: str | Path, format: str = "pdf", out: Path | None = None, method: str | None = None, seed: int | None = None
) -> list[Path]:
    """Draw everything the folder's results give something for; ``method`` and ``seed`` are for charts of one run."""
    from fedekd.report.drawings.style import encoded, styled

    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    target = Path(out) if out else Path(folder) / "figures"
    paths = []
    with styled():
        for name, sheet in _figures(Path(folder), method, seed):
            path = target / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}.{format}"
            write_whole(path, encoded(sheet, format))
            paths.append(path)
    return paths


def _figures(folder: Path, method: str | None, seed: int | None) -> Iterator[tuple[str, Figure]]:
    records = load(folder).records
    if is_study(records):
        from fedekd.report.drawings.study import study_figures
        from fedekd.report.html.study_data import StudyData

        if method is not None or seed is not None:
            raise FedekdError("--method and --seed are for the figures of one run; a study's figures hold them all")
        yield from study_figures(StudyData(records))
        return
    from fedekd.report.drawings.run import run_figures
    from fedekd.report.html.run_data import RunData
    from fedekd.runs import details

    latest, _ = latest_settings(records)
    data = RunData(latest, details.read(folder, {r["key"] for r in latest}))
    if method is not None and method not in data.compared:
        raise unknown("method in these results", method, data.compared)
    if seed is not None and seed not in data.seeds:
        raise FedekdError(f"no seed {seed} in these results; there are {', '.join(map(str, data.seeds))}")
    chosen = data.compared.index(method) if method is not None else data.favourite
    yield from run_figures(data, chosen, 0 if seed is None else data.seeds.index(seed))
