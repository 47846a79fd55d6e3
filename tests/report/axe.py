"""axe-core, which finds what people with disabilities would stumble over. Its licence is its own: it is not kept here.

``make axe`` fetches it beside the virtual environment; FEDEKD_AXE names another copy.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

PLACE = Path(os.environ.get("FEDEKD_AXE") or Path(sys.prefix) / "axe" / "package" / "axe.min.js")
needs_axe = pytest.mark.skipif(not PLACE.exists(), reason="needs axe-core: make axe")
RUN = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
FOUND = "(found) => found.violations.map((one) => `${one.id}: ${one.help}: ${one.nodes[0].html}`)"


def source() -> str:
    return PLACE.read_text(encoding="utf-8")
