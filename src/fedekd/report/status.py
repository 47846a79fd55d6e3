"""What is running, at a glance: a bar, the runs in training with their clients' values, and those that have ended."""

from __future__ import annotations

import time

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedekd.runs.progress_file import EndedRun, Progress, RunningRun
from fedekd.units import Unit, count, describe, duration

MOST_RUNS = 8  # of each kind on the screen
MOST_CLIENTS = 40


def status_view(progress: Progress) -> RenderableType:
    parts: list[RenderableType] = [Text(status_line(progress), "bold"), _bar(progress)]
    unit = Unit(progress["finished"][-1]["metric"], 4) if progress["finished"] else None
    if progress["now"]:
        parts += [Text(), _clients(progress["now"], unit)]
    if progress["finished"]:
        parts += [Text(), _finished(progress["finished"])]
    return Group(*parts)


def status_line(progress: Progress) -> str:
    """All of it in one line."""
    parts = [f"{progress['ended']}/{count(progress['runs'], 'run')}"]
    if progress["kept"]:
        parts.append(f"{progress['kept']} kept from earlier")
    if progress["failed"]:
        parts.append(f"{progress['failed']} failed")
    for run in progress["now"][:1]:
        parts.append(f"{run['label']}, seed {run['seed']}, round {run['round']}/{run['rounds']}")
    if len(progress["now"]) > 1:
        parts.append(f"and {len(progress['now']) - 1} more at the same time")
    took = duration(progress["updated"] - progress["started"])
    parts.append(f"{took} so far" if progress["state"] == "running" else f"in {took}")
    if progress["left"] is not None:
        parts.append(f"about {duration(progress['left'])} left")
    return ", ".join(parts)


def _bar(progress: Progress) -> RenderableType:
    done, total = min(progress["done"], progress["total"]), progress["total"]
    share = done / total if total else 1.0
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(ratio=1)
    row.add_column()
    row.add_row(ProgressBar(total=1.0, completed=share), Text(f"{share:.0%}"))
    return row


def _clients(runs: list[RunningRun], unit: Unit | None) -> RenderableType:
    """The clients' values after the last whole round, a column per run."""
    shown = [run for run in runs if run["clients"]][:MOST_RUNS]
    if not shown:
        return Text("no round is complete yet", "dim")
    table = _table("client")
    for run in shown:
        table.add_column(Text(f"{run['label']} s{run['seed']}"), justify="right")
    names = list(dict.fromkeys(name for run in shown for name in run["clients"]))
    for name in names[:MOST_CLIENTS]:
        table.add_row(Text(name), *(_value(run["clients"].get(name), unit) for run in shown))
    more = len(names) - MOST_CLIENTS
    return Group(table, Text(f"and {count(more, 'client')} more", "dim")) if more > 0 else table


def _value(value: float | None, unit: Unit | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f}" if unit and unit.percent else f"{value:.4g}"


def _finished(runs: list[EndedRun]) -> RenderableType:
    table = _table("ended")
    for header in ("seed", "mean", "Avg Δ", "Worst Δ", "time"):
        table.add_column(header, justify="right")
    several = len({(run["dataset"], run["alpha"]) for run in runs}) > 1
    for run in runs[-MOST_RUNS:]:
        unit = Unit(run["metric"], 1 if describe(run["metric"]).share else 3)
        alpha = "" if run["alpha"] is None else f" α={run['alpha']:g}"
        name = f"{run['dataset']}{alpha} {run['label']}" if several else run["label"]
        mean = "" if run["mean"] is None else unit.value(run["mean"])
        deltas = [_delta(run[key], run["method"], unit) for key in ("avg_delta", "worst_delta")]
        took = "kept" if run["cached"] else duration(run["seconds"])
        table.add_row(Text(name), str(run["seed"]), mean, *deltas, took)
    return table


def _delta(value: float | None, method: str, unit: Unit) -> Text:
    return Text() if value is None or method == "local" else Text(unit.delta(value), unit.style(value))


def _table(first: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first)
    return table


def age(progress: Progress) -> str:
    """How long ago the process was last heard of."""
    return duration(max(time.time() - progress["updated"], 0.0))
