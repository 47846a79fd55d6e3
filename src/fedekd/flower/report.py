"""``report.json``: what a federation leaves behind, and the table a person reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedekd.errors import FedekdError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
    error: str = ""


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
    from fedekd.metrics import harmed

    console.print(_table(report))
    known = [site for site in report.sites if isinstance(site.get("delta"), (int, float))]
    if known:
        errors = any(site.get("metric") == "rmse" for site in known)
        count = harmed([site["delta"] for site in known], higher_is_better=not errors)
        console.print(f"{count} of {len(known)} sites that share their Δ were harmed by joining")
    for name, spent in (report.privacy or {}).items():
        console.print(f"{name}: epsilon {spent['epsilon']:.3g} at delta {spent['delta']:g}, for {spent['guarantee']}")
    traffic = f"{_size(report.bytes_up)} up, {_size(report.bytes_down)} down"
    console.print(f"{report.rounds} rounds of {report.method}, {traffic}, {report.seconds:.0f} s")


def _table(report: Report) -> Table:
    from rich import box
    from rich.table import Table

    metrics = {site["metric"] for site in report.sites if site.get("metric")}
    table = Table(box=box.SIMPLE_HEAD, title=", ".join(sorted(map(str, metrics))) or None)
    table.add_column("site")
    for heading in ("n", "alone", "with", "Δ"):
        table.add_column(heading, justify="right")
    for site in report.sites:
        forms = {"n": "d", "local": ".4f", "value": ".4f", "delta": "+.4f"}
        missing = KEPT if site.get("answered", True) else AWAY
        table.add_row(str(site.get("name", "?")), *(_number(site.get(k), form, missing) for k, form in forms.items()))
    return table


def _number(value: Any, form: str, missing: str) -> str:
    if value is None:
        return missing
    try:
        return format(value, form)
    except (TypeError, ValueError):
        return str(value)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
