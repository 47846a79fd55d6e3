"""The records of `fedekd study joining` and of the rivals' configurations, as docs/make_joining.py needs them."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedekd.metrics import paired_interval
from fedekd.runs.alone import is_menu
from fedekd.runs.findings import TITLES
from fedekd.runs.records import Record
from fedekd.runs.results import load
from fedekd.runs.transfer import MethodTransfer, analyse

HOME = Path(__file__).resolve().parents[1]
BASE, NEAR = "second-opinion", "second-opinion-near"


def records(study: str) -> list[Record]:
    return load(HOME / "results" / study).records


def points(value: float) -> str:
    return f"{100 * value:+.2f}".replace("-", "−") if abs(100 * value) >= 0.005 else "0.00"


def rmse(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def with_interval(values: list[float]) -> str:
    found = paired_interval(values)
    half = "" if found is None else f" ± {100 * (found[1] - found[0]) / 2:.2f}"
    return points(float(np.mean(values))) + half


def clearly_above(values: Sequence[float]) -> bool:
    found = paired_interval(list(values))
    return found is not None and found[0] > 0


@dataclass
class Setting:
    """One column of the study: a dataset with so many rows, dealt out so unevenly."""

    dataset: str
    alpha: float | None
    fraction: float
    clients: int
    found: list[Record]

    @cached_property
    def records(self) -> list[Record]:
        """Of methods as the study runs them."""
        return [r for r in self.found if r["label"] == r["method"]]

    @property
    def name(self) -> str:
        return f"{TITLES.get(self.dataset, self.dataset)} {self.split}"

    @property
    def in_brackets(self) -> str:
        """The name where several stand in one sentence: the split has commas."""
        return f"{TITLES.get(self.dataset, self.dataset)} ({self.split})"

    @property
    def split(self) -> str:
        """Without the dataset."""
        share = "all rows" if self.fraction == 1 else f"{100 * self.fraction:g} %"
        many = "" if self.clients == 6 else f", {self.clients} clients"
        return f"α={self.alpha:g}, {share}{many}"

    @cached_property
    def by(self) -> dict[str, dict[int, Record]]:
        return by_label(self.records)

    @cached_property
    def other_configurations(self) -> dict[str, dict[int, Record]]:
        """Of rivals, with other values than the study's: `ditto (lam=3.0)`."""
        return by_label([r for r in self.found if r["label"] != r["method"]])

    @cached_property
    def taken_apart(self) -> dict[str, MethodTransfer]:
        return {one.label: one for one in analyse(self.records)}

    def taken_apart_with(self, label: str) -> MethodTransfer:
        """A method, or one in another configuration, which then counts among the methods of the study."""
        if label in self.taken_apart:
            return self.taken_apart[label]
        found = analyse([*self.records, *self.other_configurations[label].values()])
        return next(one for one in found if one.label == label)

    @cached_property
    def taken_apart_by_loss(self) -> dict[str, MethodTransfer]:
        """Where validation loss chooses the best alone."""
        return {one.label: one for one in analyse(self.records, chosen_by="loss")}

    @property
    def rows(self) -> float:
        return float(np.mean([c["n_train"] for r in self.by["local"].values() for c in r["clients"]]))

    def deltas(self, label: str, seeds: Iterable[int]) -> np.ndarray:
        runs = self.by.get(label) or self.other_configurations[label]
        return np.array([runs[seed]["avg_delta"] for seed in seeds])

    def lead(self, label: str, ours: str = NEAR) -> list[float]:
        """By how much second-opinion-near, or another method, is ahead of this one, seed by seed."""
        runs = self.by.get(label) or self.other_configurations[label]
        seeds = sorted(set(self.by[ours]) & set(runs))
        return list(self.deltas(ours, seeds) - self.deltas(label, seeds))


def by_label(some: list[Record]) -> dict[str, dict[int, Record]]:
    found: dict[str, dict[int, Record]] = defaultdict(dict)
    for r in some:
        found[r["label"]][r["seed"]] = r
    return found


def settings() -> list[Setting]:
    found: dict[tuple[str, float | None, float, int], list[Record]] = defaultdict(list)
    for r in records("joining"):
        how = r["partition"]
        found[r["dataset"], r["alpha"], how.get("fraction", 1.0), how["clients"]].append(r)
    every = [one for place, some in found.items() if BASE in (one := Setting(*place, some)).by]
    return sorted(every, key=lambda one: (one.dataset, -(one.alpha or 0), one.fraction))


@dataclass
class Standing:
    """In how many settings a method is clearly better than what it is compared with, and how many clients it helped."""

    settings: int
    parts: dict[str, int]
    states: Counter[str]
    ahead_of_fedavg: int
    ahead_of_all: int
    behind_any: int
    behind: dict[str, list[str]]
    """Where a rival has the highest mean: settings by what is to be said of it."""

    @property
    def highest(self) -> int:
        return self.settings - sum(map(len, self.behind.values()))


def standing(every: list[Setting], label: str) -> Standing:
    found = [one.taken_apart[label] for one in every]
    parts = {part: sum(method.summary[part]["interval"][0] > 0 for method in found) for part in ("federation", "gain")}
    leads = {
        one.in_brackets: {
            rival: one.lead(rival, label)
            for rival in (*one.by, *one.other_configurations)
            if not (rival.startswith(BASE) or "@" in rival or is_menu(rival))
        }
        for one in every
    }
    behind: dict[str, list[str]] = defaultdict(list)
    for name, some in leads.items():
        best = min(some, key=lambda rival: float(np.mean(some[rival])))
        if np.mean(some[best]) < 0:
            clearly = "" if clearly_above([-lead for lead in some[best]]) else ", not clearly,"
            behind[f"`{best}` has the highest mean{clearly} on"].append(name)
    return Standing(
        len(every),
        parts,
        sum((Counter(method.states) for method in found), Counter()),
        sum(clearly_above(some["fedavg"]) for some in leads.values()),
        sum(all(map(clearly_above, some.values())) for some in leads.values()),
        sum(any(clearly_above([-x for x in lead]) for lead in some.values()) for some in leads.values()),
        behind,
    )


def interval(found: Sequence[float] | None, show: Callable[[float], str] = points) -> str:
    return "" if found is None else f" [{show(found[0])}, {show(found[1])}]"


AS_IN_STUDY = "as in the study"


@dataclass
class Tuned:
    """The rivals' configurations on seeds 100 and 101, and the one that validation rows chose on seeds 0 to 4."""

    every: list[Setting]

    def __post_init__(self) -> None:
        self.runs: dict[str, dict[float | None, dict[str, list[Record]]]] = defaultdict(lambda: defaultdict(dict))
        for r in records("tuning"):
            rate = f"lr={r['params']['lr']:g}" if r["params"]["lr"] != 1e-3 else ""
            configuration = "".join(r["label"].split(" (")[1:]).rstrip(")") or rate or AS_IN_STUDY
            if r["method"] != "local":
                self.runs[r["method"]][r["alpha"]].setdefault(configuration, []).append(r)
        at = "α=0.5, 10 %", "α=0.1, 10 %"
        self.tenth = {one.alpha: one for one in self.every if one.split in at and "Organ" in one.name}

    def chosen(self, method: str, alpha: float) -> tuple[str, float]:
        """The configuration with the lowest validation loss, and what it gives over the study's."""
        means = {
            name: np.mean([[c["chosen"]["val_loss"], c["chosen"]["value"]] for r in some for c in r["clients"]], 0)
            for name, some in self.runs[method][alpha].items()
        }
        best = min(means, key=lambda name: means[name][0])
        return best, means[best][1] - means[AS_IN_STUDY][1]

    def by_accuracy(self) -> str:
        """What validation accuracy after the last round, by which this page compares, would choose in their place."""
        found = []
        for method, alpha in itertools.product(sorted(self.runs), (0.5, 0.1)):
            some = self.runs[method][alpha]
            means = {name: np.mean([c["val"] for r in runs for c in r["clients"]]) for name, runs in some.items()}
            best = max(means, key=means.__getitem__)
            if best not in (AS_IN_STUDY, self.chosen(method, alpha)[0]):
                run = f"{method} ({best})" in self.tenth[alpha].other_configurations
                found.append(f"`{method}` ({best}) at α={alpha:g}{'' if run else ', not run on seeds 0 to 4'}")
        return (
            "Validation accuracy after the last round would have chosen still others: " + "; ".join(found) + "."
            if found
            else ""
        )

    def leads(self) -> dict[tuple[str, float], list[float] | None]:
        """By how much `NEAR` is ahead of each chosen configuration that is not the study's; None: not run."""
        found: dict[tuple[str, float], list[float] | None] = {}
        for method, alpha in itertools.product(sorted(self.runs), (0.5, 0.1)):
            one, (best, _) = self.tenth[alpha], self.chosen(method, alpha)
            label = f"{method} ({best})"
            if best != AS_IN_STUDY:
                found[method, alpha] = one.lead(label) if label in one.other_configurations else None
        return found

    def table(self) -> list[str]:
        leads, heads = self.leads(), "chosen | gives | behind | the study's behind"
        lines = [f"| rival | besides the study's | α=0.5: {heads} | α=0.1: {heads} |"]
        lines.append("| --- | --- |" + " --- | ---: | ---: | ---: |" * 2)
        for method, by_alpha in sorted(self.runs.items()):
            cells = [method, ", ".join(name for name in by_alpha[0.5] if name != AS_IN_STUDY)]
            for alpha in (0.5, 0.1):
                best, gives = self.chosen(method, alpha)
                lead = leads.get((method, alpha))
                ours = [points(gives), with_interval(lead) if lead else "–"] if best != AS_IN_STUDY else ["", ""]
                cells += [best, *ours, with_interval(self.tenth[alpha].lead(method))]
            lines.append("| " + " | ".join(cells) + " |")
        return lines

    def with_few_rows(self) -> list[str]:
        """How far rivals are behind over all settings with few rows, as in the study and in the other configuration."""
        few = [one for one in self.every if one.fraction < 1]
        run = set.intersection(*(set(one.other_configurations) for one in few))
        behind = {
            label: [100 * float(np.mean([one.lead(name) for one in few])) for name in (label.split(" (")[0], label)]
            for label in run
        }
        lines = [f"| other configuration | the study's behind, mean of {len(few)} settings | this one behind |"]
        lines.append("| --- | ---: | ---: |")
        for label, (before, after) in sorted(behind.items(), key=lambda item: item[1][1]):
            lines.append(f"| {label} | {before:+.2f} | {after:+.2f} |")
        return lines

    def said(self) -> str:
        """Of the chosen configurations on seeds 0 to 4."""
        leads = self.leads()
        run = {place: lead for place, lead in leads.items() if lead}
        if not run:
            return "The configurations that were chosen have not been run on seeds 0 to 4."
        behind = sum(np.mean(lead) > 0 for lead in run.values())
        clearly = sum(clearly_above(lead) for lead in run.values())
        ahead = [
            f"{method} ({self.chosen(method, alpha)[0]}) at α={alpha:g} is "
            f"{'clearly ' * clearly_above([-x for x in lead])}ahead"
            for (method, alpha), lead in run.items()
            if np.mean(lead) <= 0
        ]
        left = f"; {', '.join(ahead)}" if ahead else ""
        missing = " A dash: the chosen one has not been run on seeds 0 to 4." if len(run) < len(leads) else ""
        return (
            f"For {len(leads)} of the {2 * len(self.runs)} pairs of rival and α it is not the study's. Of these, "
            f"{len(run)} were run on seeds 0 to 4: {behind} are behind, {clearly} of them clearly{left}.{missing}"
        )
