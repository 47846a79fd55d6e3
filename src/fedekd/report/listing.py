"""What there is to choose from: the methods and the datasets. Imports neither torch nor pandas."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedekd.architectures import NAMED
from fedekd.methods import FAMILIES, Exchange
from fedekd.report.tables import Column, print_columns
from fedekd.runs.observers import planned
from fedekd.units import count, volume

if TYPE_CHECKING:
    from fedekd.data import Entry
    from fedekd.methods import Method
    from fedekd.runs.costs import Costs
    from fedekd.runs.plan import RunSpec
    from fedekd.settings import Settings

ROUNDS = 3  # which a method's steps are read for: later ones exchange nothing new


def print_methods(console: Console, methods: Mapping[str, Method], groups: Mapping[str, Sequence[str]]) -> None:
    """By family, each method with what it does, sends, needs and takes; below it its variants with what they change."""
    others = sorted(name for name, method in methods.items() if name == method.name and not method.family)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(
        Text("method", "dim"), Text("what it does; where from; what leaves a client; tasks; engine; parameters", "dim")
    )
    grid.add_row()
    for family, about in {**FAMILIES, "others": ""}.items():
        members = groups[family] if family in FAMILIES else others
        if not members:
            continue
        grid.add_row(Text(family, "bold underline"), Text(about))
        for name in members:
            _add_method(grid, name, methods)
        grid.add_row()
    grid.add_row(Text("groups", "bold underline"))
    for group, members in groups.items():
        if members:
            grid.add_row(Text(group, "bold"), Text(_sentence(group, members), "dim"))
    console.print(grid)
    console.print()
    console.print(Text("fedekd run --methods NAME,GROUP --set NAME.PARAMETER=VALUE", "dim"))


def print_models(console: Console) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, model in NAMED.items():
        grid.add_row(Text(name, "bold"), Text(model.about), Text(model.rows, "dim"))
    console.print(grid)
    console.print()
    console.print(Text("fedekd run --private resnet,cnn,mlp     clients get one each in turn", "dim"))
    console.print(Text("fedekd run --private nets:private       your own, from nets.py", "dim"))


def _add_method(grid: Table, name: str, methods: Mapping[str, Method]) -> None:
    method = methods[name]
    base = _values(method)
    grid.add_row(Text(name, "bold"), Text((type(method).__doc__ or "").strip().split("\n")[0]))
    grid.add_row("", Text("; ".join(_facts(method)), "dim"))
    if base:
        grid.add_row("", _parameters(base))
    for variant, other in methods.items():
        if other.name == name and variant != name:
            changed = {key: value for key, value in _values(other).items() if value != base[key]}
            grid.add_row(Text(f"  {variant}"), _parameters(changed))


def _facts(method: Method) -> list[str]:
    """Who made it, what leaves a client, and where it runs."""
    facts = [method.cite] if method.cite else []
    facts.append(f"sends {', '.join(sent(method)) or 'nothing'}")
    facts.append("any task" if len(method.tasks) > 1 else f"{method.tasks[0]} only")
    facts.append("stacked" if method.stacks and method.roles else "runs serially")
    if method.public:
        facts.append("needs public rows" + (" with labels" if method.public == "labels" else ""))
    return facts


def sent(method: Method) -> list[str]:
    """What leaves a client in a round, each thing once."""
    found: dict[str, None] = {}
    for step in (step for round in range(ROUNDS) for step in method.steps(round)):
        if isinstance(step, Exchange):
            what = f"the {step.name} model" if step.send is None or step.name in method.roles else step.name
            part = None if step.send else step.part
            found[what if part is None else f"{what} ({getattr(part, '__name__', part)})"] = None
    return list(found)


def _sentence(group: str, members: Sequence[str]) -> str:
    if group == "all":
        return f"the {len(members)} methods of these families, without their variants"
    return ", ".join(members)


def print_costs(console: Console, costs: Costs) -> None:
    """Print the bytes of every exchange, and which methods these models or data do not suit."""
    names, what, up, down = ([] for _ in range(4))  # type: tuple[list[str], list[str], list[str], list[str]]
    for name, exchanges in costs.later.items():
        names += [name, *("" for _ in exchanges[1:])]
        what += [cost.name for cost in exchanges] or ["nothing"]
        up += [f"{cost.up:,}" for cost in exchanges] or ["0"]
        down += [f"{cost.down:,}" for cost in exchanges] or ["0"]
    console.print()
    console.print(Text(f"bytes that each client sends and receives in a round, on {costs.dataset}", "bold underline"))
    columns = [Column("sends", what, "left"), Column("up", up), Column("down", down)]
    print_columns(console, [Column("method", names, "left")], columns)
    if costs.sooner:
        console.print(Text(f"less in the first round: {', '.join(costs.sooner)}", "dim"))
    for reason in costs.refused.values():
        console.print(Text(reason, "dim"))


def print_plan(console: Console, runs: Sequence[RunSpec], done: Collection[str], settings: Settings) -> None:
    """What a run would do: by method its runs, those that are there already, and what the rest would cost."""
    from fedekd.runs.summary import PARTITIONS

    by_label: dict[str, list[RunSpec]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    waiting = [[run for run in own if run.key not in done] for own in by_label.values()]
    columns = [
        Column("runs", [str(len(own)) for own in by_label.values()]),
        Column(
            "kept",
            [str(len(own) - len(rest)) for own, rest in zip(by_label.values(), waiting, strict=True)],
        ),
        Column("samples", [f"{sum(run.samples for run in rest):,}" for rest in waiting]),
        Column("sent", [volume(sum(run.traffic for run in rest)) for rest in waiting]),
    ]
    alpha, split = runs[0].alpha, PARTITIONS.get(settings.partition, PARTITIONS["sites"])
    about = [
        runs[0].dataset,
        split if alpha is None else f"alpha {alpha:g}",
        count(len(settings.seeds), "seed"),
        f"{count(settings.rounds or 0, 'round')} of {count(settings.epochs or 0, 'epoch')}",
    ]
    console.print(Text(", ".join(about)), soft_wrap=True)
    console.print()
    print_columns(console, [Column("method", list(by_label), "left")], columns)
    left = sum(map(len, waiting))
    console.print(
        Text(f"nothing was trained; without --dry-run: {planned(left, len(runs) - left)}, into {settings.out}"),
        soft_wrap=True,
    )


def _values(method: Method) -> dict[str, Any]:
    return {field.name: getattr(method, field.name) for field in fields(method)}


def _parameters(values: Mapping[str, Any]) -> Text:
    return Text("  ".join(f"{name}={value}" for name, value in values.items()), "cyan")


def print_datasets(console: Console, entries: Sequence[Entry], folder: Path) -> None:
    """What is here, and for the rest how to get it."""
    columns = [
        Column("task", [e.task for e in entries], "left"),
        Column("samples", [f"{e.samples:,}" if e.samples else "" for e in entries]),
        Column("shape", [e.shape for e in entries]),
        Column("here", [Text("yes", "green") if e.present else Text("no", "dim") for e in entries], "left"),
        Column("note", [e.note for e in entries], "left", "dim", widest=24),
    ]
    print_columns(console, [Column("name", [e.name for e in entries], "left")], columns)
    console.print(Text(f"published datasets are looked for in {folder} (--data DIR or $FEDEKD_DATA)"), soft_wrap=True)
    missing = [e.name for e in entries if not e.present]
    if missing:
        console.print(Text(f"to get one that is not here: fedekd data fetch {missing[0]}"))
