"""A study's records looked up by method and column, and what is missing among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from fedekd import metrics
from fedekd.data.paper import PRESET
from fedekd.errors import FedekdError
from fedekd.report.table_formats import TableCell
from fedekd.runs.aggregate import as_shown, named_settings, usual_settings
from fedekd.runs.best_of import best_of
from fedekd.runs.choosing import choice_of
from fedekd.runs.findings import TITLES, Finding, findings
from fedekd.runs.records import FailureRow, Figure, Record
from fedekd.runs.subgroups import MethodSubgroups, by_subgroup
from fedekd.runs.transfer import MethodTransfer, analyse
from fedekd.units import Unit, count, usual_metric

StudyColumn = tuple[str, float | None]  # dataset and alpha
NAMED = 6  # methods in a note
NOTHING_TO_CHOOSE = (
    "--best-of: no method here has several configurations that validation rows can choose from; run one with its "
    "defaults and with other parameters on the same seeds, with --alone menu (records without validation results do "
    "not count)"
)


class StudyRecords:
    """The last record for each dataset, alpha, label and seed, of each dataset's most frequent settings.

    Those of one task are in one metric, the most frequent; ``folder`` is where the records lie. With
    ``with_best_of`` clients choose among a method's configurations too, by what chooses the best alone.
    """

    def __init__(
        self,
        records: Sequence[Record],
        failures: Sequence[FailureRow] = (),
        folder: str | Path | None = None,
        with_best_of: bool = False,
    ) -> None:
        self.folder, self.chosen_by = folder, choice_of(records)
        every = {record["key"]: record for record in records}
        metrics_of: dict[str, Counter[str]] = {}
        for record in every.values():
            metrics_of.setdefault(record["task"], Counter())[record["metric"]] += 1
        self.metric = {task: counter.most_common(1)[0][0] for task, counter in metrics_of.items()}
        self.records = usual_settings([r for r in every.values() if r["metric"] == self.metric[r["task"]]])
        kept = {r["key"] for r in self.records}
        self._others = [r for key, r in every.items() if key not in kept]
        self.left_out = Counter(r["dataset"] for r in self._others)
        self.failures = [f for f in failures if f["key"] not in every]
        self.by: dict[tuple[str, StudyColumn], dict[int, Record]] = {}
        self.task = {(r["dataset"], r["alpha"]): r["task"] for r in self.records}
        self.most: dict[str, set[int]] = {}  # seeds that any run of a dataset has
        for r in self.records:
            self.by.setdefault((r["label"], (r["dataset"], r["alpha"])), {})[r["seed"]] = r
            self.most.setdefault(r["dataset"], set()).add(r["seed"])
        self.best_of = best_of(self.records) if with_best_of else []
        if with_best_of and not self.best_of:
            raise FedekdError(NOTHING_TO_CHOOSE)

    @staticmethod
    def key_of(title: str) -> str:
        return next(key for key, known in TITLES.items() if known == title)

    @cached_property
    def transfer(self) -> dict[tuple[str, StudyColumn], MethodTransfer]:
        """By label and column, of the methods shown and of ``best_of``: Holm's method covers what a column shows."""
        shown = [*self._shown, *(record for one in self.best_of for record in one.records)]
        analysed = analyse(shown, self.folder)
        return {(one.label, (one.dataset, one.alpha)): one for one in analysed}

    @cached_property
    def subgroups(self) -> list[MethodSubgroups]:
        return by_subgroup(self._shown, self.folder)

    @cached_property
    def _shown(self) -> list[Record]:
        return as_shown(self.records)

    def unit(self, task: str) -> Unit:
        own = [record for record in self.records if record["task"] == task]
        return Unit.of(own or [{"metric": usual_metric(task), "clients": []}])

    @property
    def like_paper(self) -> bool:
        """Whether anything was trained on all rows and for as long as the paper trains, so that its figures compare."""
        return any(
            record["dataset"] in TITLES
            and not record["partition"].get("fraction")
            and all(record["params"].get(name, value) == value for name, value in PRESET.items())
            for record in self.records
        )

    def in_usual_metric(self, task: str) -> bool:
        return self.metric.get(task, usual_metric(task)) == usual_metric(task)

    @cached_property
    def findings(self) -> list[Finding]:
        chosen_among = {one.label for one in self.best_of}
        return findings(self.records, [one for one in self.transfer.values() if one.label not in chosen_among])

    # --- what there is -----------------------------------------------------------------------------------

    def columns(self, task: str) -> list[StudyColumn]:
        return sorted((c for c, kind in self.task.items() if kind == task), key=lambda c: (c[0], c[1] or 0.0))

    def shown_labels(self) -> list[str]:
        """Without those whose parameters were changed, where the method itself was run too."""
        return list(dict.fromkeys(r["label"] for r in self._shown))

    def has(self, label: str, columns: Iterable[StudyColumn]) -> bool:
        return any((label, column) in self.by for column in columns)

    def runs(self, label: str, column: StudyColumn) -> list[Record]:
        return [run for _, run in sorted(self.by.get((label, column), {}).items())]

    def few(self, seeds: int, column: StudyColumn) -> bool:
        """Whether a cell has fewer seeds than others of its dataset."""
        return seeds < len(self.most[column[0]])

    # --- figures -----------------------------------------------------------------------------------------

    def mean(self, label: str, column: StudyColumn, key: Figure) -> TableCell:
        values = [run[key] for run in self.runs(label, column)]
        if not values:
            return TableCell()
        over = metrics.over_seeds(values)
        std = over["std"] if len(values) > 1 else None
        return TableCell(over["mean"], std, seeds=len(values), few=self.few(len(values), column))

    def difference(self, label: str, other: str, column: StudyColumn) -> TableCell:
        """The mean client's gain over another method, seed by seed."""
        one, two = self.by.get((label, column), {}), self.by.get((other, column), {})
        paired = [one[seed]["mean"] - two[seed]["mean"] for seed in sorted(one.keys() & two.keys())]
        if not paired:
            return TableCell()
        mean, interval = sum(paired) / len(paired), metrics.paired_interval(paired)
        return TableCell(mean, interval=interval, seeds=len(paired), few=self.few(len(paired), column))

    # --- words -------------------------------------------------------------------------------------------

    def heads(self, columns: Sequence[StudyColumn]) -> tuple[tuple[str, str], ...]:
        return tuple((TITLES.get(d, d), self.split(d) if alpha is None else f"α={alpha:g}") for d, alpha in columns)

    def split(self, dataset: str) -> str:
        """How a dataset's rows were dealt out where there is no α."""
        (kind, *_) = (r["partition"]["kind"] for r in self.records if (r["dataset"], r["alpha"]) == (dataset, None))
        return "dealt out evenly" if kind == "iid" else "own sites"

    def notes(self, labels: Collection[str], columns: Sequence[StudyColumn]) -> list[str]:
        """What is missing from a table of these rows and columns, and why as far as that is known."""
        notes, wanted = [], {column: len(self.most[column[0]]) for column in columns}
        lacking: dict[str, dict[str, int]] = {}  # how many runs, by dataset and label
        for label in labels:
            for column in columns:
                if runs := wanted[column] - len(self.by.get((label, column), {})):
                    own = lacking.setdefault(column[0], {})
                    own[label] = own.get(label, 0) + runs
        all_ = len(labels) * sum(wanted.values())
        if missing := sum(sum(own.values()) for own in lacking.values()):
            which = "; ".join(self._lacking(lacking))
            notes.append(
                f"{missing:,} of this table's {all_:,} runs are missing: {which}; n: seeds where they are fewer"
            )
        for dataset in dict.fromkeys(dataset for dataset, _ in columns):
            title = TITLES.get(dataset, dataset)
            if any(f["dataset"] == dataset for f in self.failures):
                notes.append(self._failed(dataset))
            if self.left_out[dataset]:
                left = f"left out: {count(self.left_out[dataset], 'run')} of {title} with other settings"
                notes.append(f"{left}; {self._settings(dataset)}")
        return notes

    def _settings(self, dataset: str) -> str:
        """The settings that often differ within a study, as they are in the runs that are shown."""
        first = next(record for record in self.records if record["dataset"] == dataset)
        share = first["partition"].get("fraction")
        rows = f"{100 * share:g} % of the training rows" if share else "all training rows"
        size = f"{count(first['partition']['clients'], 'client')}, {count(first['params']['rounds'], 'round')}"
        own, *others = (named_settings(r) for r in (first, *self._others) if r["dataset"] == dataset)
        own, *others = ({**one, "metric": one["metric"] or usual_metric(first["task"])} for one in (own, *others))
        apart = [n for n in own if n not in ("rounds", "clients", "fraction") and any(p[n] != own[n] for p in others)]
        told = "".join(f", no {name}" if own[name] is None else f", {name} {own[name]}" for name in apart)
        return f"those shown have {size} and {rows}{told}"

    def _lacking(self, by_dataset: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
        """What is missing, with datasets that lack the same methods taken together."""
        alike: dict[tuple[str, ...], list[str]] = {}
        for dataset, own in by_dataset.items():
            alike.setdefault(tuple(own), []).append(dataset)
        for labels, datasets in sorted(alike.items(), key=lambda item: len(item[0])):
            runs = sum(sum(by_dataset[dataset].values()) for dataset in datasets)
            more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
            what = f"{', '.join(labels[:NAMED])}{more}"
            yield f"{what} of {', '.join(TITLES.get(dataset, dataset) for dataset in datasets)} ({runs:,})"

    def absent(self, datasets: Iterable[str]) -> list[str]:
        """Why there is nothing of some datasets, as far as that is known."""
        absent = sorted(set(datasets) - {dataset for dataset, _ in self.task}, key=list(TITLES).index)
        failed = [dataset for dataset in absent if any(f["dataset"] == dataset for f in self.failures)]
        notes = [self._failed(dataset) for dataset in failed]
        if others := [dataset for dataset in absent if dataset not in failed]:
            titles = ", ".join(TITLES[dataset] for dataset in others)
            notes.append(f"no runs of {titles} here: not asked for, or `fedekd data fetch NAME` first")
        return notes

    def failed(self) -> list[str]:
        """What could not be run, dataset by dataset."""
        return [self._failed(dataset) for dataset in dict.fromkeys(f["dataset"] for f in self.failures)]

    def _failed(self, dataset: str) -> str:
        own = [f for f in self.failures if f["dataset"] == dataset]
        title, error = TITLES.get(dataset, dataset), own[-1]["error"]
        if not any(record["dataset"] == dataset for record in self.records):
            return f"no runs of {title} here: {error}"
        runs = count(len({(f["key"], f["alpha"], f["seed"]) for f in own}), "run")
        return f"{runs} of {title} failed, the last with: {error}"
