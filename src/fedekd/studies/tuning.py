"""A search over hyper-parameters, judged by validation rows alone, on seeds that are not reported."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedekd import methods, metrics
from fedekd.engines.job import Training
from fedekd.errors import FedekdError, unknown
from fedekd.runs.plan import make_cells
from fedekd.runs.records import Record
from fedekd.settings import REPORTED, TUNED_ON, Settings, make_settings, parse_seeds
from fedekd.studies.grid import Study
from fedekd.studies.runner import run_study
from fedekd.studies.tally import Tally
from fedekd.units import METRICS

MOST = 1000  # candidates
TUNABLE = tuple(f.name for f in fields(Training) if f.name not in ("device", "precision", "choose_rounds", "metric"))
"""Settings that a grid may name; every other name in it is a parameter of the method.

Choosing rounds is not among them: the lowest validation loss of all rounds always looks better than the last one's.
"""
RANKED_BY = ("loss", "value")
Change = tuple[str, Any]  # a setting by its name, or a parameter as METHOD.PARAMETER, and its value


@dataclass(frozen=True)
class Candidate:
    """One combination of values, and how its models did on validation rows."""

    changes: tuple[Change, ...]
    loss: tuple[float, ...]
    """By seed, the mean over clients."""
    value: tuple[float, ...]

    def mean(self, by: str) -> float:
        return metrics.mean(getattr(self, by))

    def text(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.changes)


@dataclass(frozen=True)
class Tuning:
    method: str
    metric: str
    by: str
    seeds: tuple[int, ...]
    ranking: tuple[Candidate, ...]
    """The best first."""
    failed: Mapping[str, str]
    """By candidate: why it has no result."""
    folder: Path
    tested: str = ""
    """Why rows that were validated here are tested by the seeds to report, where that is so."""

    @property
    def best(self) -> Candidate:
        return self.ranking[0]

    def behind(self, candidate: Candidate) -> tuple[float, float]:
        """How far a candidate lies from the best, and the standard error of that over seeds."""
        apart = np.subtract(getattr(candidate, self.by), getattr(self.best, self.by))
        apart = apart[np.isfinite(apart)]  # a metric may not be defined on a seed's validation rows
        error = apart.std(ddof=1) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
        return float(apart.mean()), float(error)

    def text(self) -> str:
        titles = (
            self.method,
            "validation loss",
            f"validation {METRICS[self.metric].title}",
            f"{self.by} against the best",
        )
        lines = [titles]
        for candidate in self.ranking:
            apart, error = self.behind(candidate)
            distance = f"{apart:+.4f}" + (f" ± {error:.4f}" if math.isfinite(error) else "")
            if candidate is self.best:
                distance = "best"
            lines.append(
                (candidate.text(), f"{candidate.mean('loss'):.4f}", f"{candidate.mean('value'):.4f}", distance)
            )
        widths = [max(len(line[k]) for line in lines) for k in range(len(titles))]
        rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        counted = f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        notes = [f"means over clients and {counted}, of validation rows alone; ±: one standard error over seeds"]
        if self.tested:
            notes.append(f"some of these rows are test rows of the seeds to report: {self.tested}")
        notes += [f"{name} has no result: {reason}" for name, reason in self.failed.items()]
        return "\n".join([row.rstrip() for row in rows] + notes)


class ValidationTally(Tally):
    """Progress without test results, which a search must not be steered by."""

    def result(self, record: Record) -> str:
        losses = [client["val_loss"] for client in record["clients"] if "val_loss" in client]
        return f"validation loss {np.mean(losses):.4f}" if losses else "no validation rows"


def tune(
    method: str,
    grid: Mapping[str, Sequence[Any]],
    given: Mapping[str, Any],
    seeds: str | Sequence[int] = TUNED_ON,
    report_seeds: str | Sequence[int] | None = REPORTED,
    by: str = "loss",
    observer: Tally | None = None,
    workers: int | None = None,
) -> Tuning:
    """Train the method with every combination of the grid's values and rank them on validation rows.

    ``given`` are the settings of ``fedekd run`` that all share; its folder ``out`` keeps what is finished. ``seeds``
    are tuned on. ``report_seeds`` are those whose results will be reported, which must not be; None: there are none.
    ``by`` says what ranks, the "loss" or the metric's "value". ``observer`` and ``workers`` are as in ``run_study``.
    """
    if by not in RANKED_BY:
        raise unknown("by", by, RANKED_BY)
    tuned = parse_seeds(seeds)
    if report_seeds is not None and (both := sorted(set(tuned) & set(parse_seeds(report_seeds)))):
        raise FedekdError(
            f"seed {both[0]} is to be reported and must not be tuned on; choose other --seeds, or say with "
            "--report-seeds which ones will be reported"
        )
    shared = {"out": "fedekd-tuning", **given, "methods": (method,), "seeds": tuned}
    candidates = [(changes, _settings(shared, changes)) for changes in _combinations(method, grid)]
    study = Study("tuning", tuple(settings for _, settings in candidates))
    keys = _keys(method, study)
    outcome = run_study(study, observer=observer or ValidationTally(), workers=workers)
    records = {record["key"]: record for record in outcome.records}
    reasons = {failure.key: failure.error for failure in outcome.failed}
    ranking, failed = [], dict[str, str]()
    for (changes, _), own in zip(candidates, keys, strict=True):
        lacking = [reasons.get(key, "it was not run") for key in own if key not in records]
        candidate = _candidate(changes, [records[key] for key in own if key in records])
        if lacking or not np.isfinite(candidate.loss).all():
            failed[candidate.text()] = lacking[0] if lacking else "its clients have no validation rows, or diverged"
        else:
            ranking.append(candidate)
    if by == "value" and any(math.isnan(candidate.mean(by)) for candidate in ranking):
        raise FedekdError("the metric is not defined on any client's validation rows; rank by loss, or take more seeds")
    if not ranking:
        raise FedekdError(f"nothing to rank: {next(iter(failed.values()))}")
    first = outcome.records[0]
    higher = by == "value" and METRICS[first["metric"]].higher_is_better
    ranking.sort(key=lambda one: one.mean(by), reverse=higher)
    tested = "" if report_seeds is None else _tested(study.grid[0])
    return Tuning(method, first["metric"], by, tuned, tuple(ranking), failed, outcome.folder, tested)


def _tested(settings: Settings) -> str:
    if settings.folds is not None:
        return "with folds, every row is tested once"
    return "" if settings.split_seed is not None else "each seed splits the rows anew; add --split-seed 0 to both"


def _combinations(method: str, grid: Mapping[str, Sequence[Any]]) -> list[tuple[Change, ...]]:
    """Every combination of the grid's values, with the method before the names of its parameters."""
    methods.get(method)
    if not grid or not all(grid.values()):
        raise FedekdError("nothing to search; give values to try, such as --grid lr=0.001,0.01 beta=0.5,1,2")
    count = math.prod(len(values) for values in grid.values())
    if count > MOST:
        raise FedekdError(f"{count:,} combinations are too many; give fewer values, for at most {MOST:,}")
    axes = []
    for name, values in grid.items():
        owner, dot, _ = name.rpartition(".")
        if dot and owner != method:
            raise FedekdError(f"--grid {name} is not of the method that is tuned, {method}; write {method}.PARAMETER")
        full = name if dot or name in TUNABLE else f"{method}.{name}"
        axes.append([(full, _typed(full, value)) for value in dict.fromkeys(values)])
    return list(itertools.product(*axes))


def _typed(name: str, value: Any) -> Any:
    """A setting's value of a command line in the setting's type; a method's parameter finds its own."""
    if name not in TUNABLE or not isinstance(value, str):
        return value
    kind = {f.name: str(f.type).removesuffix(" | None") for f in fields(Settings)}[name]
    try:
        if kind == "bool":
            return {"true": True, "false": False}[value.lower()]
        return {"int": int, "float": float}.get(kind, str)(value)
    except (ValueError, KeyError):
        raise FedekdError(f"{value!r} is not a value for {name} in --grid") from None


def _settings(shared: Mapping[str, Any], changes: Sequence[Change]) -> Settings:
    given = dict(shared)
    parameters = {method: dict(own) for method, own in given.get("parameters", {}).items()}
    for name, value in changes:
        method, dot, parameter = name.rpartition(".")
        if dot:
            parameters.setdefault(method, {})[parameter] = value
        else:
            given[name] = value
    return make_settings({**given, "parameters": parameters})


def _keys(method: str, study: Study) -> list[list[str]]:
    """The keys of each candidate's runs, seed by seed."""
    found: list[list[str]] = [[] for _ in study.grid]
    for cell in make_cells(study.grid):
        cell = cell.with_clusters()
        federation = cell.federation()
        for own, settings in zip(found, cell.settings, strict=True):
            runs = replace(cell, settings=(settings,)).runs(federation)
            own.append(next(run.key for run in runs if run.name == method))
    return found


def _candidate(changes: tuple[Change, ...], records: Sequence[Record]) -> Candidate:
    means = [_means(record) for record in records]
    return Candidate(changes, tuple(loss for loss, _ in means), tuple(value for _, value in means))


def _means(record: Record) -> tuple[float, float]:
    """Validation loss and metric over those clients that have validation rows, each counting alike; the metric over
    those on whose rows it is defined."""
    known = [client for client in record["clients"] if "val_loss" in client]
    if not known:
        return math.nan, math.nan
    return float(np.mean([client["val_loss"] for client in known])), metrics.mean(client["val"] for client in known)
