"""The headline of a run: was anyone harmed, by how much, and how sure is that."""

from __future__ import annotations

from typing import Any

from fedekd.report.html.chart import variant
from fedekd.report.html.clients import client_rows
from fedekd.report.html.run_data import RunData
from fedekd.runs.aggregate import SummaryRow
from fedekd.runs.records import ClientRow
from fedekd.runs.summary import PARTITIONS, direction
from fedekd.units import Unit, count


def minus(text: str) -> str:
    """A true minus sign, as the charts write it."""
    return text.replace("-", "−")


def kicker(data: RunData) -> str:
    first, seeds = data.first, data.seeds
    alpha, kind = first["alpha"], first["partition"]["kind"]
    params = first["params"]
    parts = [
        first["dataset"],
        f"Dirichlet α = {alpha:g}" if alpha is not None else PARTITIONS.get(kind, ""),
        count(len(first["clients"]), "client"),
        f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds",
        count(params["rounds"], "round"),
        data.unit.name,
    ]
    return " · ".join(part for part in parts if part)


def headline(data: RunData, label: str) -> dict[str, Any]:
    """A title, the sentences below it and four figures, for one method."""
    unit, row = data.unit, data.summary[label]
    everyone = [(unit.harm(c["delta"]), c, r) for r in data.of(label) for c in r["clients"]]
    several = len(row["seeds"]) > 1
    noun = "client-runs" if several else "clients"
    harmed, total = row["harmed"], row["clients"]
    helped = sum(harm < -1e-12 for harm, *_ in everyone)
    title = f"{label} harmed no client" if not harmed else f"{label} harmed {harmed:,} of {total:,} {noun}"
    worst_harm, worst, record = max(everyone, key=lambda item: item[0])
    mean = row["avg_delta"]["mean"]
    lines = [_average(unit, mean, len(everyone), several)]
    if harmed:
        where = f" (seed {record['seed']})" if several else ""
        lines.append(f"Worst off is client {worst['id']}{where}: {_change(unit, worst)}.")
    return {
        "title": title,
        "tone": "harm" if harmed else "help",
        "lines": lines,
        "sure": _sure(unit, row) + ("" if several else _by_samples(data, label)) + _grain(data, label),
        "figures": [
            (f"{harmed:,} of {total:,}", f"{noun} harmed", "harm" if harmed else "help"),
            (f"{helped:,} of {total:,}", f"{noun} helped", ""),
            (_signed(unit, mean), "average Δ", _tone(unit.harm(mean))),
            (_signed(unit, worst["delta"]), "worst Δ", _tone(worst_harm)),
        ],
    }


def _signed(unit: Unit, delta: float) -> str:
    return minus(unit.delta(delta)) + (" points" if unit.higher_is_better else "")


def _tone(harm: float) -> str:
    return "" if abs(harm) < 1e-12 else "harm" if harm > 0 else "help"


def _average(unit: Unit, mean: float, clients: int, several: bool) -> str:
    if abs(mean) < 1e-12:
        return "On average joining changed nothing."
    better = unit.harm(mean) < 0
    if unit.higher_is_better:
        return f"On average a client {'gained' if better else 'lost'} {unit.amount(mean)} of accuracy by joining."
    return f"On average joining {'lowered' if better else 'raised'} a client's {unit.name} by {unit.amount(mean)}."


def _change(unit: Unit, client: ClientRow) -> str:
    percent = "\u00a0%" if unit.higher_is_better else ""
    name = "accuracy" if unit.higher_is_better else unit.name
    return (
        f"{name} {unit.value(client['local'])}{percent} alone, {unit.value(client['value'])}{percent} with the method"
    )


def _sure(unit: Unit, row: SummaryRow) -> str:
    interval = row["avg_delta"]["interval"]
    if interval is None:
        return "One seed says nothing about chance; more seeds (--seeds 0-9) would give an interval."
    low, high = (_signed(unit, x) for x in interval)
    seeds = len(row["seeds"])
    reading = {
        1: "all of it on the harmed side: chance in the seeds does not explain it",
        -1: "all of it on the better side: chance in the seeds does not explain it",
        0: "which holds zero: it may as well be chance",
    }[direction(row, unit)]
    few = " With so few seeds the interval is wide." if seeds < 5 else ""
    return f"Over {seeds} seeds, paired, the 95 % interval of the average runs from {low} to {high}, {reading}.{few}"


def _by_samples(data: RunData, label: str) -> str:
    """Of the clients that one seed harmed, how many lost more than the choice of their test samples explains."""
    m = data.compared.index(label)
    rows = client_rows(data).get(variant(m) if data.same_sites else variant(m, 0), [])
    rows = [row for row in rows if row["effect"] == "harmed"]
    if not any(row["low"] < row["high"] for row in rows):
        return ""
    clear = sum(row["low"] * row["high"] > 0 for row in rows)
    return f" Of the harmed, {clear or 'none'} lost more than chance in the test samples explains."


def _grain(data: RunData, label: str) -> str:
    """What one test sample is worth at the smallest client."""
    if not data.unit.higher_is_better:
        return ""
    least = min(c["n_test"] for r in data.of(label) for c in r["clients"])
    return (
        f" The smallest client tests on {least:,} samples, one of which is {100 / least:.1f} points." if least else ""
    )
