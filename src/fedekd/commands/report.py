"""fedekd report: one HTML page about a run, a study or a federation of real sites."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedekd.commands.parser import add_choices, command
from fedekd.errors import FedekdError


def add(commands: Any) -> None:
    report = command(commands, "report", write_report, "write one HTML page about a run, a study or a real federation")
    report.add_argument(
        "folder", metavar="DIR", help="the results folder of a run or a study, or a server's or a site's folder"
    )
    report.add_argument("other", metavar="DIR2", nargs="?", help="another run: show what differs between the two")
    report.add_argument(
        "--out", metavar="FILE",
        help="the file to write, .html or .pdf (default: report.html in DIR; for two runs difference.html; for a real "
        "site none, and its numbers are printed)",
    )  # fmt: skip
    report.add_argument("--site", metavar="NAME", help="write a printable page for this site of a run, site-NAME.html")
    report.add_argument(
        "--thumbnails", action="store_true",
        help="show training samples the gate distrusts: rows, labels, and pictures if `run --thumbnails` kept them",
    )  # fmt: skip
    add_choices(report)


def write_report(given: argparse.Namespace) -> None:
    from fedekd.report.page import write_difference, write_handout, write_page

    folder, out = Path(given.folder), Path(given.out) if given.out else None
    if given.other is not None:
        if given.site is not None or given.thumbnails or given.best_of:
            raise FedekdError("two runs are compared as a whole: leave out --site, --thumbnails and --best-of")
        print(write_difference(folder, given.other, out, given.chosen_by))
        return
    if given.site is not None:
        if given.best_of:
            raise FedekdError("--best-of is for the page of a study: leave out --site")
        if (folder / "server.toml").exists() or (folder / "site.toml").exists():
            raise FedekdError(
                "--site is for a run; a real site's page is made from its own folder: fedekd report DIR --out FILE"
            )
        print(write_handout(folder, given.site, out, given.chosen_by))
        return
    how = {"thumbnails": given.thumbnails, "chosen_by": given.chosen_by, "best_of": given.best_of}
    if (folder / "results.jsonl").exists():
        print(write_page(folder, out, **how))
        return
    from fedekd.flower.setup.folders import server_state, site_state
    from fedekd.flower.supervise.processes import is_held
    from fedekd.report.page import write_federation

    state, own = server_state(folder), site_state(folder)
    if (state or own) and (given.chosen_by or given.best_of):
        raise FedekdError("a real site chooses when its federation ends, by chosen_by in its site.toml")
    if (state or own) and given.thumbnails:
        raise FedekdError("--thumbnails is for the page of a run: a real site's page shows no rows")
    if state is not None:
        print(write_federation(state, out, running=is_held(state)))
    elif own is not None:
        _tell_site(own, out)
    else:
        print(write_page(folder, out, **how))


def _tell_site(state: Path, out: Path | None) -> None:
    """Print a site's own numbers for each federation: there is nobody to compare it with. Or one page of the newest."""
    from fedekd.flower.setup.folders import site_reports
    from fedekd.report.federation import own_numbers
    from fedekd.report.page import write_own
    from fedekd.runs.federation_report import site_report

    found = site_reports(state)
    if out:
        print(write_own(found[-1].parent, out))
        return
    for path in found:
        if own := site_report(path.parent):
            print(f"{own_numbers(own)}\n  {path}")
