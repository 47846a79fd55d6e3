"""What a federation leaves behind, as a person reads it on the terminal."""

from __future__ import annotations

from collections import Counter

from rich.console import Console

from fedekd.report.tables import Column, print_columns
from fedekd.runs.federation_report import SECURE, SUMS, FederationReport, SiteReport, SiteRow, other_metrics
from fedekd.runs.findings import listed
from fedekd.runs.verdict_text import STATES, chosen, counted, site_menu
from fedekd.units import Unit, count, duration, volume

KEPT = "kept"  # shown for a number that its site does not share
AWAY = "no answer"  # for a site that was away at the end


def print_report(console: Console, report: FederationReport) -> None:
    _print_sites(console, report)
    if report.states:
        console.print("\n".join([verdicts(report), *by_loss(report)]))
    elif report.known:
        console.print(by_interval(report))
        console.print("clearly: at the 5 % level over all sites that share their Δ (Holm's method)")
    for name, budget in report.budgets().items():
        console.print(f"{name}: {budget}")
    traffic = f"{volume(report.bytes_up)} up, {volume(report.bytes_down)} down"
    console.print(f"{count(report.rounds, 'round')} of {report.method}, {traffic}, {duration(report.seconds)}")
    if report.aggregation == SECURE:
        view = report.server_view
        console.print(f"the server saw {view['saw']}; it checked {view['checked']}")


def verdicts(report: FederationReport) -> str:
    """What sites that share their verdict came to, together."""
    known = Counter(report.states.values())
    share = "site shares" if known.total() == 1 else "sites share"
    return f"{known.total()} {share} a verdict: {counted(known)}"


def by_loss(report: FederationReport) -> list[str]:
    """Which of the sites that share their verdict chose the best alone otherwise than is usual."""
    names = [name for site in report.sites if site.get("chosen_by") == "loss" and (name := site.get("name"))]
    whose = "its" if len(names) == 1 else "their"
    return [f"{listed(names)} chose the best alone {chosen('loss', whose)}."] if names else []


def by_interval(report: FederationReport) -> str:
    """Where no site shares a verdict: what the intervals of Δ say."""
    harmed, helped, known = report.surely_harmed, report.surely_helped, len(report.known)
    share = "1 site that shares its" if known == 1 else f"{known} sites that share their"
    states = f"{harmed} clearly harmed, {helped} clearly helped, {known - harmed - helped} undecided"
    return f"{states}, of the {share} Δ"


def _print_sites(console: Console, report: FederationReport) -> None:
    unit = report.unit
    rows = [cells(site, unit) for site in report.sites]
    about = f"{unit.titled}; Δ: with the federation minus alone{', in points' if unit.percent else ''}"
    console.print(about + ("; verdict: against the best alone" if report.states else ""))
    console.print()
    names = Column("site", [str(site.get("name", "?")) for site in report.sites], "left")
    heads = ("n", "alone", "with", "Δ")
    columns = [Column(head, [row[i] for row in rows]) for i, head in enumerate(heads)]
    if report.states:
        columns.append(Column("verdict", [verdict(report, site) for site in report.sites], "left"))
    print_columns(console, [names], columns)


def cells(site: SiteRow, unit: Unit) -> list[str]:
    """Of one site: n, alone, with the federation, Δ; in words where there is no number."""
    missing = KEPT if site.get("answered", True) else AWAY
    n, delta = site.get("n"), site.get("delta")
    values = [missing if value is None else unit.value(value) for value in (site.get("local"), site.get("value"))]
    return [missing if n is None else str(n), *values, missing if delta is None else unit.delta(delta)]


def verdict(report: FederationReport, site: SiteRow) -> str:
    state = report.states.get(site.get("name", "?"))
    return STATES[state] if state else KEPT if site.get("answered", True) else AWAY


def own_numbers(own: SiteReport) -> str:
    """A site's own ``report.json`` in a few lines, what it should do first."""
    site: SiteRow = {
        "metric": own["metric"],
        "n": own["n_train"],
        "local": own["local"],
        "value": own["value"],
        "delta": own["delta"],
    }
    budget = own.get("privacy")
    report = FederationReport(own["method"], True, sites=[site], privacy={own["name"]: budget} if budget else None)
    n, alone, value, delta = cells(site, report.unit)
    metric, points = report.unit.titled, " points" if report.unit.percent else ""
    advice = [f"{own['verdict']['recommendation']}: {own['verdict']['reason']}"] if "verdict" in own else []
    line = f"{metric} {alone} alone, {value} with the federation, Δ {delta}{points}, {n} training rows"
    told = [(name, own.get(name)) for name in ("recipe", "federation", "gain")]
    shown = ", ".join(f"{name} {report.unit.delta(x)}" for name, x in told if isinstance(x, float))
    seen = [f"the server saw {SUMS}"] if own.get("aggregation") == SECURE else []
    others = [f"{name} {alone} and {joined}" for name, alone, joined in other_metrics(own)]
    also = [f"not judged, alone and with the federation: {', '.join(others)}"] if others else []
    lines = [*advice, *site_menu(own), line, *([shown] if shown else []), *also, *report.budgets().values(), *seen]
    return "\n  ".join([f"{own['name']}, {own['method']}", *lines])
