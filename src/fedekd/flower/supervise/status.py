"""``fedekd server status`` and ``fedekd site status``: what the files of a server or a site tell, while it runs or not.

Nothing is asked of the running processes, so that this works as well when they do not.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from fedekd import __version__
from fedekd.errors import FedekdError
from fedekd.flower.settings import ENDED, NO_RESULT, read_server, read_site
from fedekd.flower.setup.certificates import ends_soon, read_certificate
from fedekd.flower.setup.folders import read_object
from fedekd.flower.setup.keys import read_public_keys
from fedekd.flower.site.audit import AUDIT, read_audit
from fedekd.flower.supervise.processes import is_held
from fedekd.flower.supervise.run_server import RENEW
from fedekd.flower.supervise.run_site import CONNECTION, NEW_CA
from fedekd.runs.federation_report import read_report
from fedekd.runs.federation_status import AuditState, ServerState, SiteFederation, SiteState, read_status

LINES = 5  # of a log


def server_status(path: str | Path) -> ServerState:
    server = read_server(path)
    report, federation = read_report(server.state), read_status(server.state)
    keys, unread = read_public_keys(server.nodes)
    running = is_held(server.state)
    for site in federation["sites"].values() if federation and not running else ():
        site["online"] = False  # as it was when the server last wrote
    return {
        "kind": "server",
        "fedekd": __version__,
        "name": server.address,
        "running": running,
        "complete": bool(report and report.complete),
        "federation": federation,
        "away": sorted({file.stem for file in keys} - set(federation["sites"] if federation else ())),
        "certificates": _ends(server.certificate, server.ca),
        "problems": [
            *([f"the federation stopped: {report.error}"] if report and report.error else []),
            *unread.values(),
            *filter(None, [ends_soon(server.certificate, RENEW), ends_soon(server.ca, RENEW)]),
        ],
        "free_bytes": shutil.disk_usage(server.state).free,
        "log": _last_lines(server.state / "log"),
    }


def site_status(path: str | Path) -> SiteState:
    from fedekd.flower.site.pins import Pins

    site = read_site(path)
    running, pins = is_held(site.state), Pins(site.state)
    connection = read_object(site.state / CONNECTION)
    problem = connection.get("problem")
    if not running:
        connection, problem = {}, problem and f"when it last ran: {problem}"
    audit, federations = _audited(site.state)
    offer = pins.offered()
    return {
        "kind": "site",
        "fedekd": __version__,
        "name": site.name,
        "running": running,
        "connected": bool(connection.get("connected")),
        "since": connection.get("since"),
        "federations": federations,
        "audit": audit,
        "refused_joins": pins.refusals(),
        "certificates": _ends(site.ca),
        "problems": [
            *filter(None, [problem, audit["problem"], ends_soon(site.ca, NEW_CA)]),
            *([f"an offer is waiting for your decision: fedekd site accept {path}"] if offer else []),
        ],
        "free_bytes": shutil.disk_usage(site.state).free,
        "log": _last_lines(site.state / "log"),
    }


def _audited(state: Path) -> tuple[AuditState, dict[str, SiteFederation]]:
    """What the audit log tells, as far as it can be believed: of itself, and of each federation."""
    audit: AuditState = {"entries": 0, "last": None, "problem": ""}
    federations: dict[str, SiteFederation] = {}
    try:
        for entry in read_audit(state) if (state / AUDIT).exists() else ():
            audit |= {"entries": entry["number"], "last": entry["time"]}
            asked = entry.get("asked")
            if (
                isinstance(asked, dict)
                and (state / (name := str(asked.get("federation"))) / "agreement.json").is_file()
            ):
                _count(federations.setdefault(name, _federation(state / name)), entry)
    except FedekdError as error:
        audit["problem"] = str(error)
    return audit, federations


def _federation(folder: Path) -> SiteFederation:
    try:
        terms = json.loads(read_object(folder / "agreement.json").get("terms", "{}"))
    except ValueError:
        terms = {}
    return {
        "method": terms.get("method"),
        "rounds": terms.get("rounds"),
        "aggregation": terms.get("aggregation", "plain"),
        "visits": 0,
        "last": None,
        "answer": None,
        "failures": 0,
        "bytes_up": 0,
        "bytes_down": 0,
        "epsilon": read_object(folder / "spent.json").get("epsilon"),
        "complete": (folder / ENDED).exists(),
        "result": (folder / "report.json").exists() and _text(folder / ENDED) != NO_RESULT,
    }


def _count(federation: SiteFederation, entry: dict[str, Any]) -> None:
    federation["last"], federation["answer"] = entry["time"], entry["answer"]
    federation["failures"] += entry["answer"] != "done"
    federation["bytes_up"] += sum(one["bytes"] for one in entry["left"]["exchanged"])
    federation["bytes_down"] += sum(one["bytes"] for one in entry["received"])
    if entry["event"] == "visit" and entry["answer"] == "done":
        federation["visits"] = entry["asked"]["visit"] + 1


def _ends(*paths: Path) -> dict[str, float]:
    return {str(path): read_certificate(path).not_valid_after_utc.timestamp() for path in paths}


def _last_lines(path: Path) -> list[str]:
    return _text(path).splitlines()[-LINES:]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
