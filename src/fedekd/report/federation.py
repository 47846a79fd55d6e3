"""What a federation leaves behind, as a person reads it on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from fedekd.report.tables import Column, print_columns
from fedekd.runs.federation_report import FederationReport
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


def cells(site: Mapping[str, Any], unit: Unit) -> list[str]:
    """Of one site: n, alone, with the federation, Δ; in words where there is no number."""
    missing = KEPT if site.get("answered", True) else AWAY
    forms = {"n": "{:d}".format, "local": unit.value, "value": unit.value, "delta": unit.delta}
    return [missing if site.get(name) is None else form(site[name]) for name, form in forms.items()]


def own_numbers(content: Mapping[str, Any]) -> str:
    """A site's own ``report.json`` in a line."""
    site = {**content, "n": content["n_train"]}
    report = FederationReport(content["method"], True, sites=[site], privacy=_own_budget(content))
    n, alone, value, delta = cells(site, report.unit)
    metric, points = ("accuracy in %", " points") if report.unit.higher_is_better else (report.unit.name, "")
    line = f"{content['name']}, {content['method']}: {metric} {alone} alone, {value} with the federation"
    return "; ".join([f"{line}, Δ {delta}{points}, {n} training rows", *report.budgets().values()])


def _own_budget(content: Mapping[str, Any]) -> dict[str, Any] | None:
    return {content["name"]: content["privacy"]} if content.get("privacy") else None
