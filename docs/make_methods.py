"""Write docs/methods.md, which method to choose when, from the committed records of the study of the field.

    python docs/make_methods.py

Every number is computed here from results/field; `fedekd study field` makes the records.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from fedekd import methods, metrics
from fedekd.data.registry import recipe
from fedekd.runs.store import read_records

HOME = Path(__file__).resolve().parents[1]
ONE_MODEL = ("fedavg", "fedprox", "feddyn", "scaffold", "moon", "fedavgm", "fedadam", "feddf")
TITLES = {name: recipe(name).title for name in ("organamnist", "fashionmnist")}
Cell = tuple[str, float]
Runs = dict[int, dict[str, Any]]  # by seed


def gather(records: list[dict[str, Any]]) -> dict[Cell, dict[str, Runs]]:
    found: dict[Cell, dict[str, Runs]] = defaultdict(lambda: defaultdict(dict))
    for r in records:
        found[r["dataset"], r["alpha"]][r["label"]][r["seed"]] = r
    return {cell: dict(found[cell]) for cell in sorted(found, key=lambda c: (list(TITLES).index(c[0]), c[1]))}


def avg(runs: Runs, key: str = "avg_delta") -> float:
    return float(np.mean([r[key] for r in runs.values()]))


def points(value: float) -> str:
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text[1:] == "0.0" else text


def interval(differences: list[float]) -> tuple[float, float]:
    return metrics.paired_interval(differences) or (float("-inf"), float("inf"))


def paired(one: Runs, other: Runs, key: str = "avg_delta") -> list[float]:
    return [one[s][key] - other[s][key] for s in sorted(one.keys() & other.keys())]


def with_interval(runs: Runs, key: str) -> str:
    low, high = interval([r[key] for r in runs.values()])
    return f"{points(avg(runs, key))} ({points(low)} to {points(high)})"


def rounds_of(runs: Runs) -> int:
    return int(next(iter(runs.values()))["params"]["rounds"])


def sent(runs: Runs) -> float:
    """Megabytes that a client sends in a round, on average."""
    r = next(iter(runs.values()))
    return r["bytes_up"] / len(r["clients"]) / rounds_of(runs) / 1e6


def megabytes(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 else f"{value:.3f}" if value else "0"


def given_labels(runs: Runs) -> bool:
    """Whether the method also learnt from the labels of public rows, which the others are not given."""
    r = next(iter(runs.values()))
    return methods.known()[r["method"]].public == "labels" and r["params"].get("pretrain", 1) > 0


def tied(cell: dict[str, Runs]) -> list[str]:
    """The method with the largest mean Δ, and those whose paired difference to it may be nothing, by 95 %."""
    fair = [label for label, runs in cell.items() if label != "local" and not given_labels(runs)]
    ranked = sorted(fair, key=lambda label: -avg(cell[label]))
    best = ranked[0]
    return [best, *(x for x in ranked[1:] if interval(paired(cell[best], cell[x]))[0] <= 0)]


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def name_of(cell: Cell) -> str:
    return f"{TITLES[cell[0]]}, α = {cell[1]:g}"


def overview(cells: dict[Cell, dict[str, Runs]]) -> str:
    labels = sorted({label for cell in cells.values() for label in cell} - {"local"})
    winners = {cell: tied(found) for cell, found in cells.items()}
    rows = []
    for label in sorted(labels, key=lambda x: -np.mean([avg(cells[c][x]) for c in cells if x in cells[c]])):
        here = [c for c in cells if label in cells[c]]
        values = []
        for c in cells:
            if c not in here:
                values.append("–")
                continue
            low, high = interval([r["avg_delta"] for r in cells[c][label].values()])
            half = f" ± {50 * (high - low):.1f}"
            text = points(avg(cells[c][label])) + half
            values.append(f"**{text}**" if label in winners[c] else text)
        mark = " (public labels)" if given_labels(cells[here[0]][label]) else ""
        rows.append([f"`{label}`{mark}", *values, megabytes(sent(cells[here[0]][label])) if here else "–"])
    heads = ["", *(name_of(c) for c in cells), "MB up per client and round"]
    return table(heads, rows)


def one_cell(cell: dict[str, Runs]) -> str:
    rows = []
    for label in sorted(cell, key=lambda x: -avg(cell[x])):
        runs = cell[label]
        deltas = [with_interval(runs, key) if label != "local" else "" for key in ("avg_delta", "worst_delta")]
        seconds = f"{np.mean([r['seconds'] for r in runs.values()]):.1f}"
        rows.append([f"`{label}`", f"{100 * avg(runs, 'mean'):.1f}", *deltas, seconds])
    return table(["", "accuracy %", "Avg Δ (95 %)", "Worst Δ (95 %)", "seconds per run"], rows)


def advice(cells: dict[Cell, dict[str, Runs]]) -> str:
    """What the records say, as a table made from them."""

    def best(found: dict[str, Runs], among: list[str]) -> str:
        one = max(among, key=lambda x: avg(found[x]))
        low, high = interval([r["avg_delta"] for r in found[one].values()])
        return f"`{one}` {points(avg(found[one]))} ({points(low)} to {points(high)})"

    rows: list[list[str]] = [["the largest mean Δ"], ["not clearly behind it"], ["few bytes"], ["one model for all"]]
    for found in cells.values():
        fair = [x for x, runs in found.items() if x != "local" and not given_labels(runs)]
        few = [x for x in fair if sent(found[x]) <= 1.1 * sent(found["fedekd"])]
        rows[0].append(best(found, fair))
        rows[1].append(named([f"`{x}`" for x in tied(found)[1:]]))
        rows[2].append(best(found, few))
        rows[3].append(best(found, [x for x in ONE_MODEL if x in found]))
    clear = defaultdict(list)
    for found in cells.values():
        for label, runs in found.items():
            if label != "local":
                low, high = interval([r["avg_delta"] for r in runs.values()])
                marked = f"`{label}`" + " (public labels)" * given_labels(runs)
                clear[marked].append(1 if low > 0 else -1 if high < 0 else 0)
    always = sorted(x for x, seen in clear.items() if min(seen) > 0)
    never = sorted(x for x, seen in clear.items() if max(seen) < 0)
    return "\n".join(
        [
            table(["what you need", *(name_of(c) for c in cells)], rows),
            "",
            "In each cell, the best method and its Avg Δ. Few bytes: at most 1.1 times what FedeKD sends. One model "
            "for all: every site ends with the same weights. An interval above zero means clearly better than "
            "training alone.",
            "",
            f"- Clearly better than alone in all {len(cells)} cells: {named(always)}.",
            f"- Clearly worse than alone in all {len(cells)} cells: {named(never)}.",
        ]
    )


def named(labels: list[str]) -> str:
    return ", ".join(labels) or "none"


def page(records: list[dict[str, Any]]) -> str:
    cells = gather(records)
    first = next(iter(next(iter(next(iter(cells.values())).values())).values()))
    seeds = sorted({r["seed"] for r in records})
    p = first["params"]
    text = [
        "# Methods compared",
        "",
        "How some thirty methods do against training alone, on two image datasets at two degrees of imbalance. This "
        "page is for looking things up; to choose a method, start with [Choosing](choosing.md).",
        "",
        f"Made by `python docs/make_methods.py` from `results/field`: {len(records)} runs of "
        f"`fedekd study field --device {p['device']} --precision {p['precision']}` on one H200. Six clients, seeds "
        f"{seeds[0]} to {seeds[-1]}, {p['rounds']} rounds of {p['epochs']} epochs, Adam {p['lr']:g}; a tenth of "
        "the rows is public for every method, Local included. Δ is a client's accuracy with the method minus its "
        "accuracy alone, in points; ± is half of a 95 % interval over the seeds. Methods run with their defaults, "
        "unless a label names other values; nothing was tuned.",
        "",
        "## What the records say",
        "",
        advice(cells),
        "",
        "## Before you rely on it",
        "",
        "- `fedmd` starts with three epochs on the labels of the public rows, which no other method here gets to see, "
        "so it is shown but not ranked. The row with `pretrain=0` is FedMD without these epochs.",
        "- After ten epochs at this learning rate Local is not fully trained, so a method that trains more (FedRep's "
        "ten head epochs per round) is ahead partly because of that.",
        "- Δ against plain Local also credits a method with things a site could do alone, such as smoothing its "
        "targets.",
        "- `fedmd`, `fedgh` and `fccl` exchange nothing in the first round, so they have one exchange fewer than the "
        "others.",
        "- Two methods are not in the table: `fedbn`, which equals FedAvg on networks without normalisation layers, "
        "such as the built-in ones, and `pfedhr`, which cannot be stacked.",
        "",
        "## Avg Δ in every cell",
        "",
        "Bold: the largest, and those not clearly behind it, by a 95 % interval paired over the seeds.",
        "",
        overview(cells),
        "",
        "## Cell by cell",
        "",
    ]
    for cell, found in cells.items():
        text += [f"### {name_of(cell)}", "", one_cell(found), ""]
    return "\n".join(text)


def main() -> None:
    records = read_records(HOME / "results" / "field" / "results.jsonl")
    (HOME / "docs" / "methods.md").write_text(page(records), encoding="utf-8")
    print(f"docs/methods.md from {len(records)} records")


if __name__ == "__main__":
    main()
