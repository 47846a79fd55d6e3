"""A study's records as its page's charts need them: cells of dataset and alpha, methods in the paper's order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedekd import metrics
from fedekd.report.html.chart import Choice, MetricScale
from fedekd.report.paper_tables import METHODS, OURS
from fedekd.report.study_records import StudyColumn, StudyRecords
from fedekd.runs.findings import FAVOURITE, TITLES
from fedekd.runs.records import FailureRow, Record

TASKS = ("classification", "regression")
VERDICTS = {1: "helps", -1: "harms", 0: "undecided"}


class StudyData:
    def __init__(
        self, records: Sequence[Record], failures: Sequence[FailureRow], folder: str | Path, best_of: bool
    ) -> None:
        self.study = StudyRecords(records, failures, folder, best_of)
        self.records = self.study.records
        self.tasks = [task for task in TASKS if self.study.columns(task)]
        self.scales = {task: MetricScale(self.study.unit(task)) for task in self.tasks}
        known = dict.fromkeys(("local", FAVOURITE, *METHODS.values(), *OURS))
        plain = self.study.shown_labels()
        self.labels = [m for m in known if m in plain] + [m for m in plain if m not in known]
        joined = {label for label, _ in self.study.transfer}
        self.compared = [m for m in self.labels if m in joined]
        self.alphas = sorted({r["alpha"] for r in self.records}, key=lambda alpha: (alpha is None, alpha))

    @property
    def favourite(self) -> int:
        return self.compared.index(FAVOURITE) if FAVOURITE in self.compared else 0

    def choices(self) -> list[Choice]:
        return [Choice("method", "Method", tuple(self.compared), self.favourite)] if self.compared else []

    def delta(self, label: str, column: StudyColumn) -> dict[str, Any] | None:
        """The mean Δ of a cell with its paired interval over seeds, in the units of the charts."""
        runs = self.study.runs(label, column)
        if not runs:
            return None
        scale = self.scales[self.study.task[column]]
        deltas = [scale.factor * run["avg_delta"] for run in runs]
        mean = metrics.mean(deltas)
        interval = metrics.paired_interval(deltas)
        return {
            "mean": mean,
            "low": interval[0] if interval else None,
            "high": interval[1] if interval else None,
            "seeds": len(runs),
            "verdict": VERDICTS[scale.unit.direction(interval)] if interval else "one seed",
        }


def dataset_title(dataset: str) -> str:
    return TITLES.get(dataset, dataset)


def alpha_title(alpha: float | None) -> str:
    return "no α" if alpha is None else f"α = {alpha:g}"
