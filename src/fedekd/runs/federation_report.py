"""``report.json``: what a federation leaves behind, and the table a person reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedekd.errors import FedekdError

if TYPE_CHECKING:
    from rich.console import Console

    from fedekd.units import Unit

KEPT = "kept"  # shown for a number that its site does not share
AWAY = "no answer"  # for a site that was away at the end


@dataclass(frozen=True)
class Report:
    method: str
    complete: bool
    rounds: int = 0
    sites: Sequence[Mapping[str, Any]] = field(default_factory=tuple)  # name, and what the site shares
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    privacy: Mapping[str, Any] | None = None  # by site: what it spent of its budget
    compression: str = "none"
    combine: str = "mean"
    refused: Sequence[Mapping[str, Any]] = field(default_factory=tuple)  # visit, site and reason
    error: str = ""

    @property
    def unit(self) -> Unit:
        """How numbers are written, as for a run: the metric that most sites tell."""
        from fedekd.units import Unit

        told = Counter(site["metric"] for site in self.sites if site.get("metric")).most_common(1)
        values = [site["local"] for site in self.sites if "local" in site] or [site["delta"] for site in self.known]
        clients = [{"local": value} for value in values]
        return Unit.of([{"metric": told[0][0] if told else "accuracy", "clients": clients}])

    @property
    def known(self) -> list[Mapping[str, Any]]:
        """The sites that share their Δ."""
        return [site for site in self.sites if isinstance(site.get("delta"), (int, float))]

    @property
    def harmed(self) -> int:
        from fedekd.metrics import harmed

        return harmed([site["delta"] for site in self.known], higher_is_better=self.unit.higher_is_better)

    @property
    def surely_harmed(self) -> int:
        """Those whose Δ lies beyond the chance of their test rows (95 %)."""
        worst = "high" if self.unit.higher_is_better else "low"
        return sum(worst in site and self.unit.harm(site[worst]) > 0 for site in self.known)

    def budgets(self) -> dict[str, str]:
        spent = (self.privacy or {}).items()
        return {
            name: f"epsilon {one['epsilon']:.3g} at delta {one['delta']:g}, for {one['guarantee']}"
            for name, one in spent
        }


def read_report(state: Path) -> Report | None:
    """The report in a server's state folder; None where there is none yet."""
    path = state / "report.json"
    try:
        content = json.loads(path.read_text())
        names = {f.name for f in fields(Report)}
        return Report(**{name: value for name, value in content.items() if name in names})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise FedekdError(f"cannot read {path}: {error}; move it away to start anew") from None


def print_report(console: Console, report: Report) -> None:
    from fedekd.units import duration, volume

    _print_sites(console, report)
    if report.known:
        chance = f", {report.surely_harmed} beyond the chance of its test rows" if report.harmed else ""
        console.print(f"{report.harmed} of {len(report.known)} sites that share their Δ were harmed by joining{chance}")
    for name, budget in report.budgets().items():
        console.print(f"{name}: {budget}")
    traffic = f"{volume(report.bytes_up)} up, {volume(report.bytes_down)} down"
    console.print(f"{report.rounds} rounds of {report.method}, {traffic}, {duration(report.seconds)}")


def _print_sites(console: Console, report: Report) -> None:
    from fedekd.report.tables import Column, print_columns

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
    report = Report(content["method"], True, sites=[site], privacy=_own_budget(content))
    n, alone, value, delta = cells(site, report.unit)
    metric, points = ("accuracy in %", " points") if report.unit.higher_is_better else (report.unit.name, "")
    line = f"{content['name']}, {content['method']}: {metric} {alone} alone, {value} with the federation"
    return "; ".join([f"{line}, Δ {delta}{points}, {n} training rows", *report.budgets().values()])


def _own_budget(content: Mapping[str, Any]) -> dict[str, Any] | None:
    return {content["name"]: content["privacy"]} if content.get("privacy") else None
