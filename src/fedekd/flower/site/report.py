"""What a site has at the end: its numbers and its model on its own disk, and the part of the numbers that leaves."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from fedekd.engines.client import Client
from fedekd.flower.protocol.wire import Word
from fedekd.flower.saved_state import write_text
from fedekd.flower.settings import SiteSettings
from fedekd.metrics import sample_interval
from fedekd.runs import saved_models

log = logging.getLogger("fedekd.site")


def finish(site: SiteSettings, folder: Path, method: str, client: Client, local: Client) -> dict[str, Word]:
    """Write ``report.json`` and two models for `fedekd export`, the private and the one trained alone.

    Returns what is shared. The client is to be as it answers: see ``Client.personalised``.
    """
    with client.personalised(), local.personalised():  # measured and kept after one and the same training
        return _finish(site, folder, method, client, local)


def _finish(site: SiteSettings, folder: Path, method: str, client: Client, local: Client) -> dict[str, Word]:
    value, alone, metric = client.score(), local.score(), client.task.metric
    counts = {f"n_{split}": len(client.rows[split]) for split in ("train", "val", "test")}
    own: dict[str, Any] = {"local": alone, "value": value, "delta": value - alone, **counts}
    privacy = getattr(client, "privacy", None)
    interval = sample_interval(client.errors().tolist(), local.errors().tolist(), client.task.higher_is_better)
    sure: dict[str, Word] = dict(zip(("low", "high"), interval, strict=True)) if interval else {}
    whole = {"name": site.name, "method": method, "metric": metric, **own, **sure, "privacy": privacy}
    write_text(folder / "report.json", json.dumps(whole, indent=1) + "\n")
    result = {"metric": metric, "clients": [{"id": site.name, **own}]}
    if client.models:
        saved_models.write(folder, {"key": folder.name, "label": method, **result}, 0, client)
    if method != "local":  # what a site that was harmed goes back to
        result["clients"] = [{"id": site.name, **own, "value": alone, "delta": 0.0}]
        saved_models.write(folder, {"key": f"{folder.name}-local", "label": "local", **result}, 0, local)
    log.info(
        "%s on this site's test rows: alone %.4g, with the federation %.4g, difference %+.4g%s",
        *(metric, alone, value, value - alone),
        " (95 %: {:+.4g} to {:+.4g})".format(*interval) if interval else "",
    )
    words: dict[str, Word] = {}
    if "n" in site.share:
        words["n"] = counts["n_train"]
    if "metric" in site.share:
        words |= {"metric": metric, "local": alone, "value": value}
    if "delta" in site.share:
        words |= {"metric": metric, "delta": value - alone, **sure}
    if privacy:
        words["privacy"] = json.dumps(privacy)
    return words
