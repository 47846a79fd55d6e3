"""Write docs/joining.md and its figure from the committed records of two studies.

    python docs/make_joining.py

`fedekd study joining` and `fedekd study paper`, both with `--device cuda --precision bf16`, make them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import vl_convert

from fedekd.metrics import paired_interval
from fedekd.runs.findings import TITLES, findings, headline, losses
from fedekd.runs.records import Record
from fedekd.runs.results import load
from fedekd.runs.transfer import MethodTransfer, analyse

HOME = Path(__file__).resolve().parents[1]
SHOWN = ("local-smooth", "fedekd", "fedavg", "fedavg-tuned", "fedrep", "ditto")


def records(study: str) -> list[Record]:
    return load(HOME / "results" / study).records


def points(value: float) -> str:
    return f"{100 * value:+.2f}".replace("-", "−")


def with_interval(values: list[float]) -> str:
    found = paired_interval(values)
    half = "" if found is None else f" ± {100 * (found[1] - found[0]) / 2:.2f}"
    return points(float(np.mean(values))) + half


def by_seed(some: list[Record]) -> dict[tuple[str, float | None], dict[str, dict[int, Record]]]:
    cells: dict[tuple[str, float | None], dict[str, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    for r in some:
        cells[r["dataset"], r["alpha"]][r["label"]][r["seed"]] = r
    return cells


def controls() -> list[str]:
    rows = [
        ("fedekd", "FedeKD"),
        ("fedekd@alone", "its proxy never exchanged"),
        ("fedekd@shuffled", "its teacher's outputs dealt to other samples"),
        ("local-smooth-tenth", "alone, smoothed with weight 0.1"),
        ("local-smooth-quarter", "alone, smoothed with weight 0.25"),
        ("local-smooth", "alone, smoothed with weight 0.5"),
    ]
    found = by_seed([r for r in records("paper") if r["task"] == "classification"])
    cells = {place: cell for place, cell in found.items() if all(label in cell for label, _ in rows)}
    lines = ["| Avg Δ against plain Local, points | " + " | ".join(f"{TITLES[d]} α={a:g}" for d, a in cells) + " |"]
    lines.append("| --- |" + " ---: |" * len(cells))
    for label, title in rows:
        found = [with_interval([r["avg_delta"] for r in cell[label].values()]) for cell in cells.values()]
        lines.append(f"| {title} | " + " | ".join(found) + " |")
    return lines


def over_splits() -> list[str]:
    """What `fedekd study paper` finds of FedeKD where its controls have been run, the headline first."""
    found = findings([r for r in records("paper") if r["label"] == r["method"]])
    own = [one for one in found if one.label == "fedekd" and not one.wanted]
    return [f"**{headline(own)}.** {losses(own)}.", "", *(f"- {one.sentence()}" for one in own)]


def joining() -> tuple[list[str], list[dict[str, object]]]:
    """The table, and the points of the figure: gain over Local against training rows, smoothed Local as a line too."""
    tables: dict[tuple[str, float | None, float, int], list[Record]] = defaultdict(list)
    for r in records("joining"):
        how = r["partition"]
        tables[r["dataset"], r["alpha"], how.get("fraction", 1.0), how["clients"]].append(r)
    lines = [
        "| data | rows a client | smoothed | FedeKD | FedAvg | FedAvg tuned | FedRep | Ditto |",
        "| --- | ---: |" + " ---: |" * len(SHOWN),
    ]
    dots: list[dict[str, object]] = []
    for (dataset, alpha, fraction, clients), some in tables.items():
        by: dict[str, dict[int, Record]] = defaultdict(dict)
        for r in some:
            by[r["label"]][r["seed"]] = r
        rows = float(np.mean([c["n_train"] for r in by["local"].values() for c in r["clients"]]))
        gains = {one.label: one for one in analyse(some)}
        cells = []
        for label in SHOWN:
            cells.append(cell_of(label, by, gains))
            if label in by:
                mean = float(np.mean([r["avg_delta"] for r in by[label].values()]))
                where = f"{TITLES[dataset]} α={alpha:g}"
                if clients == 6:
                    dots.append({"rows": rows, "delta": 100 * mean, "method": label, "data": where})
        name = f"{TITLES[dataset]} α={alpha:g}, {100 * fraction:g} %, {clients} clients"
        lines.append(f"| {name} | {rows:.0f} | " + " | ".join(cells) + " |")
    return lines, dots


def cell_of(label: str, by: dict[str, dict[int, Record]], gains: dict[str, MethodTransfer]) -> str:
    if label not in by:
        return "–"
    delta = points(float(np.mean([r["avg_delta"] for r in by[label].values()])))
    if label not in gains:
        return delta
    one = gains[label]
    return f"{delta} ({points(one.summary['gain']['mean'])}; {one.states['helped']}/{one.states['harmed']})"


def figure(dots: list[dict[str, object]]) -> str:
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": dots},
        "facet": {"field": "data", "type": "nominal", "title": None},
        "columns": 2,
        "spec": {
            "width": 300,
            "height": 200,
            "mark": {"type": "line", "point": True, "clip": True},
            "encoding": {
                "x": {
                    "field": "rows",
                    "type": "quantitative",
                    "scale": {"type": "log"},
                    "title": "training rows a client",
                },
                "y": {
                    "field": "delta",
                    "type": "quantitative",
                    "scale": {"domain": [-8, 4]},
                    "title": "points over plain Local",
                },
                "color": {"field": "method", "type": "nominal", "sort": list(SHOWN), "title": None},
            },
        },
    }
    return vl_convert.vegalite_to_svg(json.dumps(spec))


def main() -> None:
    table, dots = joining()
    (HOME / "docs" / "images" / "joining.svg").write_text(figure(dots))
    text = f"""# Should my site join?

<!-- made by docs/make_joining.py -->

![Points over plain Local against training rows a client](images/joining.svg)

A method helps a site if it beats the best that the site can do alone. The line `local-smooth` is Local with smoothed
targets: it sends nothing. What lies below it, a site can have by itself. (The axis ends at −8 points; FedAvg falls far
below.)

## How much of FedeKD's gain is federation
The paper's settings (5 rounds of 2 epochs), ten seeds; means with 95 % intervals paired over seeds.

{chr(10).join(controls())}

A teacher whose outputs are dealt to other samples, and so knows nothing of them, gives much of Δ too. Over all splits:

{chr(10).join(over_splits())}

## With ever fewer rows
50 rounds, five seeds, the same test rows at every size. Each cell: Avg Δ against plain Local in points; in brackets the
mean gain over the best alone, which each client chose on its validation rows, and how many client-runs were clearly
helped and clearly harmed. Where a client has fewer than 30 validation rows its best alone is plain Local, so that
brackets say too much for joining at 3 %: compare the column `smoothed`.

{chr(10).join(table)}

These are the paper's learning rate and batches (1e-4, 64), which in so few rows come to a few hundred steps: nobody is
trained to the end, FedAvg least of all. A rate that `fedekd tune` finds would change the picture, for Local too.

A dash: not run yet. `fedekd study joining --dry-run` lists what is left: all of CIFAR-10, the whole data, RetinaMNIST,
Diabetic Retinopathy and the hospitals, and most methods on FashionMNIST.

## On your own data
```sh
fedekd run --dataset heart --methods fedekd,fml,fedavg --alone menu --split-seed 0 --seeds 0-2 --rounds 2 --out joining
```
ends in a verdict for each site: join, stay alone or undecided, with the reason.
"""
    (HOME / "docs" / "joining.md").write_text(text)


if __name__ == "__main__":
    main()
