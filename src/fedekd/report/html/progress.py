"""The page of a federation of real sites that is still going on."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from fedekd.report.html.section import Block, Page, Section, Variants
from fedekd.report.monitoring import HEADS, site_rows
from fedekd.runs.federation_report import SECURE
from fedekd.runs.federation_status import FederationStatus
from fedekd.units import count, duration, volume

TITLES = ["state", *HEADS[1:-1], "last error"]


def progress_page(status: FederationStatus) -> Page:
    sites = status["sites"].values()
    secure = status.get("aggregation") == SECURE
    when = datetime.fromtimestamp(status["updated"], UTC)
    hero = {
        "title": f"{status['done']} of {status['visits']} visits are done",
        "tone": "",
        "lines": [
            f"Now: {status['stage']}, for {duration(max(0.0, time.time() - status['began']))}; a site has "
            f"{duration(status['deadline'])} to answer. The server told this on {when:%Y-%m-%d at %H:%M:%S} UTC.",
            *(["The server sees only sums of what sites send (secure aggregation)."] if secure else []),
            "Whether joining helped is known after the last visit.",
        ],
        "sure": "",
        "figures": [
            (f"{sum(site['online'] for site in sites)} of {len(sites)}", "sites connected", ""),
            (volume(sum(site["bytes_up"] for site in sites)), "sent by the sites", ""),
            (volume(sum(site["bytes_down"] for site in sites)), "sent to the sites", ""),
        ],
    }
    refused: dict[str, str] = {}
    for one in status["refused"]:
        place = f"visit {one['visit'] + 1}, {one['site']}"
        refused[place] = "; ".join(filter(None, [refused.get(place), one["reason"]]))
    table = {"title": "Site by site", "heads": ["site"], "columns": [("", head) for head in TITLES], "notes": []}
    rows = [
        ([name], [{"main": c, "small": "", "paper": "", "mark": ""} for c in row]) for name, row in site_rows(status)
    ]
    sections = [
        Section("sites", "The sites", [Block("table.html", {"table": table, "rows": rows, "open": True})]),
        Section(
            "answers",
            "Answers that did not count",
            [Block("settings.html", {"": refused or {"none": "every answer counted so far"}})],
        ),
    ]
    parts = ["Federation", count(len(sites), "site"), f"{count(status['rounds'], 'round')} of {status['method']}"]
    return Page("Federation: how far it is", " · ".join(parts), Variants((), {"": hero}, ""), sections, ())
