"""How the page writes a difference: a true minus, and points where they are."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedekd.units import Unit


def minus(text: str) -> str:
    """A true minus sign before every negative number, as the charts write it."""
    return re.sub(r"(?<![\w.-])-(?=[\d.])", "−", text)


def signed(delta: float, unit: Unit) -> str:
    return minus(unit.delta(delta)) + (" points" if unit.percent else f" {unit.name}")


def between(interval: Sequence[float], unit: Unit) -> str:
    low, high = (minus(unit.delta(x)) for x in interval)
    return f"{low} to {high}" + (" points" if unit.percent else "")
