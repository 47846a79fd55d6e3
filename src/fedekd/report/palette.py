"""The colours of reports and figures, named by what they mean.

Help and harm are Okabe and Ito's blue and vermillion, which people with any of the common colour blindnesses can tell
apart; charts give them different shapes besides. Text on ``surface``, and ``ink`` on every shade from ``low`` to
``cell`` and ``cell-harm``, keeps a contrast of at least 4.5.
"""

from __future__ import annotations

LIGHT = {
    "page": "#f7f6f3",
    "surface": "#ffffff",
    "ink": "#1b1f24",
    "soft": "#555c66",
    "muted": "#676e78",
    "line": "#dcdad4",
    "grid": "#ebe9e4",
    "help": "#0068a5",
    "harm": "#b84a00",
    "accent": "#0068a5",
    "other": "#008a66",
    "third": "#a3527f",
    "low": "#edf3f8",
    "high": "#0a4a7f",
    "cell": "#5a9fd0",
    "cell-harm": "#e0905c",
}
DARK = {
    "page": "#14171b",
    "surface": "#1c2026",
    "ink": "#eceae4",
    "soft": "#b5bac2",
    "muted": "#8f96a1",
    "line": "#343a43",
    "grid": "#2a2f37",
    "help": "#62b8ea",
    "harm": "#f08c4e",
    "accent": "#62b8ea",
    "other": "#3fc39b",
    "third": "#d99bc0",
    "low": "#222d38",
    "high": "#9bd4f5",
    "cell": "#1f5f8c",
    "cell-harm": "#8a4413",
}
SERIES = ("accent", "other", "third", "ink", "muted")  # lines that stand side by side: harm is for harm alone
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")


def variables(theme: dict[str, str]) -> str:
    """A theme as CSS custom properties."""
    return "".join(f"--{name}:{colour};" for name, colour in theme.items())
