"""Write the table of power in docs/metrics.md: what a client's test rows can show, by simulation.

    python docs/make_power.py

Nothing is trained; it takes a few seconds.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fedekd.verdicts import HELPED, Comparison, judge

PAGE = Path(__file__).parent / "metrics.md"
ROWS = (30, 100, 1000)
GAINS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)
CHANCE = 0.1  # share of the rows on which two models as good as each other disagree
CLIENTS, FEDERATIONS = 6, 400


def client(rng: np.random.Generator, rows: int, gain: float) -> Comparison:
    """Two models that disagree on CHANCE of the rows, each right as often, and on ``gain`` more that one has right."""
    draw = rng.random(rows)
    joined, alone = draw < CHANCE / 2 + gain, (draw >= CHANCE / 2 + gain) & (draw < CHANCE + gain)
    return Comparison(joined[None].astype(float), alone[None].astype(float))


def power(rows: int, gain: float) -> float:
    """The share of clients that are called clearly helped."""
    rng = np.random.default_rng(0)
    found = [judge([client(rng, rows, gain) for _ in range(CLIENTS)]) for _ in range(FEDERATIONS)]
    return float(np.mean([verdict.state == HELPED for some in found for verdict in some]))


def table() -> str:
    heads = ["test rows of a client", *(f"+{100 * gain:g} points" if gain else "no gain" for gain in GAINS)]
    lines = [heads, ["---"] + ["---:"] * len(GAINS)]
    for rows in ROWS:
        lines.append([f"{rows:,}", *(f"{100 * power(rows, gain):.1f} %" for gain in GAINS)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(text: str) -> str:
    """The page with the table between its two marks made anew."""
    new, count = re.subn(
        r"(<!-- made by docs/make_power.py -->\n).*?(\n<!-- end -->)", rf"\g<1>{table()}\g<2>", text, flags=re.DOTALL
    )
    if not count:
        raise SystemExit(f"{PAGE} has no place for the table")
    return new


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(f"wrote {PAGE}")
