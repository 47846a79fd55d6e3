"""What a study would cost, without training anything."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from fedekd.runs.execution import Failure
from fedekd.runs.observers import Observer
from fedekd.runs.store import read_records
from fedekd.studies.grid import Study
from fedekd.studies.study_plan import plan_study
from fedekd.units import volume


@dataclass(frozen=True)
class DatasetCost:
    """A dataset's part of a study. Samples and bytes are those of the runs still to do."""

    dataset: str
    runs: int
    done: int
    samples: int
    traffic: int


@dataclass(frozen=True)
class DryRun:
    name: str
    parts: list[DatasetCost]
    absent: dict[str, str]
    failed: list[Failure]

    @property
    def total(self) -> DatasetCost:
        sums = (sum(getattr(part, key) for part in self.parts) for key in ("runs", "done", "samples", "traffic"))
        return DatasetCost("in all", *sums)

    def text(self) -> str:
        table: list[tuple[str, ...]] = [("dataset", "runs", "done", "to do", "samples to train on", "to send")]
        for c in (*self.parts, self.total):
            numbers = (c.runs, c.done, c.runs - c.done, c.samples)
            table.append((c.dataset, *(f"{n:,}" for n in numbers), volume(c.traffic)))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [f"study {self.name}"]
        for row in table:
            cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            lines.append("  ".join((row[0].ljust(widths[0]), *cells)))
        lines += [f"{name} is left out: {reason}" for name, reason in self.absent.items()]
        lines += [failure.text() for failure in self.failed]
        return "\n".join(lines)


def describe(study: Study, folder: str | Path | None = None, observer: Observer | None = None) -> DryRun:
    """What ``run_study`` would do; writes nothing but the clusters of regression datasets, beside the data."""
    plan = plan_study(study, observer or Observer(), keep=lambda cell: False)
    done = {record["key"] for record in read_records(Path(folder or study.out) / "results.jsonl")}
    parts = []
    for dataset, group in itertools.groupby(plan.runs, lambda run: run.dataset):
        runs = list(group)
        waiting = [run for run in runs if run.key not in done]
        samples, traffic = sum(r.samples for r in waiting), sum(r.traffic for r in waiting)
        parts.append(DatasetCost(dataset, len(runs), len(runs) - len(waiting), samples, traffic))
    return DryRun(study.name, parts, plan.absent, plan.failed)
