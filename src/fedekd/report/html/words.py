"""How the page writes a difference, with its unit, and what its interval is about."""

from __future__ import annotations

from collections.abc import Sequence

from fedekd.report.html.run_data import RunData
from fedekd.units import Unit


def signed(delta: float, unit: Unit) -> str:
    return unit.delta(delta) + (" points" if unit.percent else f" {unit.name}")


def between(interval: Sequence[float], unit: Unit) -> str:
    low, high = (unit.delta(x) for x in interval)
    return f"{low} to {high}" + (" points" if unit.percent else "")


def over(data: RunData) -> str:
    """What the intervals of means are taken over, in words."""
    return "95 % interval over seeds" if len(data.seeds) > 1 else "95 % interval over test rows"


def about_models(data: RunData) -> str:
    """What an interval over test rows does not say, in words."""
    return "" if len(data.seeds) > 1 else " That interval is about these trained models, not about the method."
