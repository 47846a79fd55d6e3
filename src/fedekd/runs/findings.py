"""What a study finds of a method, dataset by dataset: what it gives over plain Local, how much of that is federation,
how much a site could have alone, and what its gate adds.

The page, the end of a study on the terminal and the documentation say the same, since all of it is made here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from fedekd import metrics
from fedekd.data.paper import PAPER
from fedekd.runs.aggregate import as_shown, usual_settings
from fedekd.runs.alone import twin_label
from fedekd.runs.records import Record
from fedekd.runs.transfer import MethodTransfer, analyse
from fedekd.runs.verdict_text import PART_WORDS
from fedekd.units import Unit, count

TITLES = {one.name: one.title for one in PAPER}
FAVOURITE = "fedekd"
SMOOTH = "local-smooth"
HALF = "-half"
MEANINGS = {
    "delta": "Δ: the method minus plain Local",
    "recipe": "recipe: its twin that exchanges nothing minus Local",
    "federation": "federation: the method minus that twin",
    "smooth": f"smoothed alone: {SMOOTH}, which sends nothing, minus Local",
    "gain": "gain: the method minus the best that each client can do alone, chosen on its validation rows",
    "gate": "over half the λ: the method minus itself with the constant weight ½ in place of its gate",
}


def legend(parts: Collection[str] = tuple(PART_WORDS)) -> str:
    """What a table of these parts holds."""
    means = "Means over clients, splits and seeds, with 95 % intervals paired by seed."
    return f"{means} {'; '.join(words for part, words in MEANINGS.items() if part in parts)}."


AGAINST = {"delta": "plain Local", "gain": "the best a site can do alone"}

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Measured:
    """A mean over clients, splits and seeds."""

    mean: float
    interval: tuple[float, float] | None
    """95 %, paired by seed; None with one seed."""
    seeds: int
    alphas: tuple[float | None, ...]


@dataclass(frozen=True)
class Finding:
    """One method on one dataset."""

    dataset: str
    label: str
    alphas: tuple[float | None, ...]
    parts: Mapping[str, Measured]
    """Those of PART_WORDS that the records allow."""
    twin: str
    unit: Unit

    @property
    def title(self) -> str:
        return TITLES.get(self.dataset, self.dataset)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The controls that have not been run."""
        return tuple(name for name, part in ((self.twin, "federation"), (SMOOTH, "smooth")) if part not in self.parts)

    def direction(self, part: str) -> int:
        """1 where the whole interval is on the better side of zero, -1 on the worse, 0 where it holds zero."""
        return self.unit.direction(self.parts[part].interval)

    def mean(self, part: str, unit: bool = False) -> str:
        """The mean, or – if it is not known."""
        if part not in self.parts:
            return "–"
        name = (" points" if self.unit.percent else f" {self.unit.name}") if unit else ""
        return self.unit.delta(self.parts[part].mean) + name

    def interval(self, part: str) -> str:
        """The interval in parentheses, with the splits that it covers if those are not all."""
        if part not in self.parts:
            return ""
        one = self.parts[part]
        splits = ", ".join(f"α = {alpha:g}" for alpha in one.alphas if alpha is not None)
        some = f", {splits} only" if set(one.alphas) != set(self.alphas) else ""
        sure = " to ".join(map(self.unit.delta, one.interval)) if one.interval else "one seed"
        return f"({sure}{some})"

    def figure(self, part: str, unit: bool = False) -> str:
        """The mean and its interval."""
        return f"{self.mean(part, unit)} {self.interval(part)}".rstrip()

    def sentence(self) -> str:
        """Everything that is known, in words; what may be chance is called so."""
        return " ".join(filter(None, (f"{self.title}:", self._given(), self._alone(), self._gate())))

    def _given(self) -> str:
        if "delta" not in self.parts:
            return ""
        verb = {1: "is better than", -1: "is worse than", 0: "makes no clear difference to"}[self.direction("delta")]
        text = f"{self.label} {verb} plain Local, {self.figure('delta', unit=True)}"
        if "federation" in self.parts:
            text += f"; federation gives {self._part('federation')}, the recipe without exchange {self._part('recipe')}"
        return f"{text}."

    def _part(self, part: str) -> str:
        interval = self.parts[part].interval
        chance = ", which may be chance" if interval and any(interval) and not self.direction(part) else ""
        return f"{self.figure(part)}{chance}"

    def _alone(self) -> str:
        told = []
        if "smooth" in self.parts:
            told.append(f"smoothed targets alone, which send nothing, give {self._part('smooth')}")
        if "gain" in self.parts:
            verb = {1: "gains", -1: "loses", 0: "neither clearly gains nor loses"}[self.direction("gain")]
            told.append(f"against the best alone {self.label} {verb}, {self.figure('gain')}")
        text = "; ".join(told)
        return f"{text[0].upper()}{text[1:]}." if text else ""

    def _gate(self) -> str:
        if "gate" not in self.parts:
            return ""
        verb = {1: "is better than", -1: "is worse than", 0: "makes no clear difference to"}[self.direction("gate")]
        return f"Its gate {verb} half the λ, {self.figure('gate')}."


def findings(
    records: Sequence[Record], analysed: Sequence[MethodTransfer] | None = None, folder: Path | None = None
) -> list[Finding]:
    """Of every method shown that needs a federation, from each dataset's runs with the most frequent settings.

    ``analysed`` is what ``analyse`` makes of them, where that is known already; ``folder`` is where the records lie.
    """
    kept = as_shown(usual_settings(records))
    found: dict[tuple[str, str], dict[float | None, MethodTransfer]] = {}
    for one in analyse(kept, folder) if analysed is None else analysed:
        found.setdefault((one.label, one.dataset), {})[one.alpha] = one
    order = list(TITLES)
    made = [
        _finding(by_alpha, found.get((label + HALF, dataset), {}), kept) for (label, dataset), by_alpha in found.items()
    ]
    labels = list(dict.fromkeys(one.label for one in made))
    return sorted(
        made,
        key=lambda one: (
            one.label != FAVOURITE,
            labels.index(one.label),
            order.index(one.dataset) if one.dataset in order else len(order),
        ),
    )


def _finding(
    by_alpha: Mapping[float | None, MethodTransfer],
    half: Mapping[float | None, MethodTransfer],
    records: Sequence[Record],
) -> Finding:
    first = next(iter(by_alpha.values()))
    own = [record for record in records if record["dataset"] == first.dataset]
    smooth: dict[float | None, dict[int, float]] = {}
    for record in own:
        if record["label"] == SMOOTH and record["alpha"] in by_alpha and not math.isnan(record["avg_delta"]):
            smooth.setdefault(record["alpha"], {})[record["seed"]] = record["avg_delta"]
    menus = {alpha: one for alpha, one in by_alpha.items() if len(one.menu) > 1}
    each: dict[str, Mapping[float | None, BySeed]] = {
        **{p: {a: one.by_seed(p) for a, one in by_alpha.items()} for p in ("delta", "recipe", "federation")},
        "smooth": smooth,
        "gain": {alpha: one.by_seed("gain") for alpha, one in menus.items()},
        "gate": {a: _minus(one.by_seed("delta"), half[a].by_seed("delta")) for a, one in by_alpha.items() if a in half},
    }
    parts = {part: measured for part in PART_WORDS if (measured := _over_splits(each[part]))}
    unit = Unit.of(own)
    run = next(record for record in own if record["label"] == first.label)
    return Finding(
        first.dataset, first.label, tuple(by_alpha), parts, twin_label(run), Unit(unit.metric, unit.decimals + 1)
    )


def _minus(one: BySeed, other: BySeed) -> BySeed:
    return {seed: value - other[seed] for seed, value in one.items() if seed in other}


def _over_splits(by_alpha: Mapping[float | None, BySeed]) -> Measured | None:
    """Splits count alike, on the seeds that all of them have."""
    known = {alpha: values for alpha, values in by_alpha.items() if values}
    seeds = sorted(set.intersection(*(set(values) for values in known.values()))) if known else []
    if not seeds:
        return None
    means = [fmean(values[seed] for values in known.values()) for seed in seeds]
    return Measured(fmean(means), metrics.paired_interval(means), len(seeds), tuple(known))


# --- words over several datasets -------------------------------------------------------------------------


def headline(found: Sequence[Finding]) -> str:
    """One method over all its datasets: does it beat plain Local, and the best that a site can do alone?"""
    if len(found) == 1:
        return _of_one_dataset(found[0])
    told: list[str] = []
    for part, what in AGAINST.items():
        if known := [one.direction(part) for one in found if part in one.parts]:
            of = count(len(known), "dataset") if not told else f"{len(known)}"
            told.append(f"than {what} on {known.count(1)} of {of}")
    return f"{found[0].label} is clearly better {', and '.join(told)}"


def _of_one_dataset(one: Finding) -> str:
    known = {what: one.direction(part) == 1 for part, what in AGAINST.items() if part in one.parts}
    better, others = ([what for what, is_better in known.items() if is_better == wanted] for wanted in (True, False))
    if not better:
        return f"{one.label} is not clearly better than {' or '.join(others)} on {one.title}"
    but = f", but not than {others[0]}" if others else ""
    return f"{one.label} is clearly better than {' and '.join(better)} on {one.title}{but}"


def losses(found: Sequence[Finding]) -> str:
    """Where the same method is clearly worse; nothing where that is nowhere."""
    told = []
    for part, what in AGAINST.items():
        if worse := [one.title for one in found if part in one.parts and one.direction(part) < 0]:
            told.append(f"clearly worse than {what} on {listed(worse)}")
    return f"It is {', and '.join(told)}" if told else ""


def not_known(found: Sequence[Finding]) -> list[str]:
    """Which controls have not been run on which datasets."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        if one.wanted:
            lacking.setdefault(one.wanted, []).append(one.title)
    lines = []
    for wanted, titles in lacking.items():
        what = "how much of this is federation" if wanted != (SMOOTH,) else "what smoothed targets alone would give"
        both = ", or what a site could have reached alone," if len(wanted) > 1 else ""
        ran = f"{listed(wanted)} {'were' if len(wanted) > 1 else 'was'} not run there"
        lines.append(f"{what}{both} is not known on {listed(titles)}: {ran}")
    return lines


def listed(names: Sequence[str]) -> str:
    """Names as a list in words: "one, two and three"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def told(found: Sequence[Finding]) -> list[str]:
    """In lines: how every method stands, and of the first one every dataset's sentence."""
    lines = []
    for place, label in enumerate(dict.fromkeys(one.label for one in found)):
        own = [one for one in found if one.label == label]
        lines.append(". ".join(filter(None, (headline(own), losses(own)))))
        if place == 0:
            lines += [f"  {line}" for line in (*(one.sentence() for one in own), *not_known(own))]
    return lines
