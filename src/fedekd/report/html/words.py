"""How the page writes a difference, with its unit."""

from __future__ import annotations

from collections.abc import Sequence

from fedekd.units import Unit


def signed(delta: float, unit: Unit) -> str:
    return unit.delta(delta) + (" points" if unit.percent else f" {unit.name}")


def between(interval: Sequence[float], unit: Unit) -> str:
    low, high = (unit.delta(x) for x in interval)
    return f"{low} to {high}" + (" points" if unit.percent else "")
