"""A method with the freedom that a client has alone: of several configurations, each client takes the one that its
validation rows choose, by the rule that chooses the best alone.

Composed from the records of runs; nothing is trained or stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedekd import metrics
from fedekd.runs.alone import Runs, by_table, menu_of, needs_federation, twin_label
from fedekd.runs.choosing import best_on_validation, choice_of, option
from fedekd.runs.records import ClientRow, Record
from fedekd.settings import ChosenBy
from fedekd.units import describe


@dataclass(frozen=True, eq=False)
class BestOf:
    """One method of one table."""

    method: str
    label: str
    configurations: tuple[str, ...]
    """To choose from: the method's defaults, then the others by their parameters' values, the lowest first; no more
    than the menu alone has entries."""
    left_out: int
    """How many more were run, but were too many, not on all seeds, or without validation results."""
    records: tuple[Record, ...]
    """By seed; then those of its isolated twin, chosen likewise, if that was run with every configuration."""


def best_of(records: Sequence[Record], by: ChosenBy | None = None) -> list[BestOf]:
    """One for every method that was run with its defaults and with other parameters on the same seeds.

    ``by`` is what ``analyse`` calls ``chosen_by``.
    """
    by = by or choice_of(records)
    found = [_best_of(runs, method, by) for runs in by_table(records) for method in runs]
    return [one for one in found if one is not None]


def _best_of(runs: Runs, method: str, by: ChosenBy) -> BestOf | None:
    own, first = runs[method], {label: next(iter(some.values())) for label, some in runs.items()}
    if first[method]["method"] != method or not needs_federation(first[method]):
        return None
    others = [label for label, record in first.items() if record["method"] == method and label != method]
    others.sort(key=lambda label: (_values(first[label], first[method]), label))
    known = [label for label in (method, *others) if _can_choose(own, runs[label])]
    menu = menu_of({label: some for label, some in runs.items() if first[label]["method"] == label})
    labels = known[: len(menu)]
    if len(labels) < 2 or labels[0] != method:
        return None
    label = f"{method} (best of {len(labels)})"
    made = [_composed(label, [runs[name][seed] for name in labels], by) for seed in own]
    twins = [twin_label(first[name]) for name in labels]
    if all(_can_choose(own, runs.get(twin, {})) for twin in twins):
        made += [_composed(twin_label(made[0]), [runs[name][seed] for name in twins], by) for seed in own]
    return BestOf(method, label, tuple(labels), 1 + len(others) - len(labels), tuple(made))


def _values(record: Record, default: Record) -> list[tuple[bool, float, str]]:
    """A sort key: numbers by their value, before anything else."""
    params: Mapping[str, Any] = record["params"]
    values = [params.get(name) for name in default["params"]]
    return [(False, value, "") if isinstance(value, int | float) else (True, 0.0, str(value)) for value in values]


def _can_choose(own: Mapping[int, Record], other: Mapping[int, Record]) -> bool:
    """Whether it was run on all these seeds, and its records hold what the validation rows say: old ones do not."""
    return all(seed in other and any("val" in client for client in other[seed]["clients"]) for seed in own)


def _composed(label: str, runs: Sequence[Record], by: ChosenBy) -> Record:
    """``runs``: of one seed, the default first. Choosing costs what all of them cost."""
    first, higher = runs[0], describe(runs[0]["metric"]).higher_is_better
    clients = [_chosen(runs, position, by, higher) for position in range(len(first["clients"]))]
    summary = metrics.summarise([one["value"] for one in clients], [one["local"] for one in clients], higher)
    return {
        **first,
        "label": label,
        "clients": clients,
        **summary,
        "bytes_up": sum(run["bytes_up"] for run in runs),
        "bytes_down": sum(run["bytes_down"] for run in runs),
        "seconds": sum(run["seconds"] for run in runs),
        "trust": [],
        "key": "+".join(run["key"] for run in runs),
    }


def _chosen(runs: Sequence[Record], position: int, by: ChosenBy, higher_is_better: bool) -> ClientRow:
    options = [option(run, position) for run in runs]
    n_val = runs[0]["clients"][position]["n_val"]
    run = runs[options.index(best_on_validation(options, n_val, higher_is_better, by))]
    return {**run["clients"][position], "run": run["key"]}
