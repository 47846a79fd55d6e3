"""A result on the terminal: clients, summary, verdicts, and where the files lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from fedekd import metrics
from fedekd.report.clients import print_clients
from fedekd.report.partition import KINDS
from fedekd.report.summary import print_summary, trust, verdict
from fedekd.runs.results import RunResults
from fedekd.units import Unit, count

Records = Sequence[dict[str, Any]]


def print_result(
    console: Console, result: RunResults, folder: str | Path | None = None, show_clients: bool = False
) -> None:
    """Everything about a result; with several seeds the clients only on demand, since each seed splits anew."""
    for records in grouped(result.records, "dataset", "alpha"):
        _print_one(console, records, show_clients)
    if folder is not None:
        where = Path(folder) / "results.jsonl"
        _say(console, Text(f"results of {count(len(result.records), 'run')} in {where}"))


def _print_one(console: Console, records: Records, show_clients: bool) -> None:
    unit = Unit.of(records)
    seeds = grouped(records, "seed")
    console.print()
    _say(console, title(records, unit))
    console.print()
    if len(seeds) == 1 or show_clients:
        for on_seed in seeds:
            if len(seeds) > 1:
                _say(console, Text(f"seed {on_seed[0]['seed']}", "bold"))
            print_clients(console, on_seed, unit)
    rows = metrics.aggregate(records)
    print_summary(console, rows, unit)
    by_label = {group[0]["label"]: group for group in grouped(records, "label")}
    compared = [row for row in rows if row["method"] != "local"]
    lines = [verdict(by_label[row["label"]], row, unit) for row in compared]
    lines += [line for row in compared if (line := trust(by_label[row["label"]]))]
    for line in lines:
        _say(console, line)
    _say(console, Text(legend(unit, len(seeds) > 1), "dim"))
    console.print()


def title(records: Records, unit: Unit) -> Text:
    first, params = records[0], records[0]["params"]
    seeds = list(dict.fromkeys(r["seed"] for r in records))
    clients = len(first["clients"])
    parts = [
        f"alpha {first['alpha']:g}" if first["alpha"] is not None else KINDS[first["partition"]["kind"]],
        count(clients, "client"),
        f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds",
        f"{count(params['rounds'], 'round')} of {count(params['epochs'], 'epoch')}",
        "accuracy in %" if unit.higher_is_better else unit.name,
    ]
    return Text.assemble((first["dataset"], "bold"), ", ", ", ".join(parts))


def legend(unit: Unit, several: bool) -> str:
    sign = "in points, negative is harm" if unit.higher_is_better else "positive is harm"
    spread = "; ± is the deviation over seeds, the interval is paired" if several else ""
    return f"Δ: with the method minus alone, {sign}{spread}; sent: by all, up and down"


def _say(console: Console, line: Text) -> None:
    """A line of prose: folded at words on a terminal, left whole in a file."""
    console.print(line, soft_wrap=not console.is_terminal)


def grouped(records: Records, *keys: str) -> list[Records]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in keys), []).append(record)
    return list(groups.values())
