"""The headline of a run: who is clearly helped or harmed, by how much on average, and how sure is that."""

from __future__ import annotations

import math

from fedekd.report.html.recommendation import what_sites_should_do, which_method
from fedekd.report.html.run_data import RunData
from fedekd.report.html.section import Headline
from fedekd.report.html.words import between
from fedekd.runs.summary import PARTITIONS
from fedekd.runs.transfer import ClientTransfer, MethodTransfer
from fedekd.runs.verdict_text import alone_label, best_alone, caveats, parts_told, told
from fedekd.units import Unit, count
from fedekd.verdicts import HARMED, HELPED


def kicker(data: RunData) -> str:
    first, seeds = data.first, data.seeds
    alpha, kind = first["alpha"], first["partition"]["kind"]
    params = first["params"]
    parts = [
        first["dataset"],
        f"Dirichlet α = {alpha:g}" if alpha is not None else PARTITIONS.get(kind, ""),
        count(len(first["clients"]), "client"),
        f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds",
        *([f"{first['partition']['folds']} folds"] if "folds" in first["partition"] else []),
        count(params["rounds"], "round"),
        data.unit.name,
    ]
    return " · ".join(part for part in parts if part)


def headline(data: RunData, label: str) -> Headline:
    """A title, the sentences below it and the parts of Δ, for one method."""
    unit, method = data.unit, data.transfer[label]
    states = method.states
    lines = [_average(unit, method.summary["gain"]["mean"], label, best_alone([method]))]
    known = [client for client in method.clients if math.isfinite(client.parts["gain"])] or list(method.clients)
    worst = max(known, key=lambda client: unit.harm(client.parts["gain"]))
    if unit.harm(worst.parts["gain"]) > 0:
        where = f" (seed {worst.seeds[0]})" if len(method.seeds) > 1 and not method.one_split else ""
        lines.append(f"Worst off is client {worst.client}{where}: {_change(unit, worst)}.")
    return Headline(
        f"{label}: {told(method)}",
        lines,
        tone="harm" if states.get(HARMED) else "help" if states.get(HELPED) else "",
        sure=" ".join([_sure(unit, method), *caveats([method], unit)[-1:]]).strip(),
        figures=[
            (unit.delta(method.summary[part]["mean"]) + (" points" if unit.percent else ""), name, "")
            for part, name in parts_told(method).items()
        ],
        use=[line for line in (*which_method(list(data.transfer.values()), unit), what_sites_should_do(data)) if line],
    )


def _average(unit: Unit, mean: float, label: str, alone: str) -> str:
    if abs(mean) < 1e-12:
        return f"On average {label} changed nothing."
    better = unit.harm(mean) < 0
    if unit.higher_is_better:
        change = f"{unit.amount(mean)} {'more' if better else 'less'} {unit.name}"
    else:
        change = f"{'a lower' if better else 'a higher'} {unit.name}, by {unit.amount(mean)},"
    return f"On average a client has {change} with {label} than with {alone}."


def _change(unit: Unit, client: ClientTransfer) -> str:
    percent = " %" if unit.percent else ""
    alone, value = map(unit.value, client.values)
    return f"{unit.name} {alone}{percent} alone ({alone_label(client)}), {value}{percent} with the method"


def _sure(unit: Unit, method: MethodTransfer) -> str:
    interval, over_rows = method.summary["gain"]["interval"], method.summary["gain"]["over_rows"]
    if interval is None:
        return f"Over test rows, the 95 % interval of the mean gain is {between(over_rows, unit)}." if over_rows else ""
    reading = {
        1: "all of it on the better side: chance in the seeds does not explain it",
        -1: "all of it on the harmed side: chance in the seeds does not explain it",
        0: "which includes zero: it may be chance",
    }[unit.direction(interval)]
    few = " With so few seeds the interval is wide." if len(method.seeds) < 5 else ""
    seeds = len(method.seeds)
    return (
        f"Over {seeds} seeds, paired, the 95 % interval of the mean gain is {between(interval, unit)}, {reading}.{few}"
    )
