"""The rooms of src/fedekd, which room imports which, and a picture of it.

    python tools/rooms.py            say which imports point the wrong way
    python tools/rooms.py --draw     and draw docs/images/rooms.svg

A room is a package or a module directly under fedekd. It may import the rooms of its own block and of the floors below,
but for what NEVER lists, and nothing else, also inside functions. tests/test_rooms.py holds the code and the picture to
this.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

HOME = Path(__file__).resolve().parents[1]
SOURCE = HOME / "src" / "fedekd"
PICTURE = HOME / "docs" / "images" / "rooms.svg"


class Block(NamedTuple):
    """Rooms that are drawn as one box and may import one another."""

    title: str
    about: str
    rooms: tuple[str, ...]


FLOORS: tuple[tuple[Block, ...], ...] = (  # from the ground up
    (Block("tools", "used everywhere", ("errors", "rng", "files", "objects", "validation", "units")),),
    (
        Block(
            "core",
            "a method, and what it takes to train it",
            (
                "gate",
                "conformal",
                "pooling",
                "tasks",
                "models",
                "architectures",
                "parts",
                "trees",
                "prototypes",
                "reassembly",
                "dataset",
                "federation",
                "methods",
                "robust",
                "upload_checks",
                "exchange",
                "engines",
            ),
        ),
    ),
    (Block("data", "datasets, partitions", ("data",)),),
    (
        Block(
            "questions and measures",
            "what is asked, what is measured",
            ("settings", "metrics", "scores", "significance", "verdicts"),
        ),
    ),
    (Block("runs", "planned, executed, kept as records", ("runs",)),),
    (Block("studies", "grids of runs", ("studies",)),),
    (
        Block("report", "terminal, tables, page", ("report",)),
        Block("trackers", "while it runs", ("trackers",)),
        Block("export", "models for sites", ("export",)),
        Block("flower", "real sites", ("flower",)),
    ),
    (Block("entrances", "the command line, and Python", ("commands", "cli", "api", "__main__")),),
)
NEVER = {("flower", "studies")}


class Import(NamedTuple):
    source: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"


def imports() -> Iterator[Import]:
    """Every import of one of our modules by another."""
    paths = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
    for module, path in paths.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in paths else node.module for name in names]
            for name in names:
                if name in paths:
                    yield Import(module, name, node.lineno)


def name_of(path: Path) -> str:
    parts = ("fedekd", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def places() -> dict[str, tuple[int, str]]:
    """By room: its floor and its block."""
    return {name: (k, block.title) for k, floor in enumerate(FLOORS) for block in floor for name in block.rooms}


def wrong() -> list[str]:
    """What points the wrong way, and rooms that have no place."""
    found, known = [], places()
    for one in imports():
        source, target = room(one.source), room(one.target)
        if not source or not target or source == target:
            continue  # the package itself holds its version, and finds its entrances when they are asked for
        if missing := [name for name in (source, target) if name not in known]:
            found.append(f"{missing[0]} has no place in tools/rooms.py")
            continue
        (upper, block), (lower, other) = known[source], known[target]
        if block != other and (lower >= upper or (block, other) in NEVER):
            found.append(f"{one}: {block} does not stand above {other}")
    return sorted(set(found))


def arrows() -> set[tuple[str, str]]:
    """Between blocks: who imports whom, without what follows from the others."""
    known, direct = places(), set[tuple[str, str]]()
    for one in imports():
        source, target = known.get(room(one.source)), known.get(room(one.target))
        if source and target and target[0] < source[0]:
            direct.add((source[1], target[1]))

    def reaches(a: str, b: str) -> bool:
        return any(x == a and (y == b or reaches(y, b)) for x, y in direct)

    return {(a, b) for a, b in direct if not any(x == a and y != b and reaches(y, b) for x, y in direct)}


LABEL = "The rooms of fedekd, and which imports which"
WIDTH, HEIGHT, GAP, FLOOR, LETTER = 880, 64, 20, 104, 7


def draw() -> str:
    boxes: dict[str, tuple[float, float, float]] = {}  # by block: left, top, width
    shapes = []
    for k, floor in enumerate(reversed(FLOORS)):
        wide = (WIDTH - GAP * (len(floor) + 1)) / len(floor)
        for n, block in enumerate(floor):
            left, top = GAP + n * (wide + GAP), GAP + k * FLOOR
            boxes[block.title] = left, top, wide
            listed = " · ".join(block.rooms)
            text = listed if len(block.rooms) > 1 and len(listed) * LETTER < wide else block.about
            middle = left + wide / 2
            shapes.append(
                f'<rect x="{left:g}" y="{top}" width="{wide:g}" height="{HEIGHT}" rx="8"/>'
                f'<text class="title" x="{middle:g}" y="{top + 26}">{escape(block.title)}</text>'
                f'<text x="{middle:g}" y="{top + 47}">{escape(text)}</text>'
            )
    lines = []
    for upper, lower in sorted(arrows()):
        (a, top, wide), (b, under, other) = boxes[upper], boxes[lower]
        x, y = a + wide / 2, b + other / 2
        if other > wide:
            y = min(max(x, b + 24), b + other - 24)
        elif wide > other:
            x = min(max(y, a + 24), a + wide - 24)
        lines.append(f'<line x1="{x:g}" y1="{top + HEIGHT}" x2="{y:g}" y2="{under - 7}" marker-end="url(#tip)"/>')
    tall = 2 * GAP + FLOOR * (len(FLOORS) - 1) + HEIGHT
    style = (
        "rect{fill:#e6f2f1;stroke:#00796b;stroke-width:1.5}line{stroke:#546e7a;stroke-width:1.5}"
        "text{font:13px system-ui,sans-serif;text-anchor:middle;fill:#263238}.title{font-weight:600;font-size:15px}"
    )
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#546e7a"/></marker></defs>'
    )
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" role="img" aria-label="{LABEL}">'
    paper = f'<rect width="{WIDTH}" height="{tall}" style="fill:#fff;stroke:none"/>'
    return "\n".join([start, f"<style>{style}</style>", tip, paper, *lines, *shapes, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="write the picture")
    given = parser.parse_args()
    if given.draw:
        PICTURE.write_text(draw())
    for line in wrong():
        print(line)
    return 1 if wrong() else 0


if __name__ == "__main__":
    sys.exit(main())
