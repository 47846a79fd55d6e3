"""What a federation leaves behind, as a person reads it on the terminal."""

from __future__ import annotations

from rich.console import Console

from fedekd.report.tables import Column, print_columns
from fedekd.runs.federation_report import FederationReport, SiteReport, SiteRow
from fedekd.units import Unit, duration, volume

KEPT = "kept"  # shown for a number that its site does not share
AWAY = "no answer"  # for a site that was away at the end


def print_report(console: Console, report: FederationReport) -> None:
    _print_sites(console, report)
    if report.known:
        chance = f", {report.surely_harmed} beyond the chance of its test rows" if report.harmed else ""
        console.print(f"{report.harmed} of {len(report.known)} sites that share their Δ were harmed by joining{chance}")
    for name, budget in report.budgets().items():
        console.print(f"{name}: {budget}")
    traffic = f"{volume(report.bytes_up)} up, {volume(report.bytes_down)} down"
    console.print(f"{report.rounds} rounds of {report.method}, {traffic}, {duration(report.seconds)}")


def _print_sites(console: Console, report: FederationReport) -> None:
    unit = report.unit
    rows = [cells(site, unit) for site in report.sites]
    name = "accuracy in %" if unit.higher_is_better else unit.name
    console.print(f"{name}; Δ: with the federation minus alone{', in points' if unit.higher_is_better else ''}")
    console.print()
    names = Column("site", [str(site.get("name", "?")) for site in report.sites], "left")
    heads = ("n", "alone", "with", "Δ")
    print_columns(console, [names], [Column(head, [row[i] for row in rows]) for i, head in enumerate(heads)])


def cells(site: SiteRow, unit: Unit) -> list[str]:
    """Of one site: n, alone, with the federation, Δ; in words where there is no number."""
    missing = KEPT if site.get("answered", True) else AWAY
    n, delta = site.get("n"), site.get("delta")
    values = [missing if value is None else unit.value(value) for value in (site.get("local"), site.get("value"))]
    return [missing if n is None else str(n), *values, missing if delta is None else unit.delta(delta)]


def own_numbers(own: SiteReport) -> str:
    """A site's own ``report.json`` in a line."""
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
    metric, points = ("accuracy in %", " points") if report.unit.higher_is_better else (report.unit.name, "")
    line = f"{own['name']}, {own['method']}: {metric} {alone} alone, {value} with the federation"
    return "; ".join([f"{line}, Δ {delta}{points}, {n} training rows", *report.budgets().values()])
