"""How a chart is drawn outside the page: colours in place of their roles, on white, and what its letters are like."""

from __future__ import annotations

from typing import Any

from fedekd.report.html.chart import Spec
from fedekd.report.palette import LIGHT

WORDS = {"labelColor": LIGHT["soft"], "titleColor": LIGHT["soft"], "labelFontSize": 12, "titleFontSize": 12}
AXIS = {"gridColor": LIGHT["grid"], "domainColor": LIGHT["line"], "tickColor": LIGHT["line"]}
CONFIG: Spec = {
    "background": "white",
    "font": "Liberation Sans, Arial, Helvetica, sans-serif",
    "view": {"stroke": None},
    "axis": {**WORDS, **AXIS, "titleFontWeight": 400, "titlePadding": 8, "labelPadding": 5, "labelFlush": False},
    "legend": {**WORDS, "titleFontWeight": 400, "symbolSize": 90, "offset": 8},
    "text": {"color": LIGHT["ink"], "fontSize": 12},
}


def painted(part: Any) -> Any:
    """A specification with the palette's colours in place of their roles."""
    if isinstance(part, str):
        return LIGHT[part[1:]] if part.startswith("$") else part
    if isinstance(part, (list, tuple)):
        return [painted(inner) for inner in part]
    return {name: painted(inner) for name, inner in part.items()} if isinstance(part, dict) else part
