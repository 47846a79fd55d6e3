"""The page of a federation of real sites that is still going on."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import cast

from fedekd.report.html.federation import refusals
from fedekd.report.html.section import Block, Headline, Page, Section, Variants, cell, table
from fedekd.report.monitoring import HEADS, site_rows
from fedekd.runs.federation_report import SECURE
from fedekd.runs.federation_status import FederationStatus
from fedekd.units import count, duration, volume

TITLES = ["state", *HEADS[1:-1], "last error"]


def progress_page(status: FederationStatus, running: bool = True) -> Page:
    if not running:  # what it last wrote of its connections is no longer so
        away = {name: {**site, "online": False} for name, site in status["sites"].items()}
        status = cast("FederationStatus", {**status, "sites": away})
    sites = status["sites"].values()
    began = f"for {duration(max(0.0, time.time() - status['began']))}; a site has {duration(status['deadline'])}"
    now = (
        f"Now: {status['stage']}, {began} to answer"
        if running
        else f"The server does not run; it was at: {status['stage']}"
    )
    secure = status.get("aggregation") == SECURE
    when = datetime.fromtimestamp(status["updated"], UTC)
    head = Headline(
        f"{status['done']} of {status['visits']} visits are done",
        [
            f"{now}. The server told this on {when:%Y-%m-%d at %H:%M:%S} UTC.",
            *(["The server sees only sums of what sites send (secure aggregation)."] if secure else []),
            "Whether joining helped is known after the last visit.",
        ],
        figures=[
            (f"{sum(site['online'] for site in sites)} of {len(sites)}", "sites connected", ""),
            (volume(sum(site["bytes_up"] for site in sites)), "sent by the sites", ""),
            (volume(sum(site["bytes_down"] for site in sites)), "sent to the sites", ""),
        ],
    )
    rows = [([name], [cell(text) for text in told]) for name, told in site_rows(status)]
    refused = refusals(status["refused"]) or {"none": "every answer that came has counted so far"}
    sections = [
        Section("sites", "The sites", [table("Site by site", ["site"], [("", head) for head in TITLES], rows)]),
        Section("answers", "Answers that did not count", [Block("settings.html", {"": refused})]),
    ]
    parts = ["Federation", count(len(sites), "site"), f"{count(status['rounds'], 'round')} of {status['method']}"]
    return Page("Federation: how far it is", " · ".join(parts), Variants((), {"": head}, ""), sections, ())
