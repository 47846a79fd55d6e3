"""The status of a server or a site, as lines for a person and as metrics for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from fedekd.runs.federation_report import SECURE
from fedekd.runs.federation_status import FederationStatus, ServerState, SiteFederation, SiteState
from fedekd.units import count, duration, volume

GAUGE, COUNTER = "gauge", "counter"
Sample = tuple[str, str, str, dict[str, str], float | int | bool | None]  # name, kind, help, labels, value


def lines(status: ServerState | SiteState) -> Iterator[str]:
    running = "running" if status["running"] else "not running"
    yield f"{status['kind']} {status['name']}: {running}, fedekd {status['fedekd']}"
    yield from _of_server(status) if status["kind"] == "server" else _of_site(status)
    for path, end in status["certificates"].items():
        yield f"certificate {path} is valid until {datetime.fromtimestamp(end, UTC):%Y-%m-%d}"
    yield f"disk: {volume(status['free_bytes'])} free"
    for problem in status["problems"]:
        yield f"PROBLEM: {problem}"
    if status["log"]:
        yield "last lines of its log:"
        yield from (f"  {line}" for line in status["log"])


def _of_server(status: ServerState) -> Iterator[str]:
    federation = status["federation"]
    if federation is None:
        yield "the federation has not begun"
    else:
        done = f"{federation['done']} of {federation['visits']} visits done"
        about = f"{count(federation['rounds'], 'round')} of {federation['method']}{_secure(federation)}"
        yield f"federation {federation['federation']}: {about}"
        now = "complete" if federation["complete"] else f"{federation['stage']}, for {_ago(federation['began'])}"
        yield f"{done}; {now}; told {_ago(federation['updated'])} ago"
        for name, cells in site_rows(federation):
            told = [f"{head} {cell}".strip() for head, cell in zip(HEADS, cells, strict=True) if cell]
            yield f"  {name}: {', '.join(told)}"
    if status["away"]:
        yield f"may join and never has: {', '.join(status['away'])}"


HEADS = ("", "answered", "last", "took", "up", "down", "epsilon", "fedekd", "last error:")


def site_rows(federation: FederationStatus) -> Iterator[tuple[str, list[str]]]:
    """For each site, what belongs under ``HEADS``; empty where there is nothing to tell."""
    for name, site in sorted(federation["sites"].items()):
        yield (
            name,
            [
                "connected" if site["online"] else "away",
                f"{site['counted']} of {federation['done']} visits",
                f"{_ago(site['answered'])} ago" if site["answered"] else "never",
                duration(site["seconds"]) if site["seconds"] is not None else "",
                volume(site["bytes_up"]),
                volume(site["bytes_down"]),
                f"{site['epsilon']:.3g}" if site["epsilon"] is not None else "",
                site["version"],
                site["error"],
            ],
        )


def _of_site(status: SiteState) -> Iterator[str]:
    if status["running"]:
        for_long = f" for {_ago(status['since'])}" if status["since"] else ""
        yield f"{'connected' if status['connected'] else 'not connected'}{for_long}"
    for name, one in status["federations"].items():
        state = "complete" if one["complete"] else "going on"
        if one["complete"] and not one["result"]:
            state = "complete without this site's last visit"
        yield f"federation {name}: {count(one['rounds'] or 0, 'round')} of {one['method']}{_secure(one)}, {state}"
        spent = f", epsilon {one['epsilon']:.3g} spent" if one["epsilon"] is not None else ""
        yield (
            f"  {count(one['visits'], 'visit')} done, {volume(one['bytes_up'])} left, {volume(one['bytes_down'])} came"
            f"{spent}; last answer: {one['answer']}, {one['last']}"
        )
    if status["refused_joins"]:
        yield f"{status['refused_joins']} joins refused within a day"
    audit = status["audit"]
    yield f"audit log: {audit['entries']} entries, last {audit['last'] or 'never'}"


def _secure(federation: FederationStatus | SiteFederation) -> str:
    return " under secure aggregation" if federation.get("aggregation") == SECURE else ""


def _ago(when: float) -> str:
    return duration(max(0.0, time.time() - when))


# --- Prometheus ------------------------------------------------------------------------------------------------------


def metrics(status: ServerState | SiteState) -> str:
    """Prometheus' text format."""
    found: dict[str, list[str]] = {}
    for name, kind, text, labels, value in _samples(status):
        if value is None:
            continue
        lines = found.setdefault(name, [f"# HELP {name} {text}", f"# TYPE {name} {kind}"])
        inside = ",".join(f'{label}="{_escaped(str(one))}"' for label, one in labels.items())
        lines.append(f"{name}{{{inside}}} {float(value):.10g}" if inside else f"{name} {float(value):.10g}")
    return "\n".join(line for lines in found.values() for line in lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _samples(status: ServerState | SiteState) -> Iterator[Sample]:
    yield "fedekd_up", GAUGE, "Whether the server or site runs.", {"kind": status["kind"]}, status["running"]
    yield "fedekd_info", GAUGE, "The installed version.", {"version": status["fedekd"]}, 1
    yield "fedekd_problems", GAUGE, "Problems that `status` names.", {}, len(status["problems"])
    yield "fedekd_free_bytes", GAUGE, "Room for the state.", {}, status["free_bytes"]
    for path, end in status["certificates"].items():
        yield "fedekd_certificate_end_seconds", GAUGE, "When a certificate ends.", {"file": path}, end
    if status["kind"] == "server":
        yield "fedekd_complete", GAUGE, "Whether the federation is complete.", {}, status["complete"]
        if status["federation"]:
            yield from _federation_samples(status["federation"])
        return
    yield "fedekd_connected", GAUGE, "Whether the site is connected.", {}, status["connected"]
    yield "fedekd_refused_joins", GAUGE, "Joins refused within a day.", {}, status["refused_joins"]
    yield "fedekd_audit_entries_total", COUNTER, "Entries of the audit log.", {}, status["audit"]["entries"]
    yield "fedekd_audit_intact", GAUGE, "Whether the audit log verifies.", {}, not status["audit"]["problem"]
    for name, one in status["federations"].items():
        labels = {"federation": name}
        yield "fedekd_visits_done", GAUGE, "Visits that are complete.", labels, one["visits"]
        yield "fedekd_failures_total", COUNTER, "Messages not answered with success.", labels, one["failures"]
        for way, nbytes in (("up", one["bytes_up"]), ("down", one["bytes_down"])):
            yield "fedekd_bytes_total", COUNTER, "Bytes of models.", {**labels, "way": way}, nbytes
        yield "fedekd_epsilon", GAUGE, "Privacy budget spent.", labels, one["epsilon"]


def _federation_samples(federation: FederationStatus) -> Iterator[Sample]:
    yield "fedekd_visits", GAUGE, "Visits that the federation takes.", {}, federation["visits"]
    yield "fedekd_visits_done", GAUGE, "Visits that are complete.", {}, federation["done"]
    yield "fedekd_stage_began_seconds", GAUGE, "When what is done now began.", {}, federation["began"]
    yield "fedekd_status_seconds", GAUGE, "When the server last told.", {}, federation["updated"]
    yield "fedekd_deadline_seconds", GAUGE, "How long a visit waits for a site.", {}, federation["deadline"]
    for name, site in sorted(federation["sites"].items()):
        labels = {"site": name}
        yield "fedekd_site_online", GAUGE, "Whether a site is connected.", labels, site["online"]
        yield "fedekd_site_answers_total", COUNTER, "Visits that a site answered.", labels, site["answers"]
        yield "fedekd_site_counted", GAUGE, "Visits in which its answer counted.", labels, site["counted"]
        yield "fedekd_site_failures_total", COUNTER, "Answers lost or not of success.", labels, site["failures"]
        yield "fedekd_site_answered_seconds", GAUGE, "When a site last answered.", labels, site["answered"]
        yield "fedekd_site_visit_seconds", GAUGE, "How long its last visit took.", labels, site["seconds"]
        for way, nbytes in (("up", site["bytes_up"]), ("down", site["bytes_down"])):
            yield "fedekd_site_bytes_total", COUNTER, "Bytes of messages.", {**labels, "way": way}, nbytes
        yield "fedekd_site_epsilon", GAUGE, "Privacy budget that a site has spent.", labels, site["epsilon"]
