"""Write a folder's report: one file about a run, a study of several datasets and splits, or a federation."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from fedekd.errors import FedekdError
from fedekd.files import write_whole
from fedekd.runs.aggregate import shared_settings
from fedekd.runs.records import Record
from fedekd.runs.results import load
from fedekd.runs.store import read_failures
from fedekd.settings import ChosenBy

if TYPE_CHECKING:
    from fedekd.report.html.run_data import RunData
    from fedekd.report.html.section import Page

KINDS = (".html", ".htm", ".pdf")


def write_page(
    folder: str | Path,
    out: Path | None = None,
    keys: Collection[str] | None = None,
    thumbnails: bool = False,
    chosen_by: ChosenBy | None = None,
    best_of: bool = False,
) -> Path:
    """The report of the results in ``folder``, by default as its ``report.html``.

    ``keys`` names the runs to report on; without them it is all runs, or of one dataset and split those with the
    settings of the latest. ``chosen_by`` is as ``load`` takes it; ``best_of`` gives the tables of a study's page a line
    more for methods with several configurations. No row of the data and none of its labels is in the page, unless
    ``thumbnails`` asks for the training samples that a gate distrusts.
    """
    from fedekd.report.html.render import render

    path = Path(out) if out else Path(folder) / "report.html"
    _write(path, render(make_page(folder, keys, thumbnails, chosen_by, best_of)))
    return path


def write_handout(folder: str | Path, site: str, out: Path | None = None, chosen_by: ChosenBy | None = None) -> Path:
    """One page about one site of a run, by default as ``site-NAME.html`` beside its results."""
    from fedekd.report.html.handout import render_handout

    text = render_handout(_run_data(folder, _one_run(folder, "--site", chosen_by))[0], site)
    path = Path(out) if out else Path(folder) / f"site-{re.sub(r'[^A-Za-z0-9.-]+', '_', site).strip('_')}.html"
    _write(path, text)
    return path


def write_own(folder: Path, out: Path) -> Path:
    """The same page about a real site, from what it keeps of a federation in ``folder``."""
    from fedekd.report.html.handout import render_own
    from fedekd.runs.federation_report import site_report

    own = site_report(folder)
    if own is None:
        raise FedekdError(f"there is no report.json in {folder}")
    day = date.fromtimestamp((folder / "report.json").stat().st_mtime)
    _write(out, render_own(own, folder.name, str(day)))
    return out


def write_difference(
    folder: str | Path, other: str | Path, out: Path | None = None, chosen_by: ChosenBy | None = None
) -> Path:
    """Two runs side by side, by default as ``difference.html`` in the first one's folder."""
    from fedekd.report.html.difference import TwoRuns, difference_page
    from fedekd.report.html.render import render

    folders = (Path(folder), Path(other))
    records = [_one_run(where, "a comparison", chosen_by) for where in folders]
    if len(found := {some[0]["metric"] for some in records}) > 1:
        raise FedekdError(f"one run is in {' and the other in '.join(sorted(found))}: nothing of them can be compared")
    one, two = (_run_data(where, some)[0] for where, some in zip(folders, records, strict=True))
    short = folders[0].name != folders[1].name and all(where.name for where in folders)
    names = (folders[0].name, folders[1].name) if short else (str(folder), str(other))
    path = out or folders[0] / "difference.html"
    _write(path, render(difference_page(TwoRuns(names, (one, two), folders))))
    return path


def _write(path: Path, page: str) -> None:
    """Write the page as HTML, or as PDF if the file's name ends in .pdf."""
    if path.suffix.lower() not in KINDS:
        raise FedekdError(f"cannot write a page to {str(path)!r}; name a file that ends in .html or .pdf")
    if path.suffix.lower() != ".pdf":
        write_whole(path, page.encode())
        return
    from fedekd.report.pdf import pdf_of

    write_whole(path, pdf_of(page))


def _one_run(folder: str | Path, what: str, chosen_by: ChosenBy | None) -> list[Record]:
    records = load(folder, chosen_by).records
    if len({(r["dataset"], r["alpha"]) for r in records}) > 1:
        raise FedekdError(f"{folder} holds several datasets or splits; {what} needs the results of one run")
    return records


def write_federation(state: Path, out: Path | None = None, *, running: bool = True) -> Path:
    """The same for a federation of real sites, from the state that its server keeps."""
    path = out or state / "report.html"
    _write(path, federation_text(state, running=running))
    return path


def federation_text(state: Path, *, running: bool = True) -> str:
    """The page of a federation: what came of it, or how far it is. ``running``: whether its server is."""
    from fedekd.report.html.federation import federation_page
    from fedekd.report.html.progress import progress_page
    from fedekd.report.html.render import render
    from fedekd.runs.federation_report import read_report
    from fedekd.runs.federation_status import read_status

    report = read_report(state)
    if report and report.error:
        raise FedekdError(f"the federation in {state} stopped: {report.error}")
    if report:
        return render(federation_page(report))
    if status := read_status(state):
        return render(progress_page(status, running))
    raise FedekdError(f"the federation in {state} has not begun; its log is {state / 'log'}")


def make_page(
    folder: str | Path,
    keys: Collection[str] | None = None,
    thumbnails: bool = False,
    chosen_by: ChosenBy | None = None,
    best_of: bool = False,
) -> Page:
    results = load(folder, chosen_by)
    records = [r for r in results.records if keys is None or r["key"] in keys]
    replaced = [f"{results.left_out[0].upper()}{results.left_out[1:]}."] if results.left_out and keys is None else []
    if len({(r["dataset"], r["alpha"]) for r in records}) > 1:
        from fedekd.report.html.study import study_page

        page = study_page(records, read_failures(Path(folder)), folder, best_of)
        return replace(page, notes=[*page.notes, *replaced])
    if best_of:
        raise FedekdError(f"--best-of is for the page of a study, and {folder} holds one run; try `fedekd table`")
    from fedekd.report.html.run import run_page

    data, left = _run_data(folder, records)
    notes = [f"{left} runs with other settings in this folder are left out."] if left else []
    return run_page(data, [*notes, *replaced], thumbnails)


def _run_data(folder: str | Path, records: Sequence[Record]) -> tuple[RunData, int]:
    """The data of the runs with the latest settings, and how many runs have others."""
    from fedekd.report.html.run_data import RunData
    from fedekd.runs import details

    latest, left = _latest_settings(records)
    return RunData(latest, details.read(folder, {r["key"] for r in latest}), folder), left


def _latest_settings(records: Sequence[Record]) -> tuple[list[Record], int]:
    """The runs that share the settings of the one that ended last, and how many do not."""
    last = shared_settings(max(records, key=lambda r: r["finished"]))
    kept = [r for r in records if shared_settings(r) == last]
    return kept, len(records) - len(kept)
