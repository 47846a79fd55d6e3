"""Δ taken apart: what a client has by a method, how much of it by the recipe and how much by federating, and whether it
beats the best that the client can do alone.

- ``delta``: with the method minus plain Local, as in the paper.
- ``recipe``: the method's isolated twin (``METHOD@alone``) minus Local: the same training without exchange.
- ``federation``: the method minus its twin.
- ``gain``: the method minus the best alone, which each client chooses from a menu on its validation rows: plain Local,
  Local with smoothed targets, and the twins of the methods that are shown. Plain Local stays where
  fewer than 30 validation rows would choose. Each of them, and the method
  too, is taken at its last round, or at an earlier one that its validation rows clearly prefer.

Everything is composed from records; nothing is trained, and no test row takes part in a choice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from fedekd import metrics, verdicts
from fedekd.federation import TOO_MANY_ALONE
from fedekd.runs import row_results
from fedekd.runs.alone import Runs, best_alone, by_table, menu_of, plain_local, twins_of
from fedekd.runs.choosing import Option, choice_of, chooses_rounds, option
from fedekd.runs.folds import end_to_end, fold_of, same_clients
from fedekd.runs.records import Record
from fedekd.runs.row_results import compared, groups_of
from fedekd.settings import ChosenBy
from fedekd.units import describe
from fedekd.verdicts import Comparison, Verdict

PARTS = ("delta", "recipe", "federation", "gain")


@dataclass(frozen=True, eq=False)
class ClientTransfer:
    """What one client had of one method, seed by seed, and the verdict over these seeds."""

    client: str
    seeds: tuple[int, ...]
    n_test: int
    by_seed: tuple[Mapping[str, float], ...]
    """Those of PARTS that the records allow."""
    joined: tuple[Option, ...]
    alone: tuple[Option, ...]
    verdict: Verdict | None
    """On ``gain``; None where the records do not hold the test rows."""
    tests: tuple[int, ...]
    """The test rows of each seed: other ones where each tests another fold."""

    @property
    def parts(self) -> dict[str, float]:
        """The means over seeds, as of ``values``."""
        known = [part for part in PARTS if all(part in one for one in self.by_seed)]
        return {part: self._mean(one[part] for one in self.by_seed) for part in known}

    @property
    def values(self) -> tuple[float, float]:
        """Alone and with the method: the means over those seeds on whose test rows the metric is defined."""
        alone, joined = (self._mean(one.value for one in some) for some in (self.alone, self.joined))
        return alone, joined

    def _mean(self, by_seed: Iterable[float]) -> float:
        """Every test row counts alike, as in the verdict, however unequal the folds are."""
        return metrics.mean(by_seed, self.tests)


class PartSummary(TypedDict):
    """What ``MethodTransfer.summary`` says of a part."""

    mean: float
    worst: float
    tail: float
    interval: tuple[float, float] | None
    over_rows: tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class MethodTransfer:
    """One method on one dataset and alpha, over all its clients and seeds."""

    dataset: str
    alpha: float | None
    method: str
    label: str
    metric: str
    clients: tuple[ClientTransfer, ...]
    menu: tuple[str, ...]
    summary: Mapping[str, PartSummary]
    """By part: mean, worst and tail over clients, as means over seeds, and the paired interval of the mean; of a single
    seed its interval over test rows, which tells of these trained models and not of the method.

    Clients on whose test rows the metric is not defined are left out."""
    group: str | None = None
    """The column of rows that count as one; None: test rows are taken for independent."""
    choose_rounds: bool = False
    chosen_by: ChosenBy = "metric"
    """By what of the validation rows the best alone was chosen."""
    folds: int | None = None
    """How many parts of each client's rows were tested, each on other seeds; None: all seeds test the same part, or
    split the rows anew."""
    alone_was_drawn: bool = False
    participation: float = 1.0
    """Whether those alone, too, trained only in the rounds in which they were drawn."""

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for client in self.clients for seed in client.seeds}))

    @property
    def one_split(self) -> bool:
        """Whether a client is one and the same on all seeds, with the same test rows or another fold of its rows."""
        return all(len(client.seeds) == len(self.seeds) for client in self.clients)

    def by_seed(self, part: str) -> dict[int, float]:
        """The mean over clients on each seed, where the metric is defined for any of them; nothing where the part is
        not known of all."""
        found: dict[int, list[float]] = {}
        for client in self.clients:
            for seed, parts in zip(client.seeds, client.by_seed, strict=True):
                if part not in parts:
                    return {}
                found.setdefault(seed, []).append(parts[part])
        means = {seed: metrics.mean(values) for seed, values in found.items()}
        return {seed: mean for seed, mean in means.items() if not math.isnan(mean)}

    def interval(self, part: str) -> tuple[float, float] | None:
        """Of the part's mean over clients: over seeds, or over the test rows of a single one."""
        found = self.summary[part]
        return found["interval"] or found["over_rows"]

    @property
    def by_sign(self) -> int:
        """How many client-runs have a Δ on the wrong side of zero, by however little: for want of a verdict."""
        deltas = [one["delta"] for client in self.clients for one in client.by_seed]
        return metrics.harmed(deltas, describe(self.metric).higher_is_better)

    @property
    def client_runs(self) -> int:
        return sum(len(client.seeds) for client in self.clients)

    @property
    def states(self) -> dict[str, int]:
        """Of clients, or of client-runs where every seed splits the data anew; nothing without test rows."""
        found = Counter(c.verdict.state for c in self.clients if c.verdict)
        return {state: found[state] for state in verdicts.STATES} if found else {}


def comparison(
    joined: Sequence[Option], alone: Sequence[Option], metric: str, groups: np.ndarray | None = None
) -> Comparison | None:
    """The same test rows with a method and alone, by seed; None where they are not known."""
    return compared([one.rows for one in joined], [one.rows for one in alone], metric, groups)


def analyse(
    records: Sequence[Record],
    folder: str | Path | None = None,
    level: float = verdicts.LEVEL,
    chosen_by: ChosenBy | None = None,
) -> list[MethodTransfer]:
    """Every method of these records that needs a federation, taken apart.

    Holm's method is over what one table shows, at ``level``: all methods and clients of one dataset, alpha and
    settings. ``folder`` is where the records lie: without it there are no verdicts in metrics other than accuracy and
    RMSE. ``chosen_by`` is what of the validation rows chooses the best alone, if not what the records say.
    """
    where = None if folder is None else Path(folder)
    by = chosen_by or choice_of(records)
    return [method for runs in by_table(records) for method in _table(runs, where, level, by)]


def _table(runs: Runs, folder: Path | None, level: float, chosen_by: ChosenBy) -> list[MethodTransfer]:
    twins = twins_of(runs)
    shown, menu = list(twins), menu_of(runs)

    @cache  # it is one and the same for all methods
    def alone(seed: int, position: int) -> Option | None:
        return best_alone([runs[name][seed] for name in menu if seed in runs[name]], position, folder, chosen_by)

    units = [(label, unit) for label in shown for unit in _units(runs, label, twins[label], alone, folder)]
    pairs = [unit.comparison() for _, unit in units]
    judged = iter(verdicts.judge([pair for pair in pairs if pair is not None], level))
    clients: dict[str, list[ClientTransfer]] = {label: [] for label in shown}
    gains: dict[str, list[Comparison | None]] = {label: [] for label in shown}
    for (label, unit), pair in zip(units, pairs, strict=True):
        clients[label].append(unit.transfer(next(judged) if pair is not None else None))
        gains[label].append(pair)
    found = []
    plain = plain_local(runs)
    for label in shown:
        others = plain, runs.get(twins[label], {})
        over_rows = _over_rows(runs[label], *others, gains[label], folder) if len(runs[label]) == 1 else {}
        found.append(_method(runs[label], tuple(clients[label]), menu, over_rows, chosen_by))
    return found


def _over_rows(
    own: Mapping[int, Record],
    plain: Mapping[int, Record],
    twin: Mapping[int, Record],
    gains: Sequence[Comparison | None],
    folder: Path | None,
) -> dict[str, tuple[float, float] | None]:
    """By part: the interval of the mean over clients on one seed, from their test rows."""
    ((seed, joined),) = own.items()
    alone, other = plain.get(seed), twin.get(seed)
    pairs = {"delta": (joined, alone), "recipe": (other, alone), "federation": (joined, other)}
    known = {part: (a, b) for part, (a, b) in pairs.items() if a is not None and b is not None}
    found = {part: row_results.mean_interval(a, b, folder) for part, (a, b) in known.items()}
    return found | {"gain": verdicts.mean_interval(gains)}


@dataclass(frozen=True, eq=False)
class _Unit:
    """A client on the seeds in which it is one and the same client: all of them where the split was held fixed."""

    client: str
    seeds: tuple[int, ...]
    metric: str
    # each by seed:
    folds: tuple[int, ...]
    tests: tuple[int, ...]
    """How many test rows."""
    groups: tuple[np.ndarray | None, ...]
    parts: tuple[Mapping[str, float], ...]
    joined: tuple[Option, ...]
    alone: tuple[Option, ...]

    @property
    def n_test(self) -> int:
        return sum(dict(zip(self.folds, self.tests, strict=True)).values())

    def comparison(self) -> Comparison | None:
        joined, alone = ([one.rows for one in some] for some in (self.joined, self.alone))
        of = [None if rows is None else np.full(len(rows), fold) for rows, fold in zip(joined, self.folds, strict=True)]
        joined, alone, groups, folds = (end_to_end(rows, self.folds) for rows in (joined, alone, self.groups, of))
        several = len(set(self.folds)) > 1
        return compared(joined, alone, self.metric, groups[0], folds=folds[0] if several else None)

    def transfer(self, verdict: Verdict | None) -> ClientTransfer:
        return ClientTransfer(
            client=self.client,
            seeds=self.seeds,
            n_test=self.n_test,
            by_seed=self.parts,
            joined=self.joined,
            alone=self.alone,
            verdict=verdict,
            tests=self.tests,
        )


def _units(
    runs: Runs, label: str, twin: str, best_alone: Callable[[int, int], Option | None], folder: Path | None
) -> Iterator[_Unit]:
    same: dict[Any, list[int]] = {}
    for seed, record in runs[label].items():
        same.setdefault(same_clients(record), []).append(seed)
    for seeds in same.values():
        first = runs[label][seeds[0]]
        for position, client in enumerate(first["clients"]):
            parts, joined, alone = [], [], []
            every = [runs[label][seed] for seed in seeds]
            for seed, own in zip(seeds, every, strict=True):
                other = runs.get(twin, {}).get(seed)
                joined.append(option(own, position, folder))
                row = own["clients"][position]
                plain = Option("local", int(own["params"]["rounds"]), row["local"])
                alone.append(best := best_alone(seed, position) or plain)
                found = {"delta": row["delta"], "gain": joined[-1].value - best.value}
                if other is not None:
                    value = other["clients"][position]["value"]
                    found |= {"recipe": value - row["local"], "federation": row["value"] - value}
                parts.append(found)
            yield _Unit(
                client=client["id"],
                seeds=tuple(seeds),
                metric=first["metric"],
                folds=tuple(map(fold_of, every)),
                tests=tuple(own["clients"][position]["n_test"] for own in every),
                groups=tuple(groups_of(own, position) for own in every),
                parts=tuple(parts),
                joined=tuple(joined),
                alone=tuple(alone),
            )


def _method(
    runs: Mapping[int, Record],
    clients: tuple[ClientTransfer, ...],
    menu: tuple[str, ...],
    over_rows: Mapping[str, tuple[float, float] | None],
    chosen_by: ChosenBy,
) -> MethodTransfer:
    first = next(iter(runs.values()))
    better = describe(first["metric"]).higher_is_better
    found = {part: _summary(clients, part, better, over_rows.get(part)) for part in PARTS}
    return MethodTransfer(
        dataset=first["dataset"],
        alpha=first["alpha"],
        method=first["method"],
        label=first["label"],
        metric=first["metric"],
        clients=clients,
        menu=menu,
        summary={part: one for part, one in found.items() if one is not None},
        group=first["partition"].get("group"),
        choose_rounds=chooses_rounds(first),
        chosen_by=chosen_by,
        folds=first["partition"].get("folds"),
        alone_was_drawn=first["params"].get("participation", 1.0) < 1 and len(first["clients"]) >= TOO_MANY_ALONE,
        participation=first["params"].get("participation", 1.0),
    )


def _summary(
    clients: Sequence[ClientTransfer], part: str, higher_is_better: bool, over_rows: tuple[float, float] | None
) -> PartSummary | None:
    """None where the part is not known of all."""
    by_seed: dict[int, list[tuple[float, float]]] = {}
    for client in clients:
        for seed, found, alone in zip(client.seeds, client.by_seed, client.alone, strict=True):
            if part not in found:
                return None
            undefined = math.isnan(alone.value) and math.isnan(found[part])
            by_seed.setdefault(seed, []).append((found[part], math.nan if undefined else 0.0))
    each = []
    for pairs in by_seed.values():
        values, zeros = zip(*pairs, strict=True)
        each.append(metrics.summarise(values, zeros, higher_is_better))
    return {
        "mean": metrics.mean(one["avg_delta"] for one in each),
        "worst": metrics.mean(one["worst_delta"] for one in each),
        "tail": metrics.mean(one["tail_delta"] for one in each),
        "interval": metrics.paired_interval([one["avg_delta"] for one in each]),
        "over_rows": over_rows,
    }
