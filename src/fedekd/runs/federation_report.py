"""``report.json``: what a federation leaves behind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedekd.errors import FedekdError
from fedekd.metrics import harmed
from fedekd.units import Unit


@dataclass(frozen=True)
class FederationReport:
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


def read_report(state: Path) -> FederationReport | None:
    """The report in a server's state folder; None where there is none yet."""
    path = state / "report.json"
    try:
        content = json.loads(path.read_text())
        names = {f.name for f in fields(FederationReport)}
        return FederationReport(**{name: value for name, value in content.items() if name in names})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise FedekdError(f"cannot read {path}: {error}; move it away to start anew") from None
