"""Helped, harmed, equivalent or undecided: what a client's test rows can say about two models, beyond chance.

One function, ``judge``, serves the terminal, the page, the tables and the sites. It compares what two models answered
on the same rows:

- right or wrong, one seed: McNemar's test with the mid-p value; the interval is Tango's (1998).
- any other metric, one seed: the paired swap test, which deals the two answers of each row to the two models at random.
  That takes the models for exchangeable. Where one is surer of itself than the other they are not: its log-likelihood
  has few but large losses. So Student's t with Hall's (1992) correction for skewness has to agree, other than on RMSE,
  where it hardly lowers the rate of false alarms. The interval is Student's with the bootstrap's standard error.
- several training seeds on the same rows: Student's t on the seeds' mean difference, whose variance is the bootstrap's
  over rows plus that between seeds. Two or three seeds tell the latter badly, so that no comparison's own counts for
  less than the mean over all that are shown; one that varies more than that counts with its own degrees of freedom.
- one seed for each fold of the rows: as with one seed, and Student's t has to agree whose variance holds what folds
  differ by beyond what their rows explain, pooled in the same way: each fold is another training.

What did not happen on few rows may still happen: the standard error of a share is never less than where no row changes.
Rows of one group, such as a patient, are swapped and drawn together. Holm's method (1979) keeps the chance of any false
"helped" or "harmed" among all comparisons that are shown together at 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from fedekd.significance import Spread, holm, mcnemar, normal, root, score_interval

HELPED, HARMED, EQUIVALENT, UNDECIDED = STATES = ("helped", "harmed", "equivalent", "undecided")
LEVEL = 0.05
POWER = 0.8
MARGIN = 0.02  # of a share such as accuracy: two points; of an error: two per cent of it
DRAWS = 2000  # of the swap test and the bootstrap, at least
ERROR_DRAWS = 200  # of the bootstrap where only a standard error is asked for
ENOUGH = 50  # draws as extreme as what was seen, after which no more are needed
FEW = 5  # rows, below which nothing is said

Measure = Callable[[np.ndarray], np.ndarray]
"""A metric: [B, rows, ...] of what is known of each row becomes [B] values."""


def share(rows: np.ndarray) -> np.ndarray:
    """Of rows that are 1 where the answer is right: the accuracy. Of losses: their mean."""
    return rows.mean(1)


def root_mean_square(rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(rows).mean(1))


@dataclass(frozen=True, eq=False)
class Comparison:
    """What two models predicted for one client's test rows, [seeds, rows, ...]: seeds of training, on the same rows."""

    joined: np.ndarray
    alone: np.ndarray
    measure: Measure = share
    higher_is_better: bool = True
    groups: np.ndarray | None = None
    """[rows]: rows with the same number belong together."""
    strata: np.ndarray | None = None
    """[rows]: which client each row is from, if several; what is drawn for the interval has as many from each."""
    margin: float | None = None
    """Differences within it count as none; by default MARGIN; for errors, a share of the error alone."""
    counted: bool = False
    """Whether the metric is a share of rows, or of pairs of rows, other than ``share`` itself."""
    folds: np.ndarray | None = None
    """[rows]: which training tested each row, where each training tests different rows."""
    minority: np.ndarray | None = None
    """[rows]: of a metric in which classes count alike, whether each is of another class than the commonest."""

    @property
    def trainings(self) -> int:
        """How many trainings found the difference: seeds or, with one seed, folds."""
        return len(self.joined) if len(self.joined) > 1 or self.folds is None else len(np.unique(self.folds))


@dataclass(frozen=True)
class Verdict:
    """What can be said of one comparison."""

    state: str
    """helped, harmed, equivalent or undecided."""
    difference: float
    """The result with the method minus that alone, in the metric's own units and direction."""
    low: float = math.nan
    high: float = math.nan
    """The upper end of its 95 % interval, as a single comparison."""
    p: float = 1.0
    """The p-value, adjusted by Holm's method."""
    margin: float = MARGIN
    detectable: float = math.inf
    """The smallest difference that these rows would show four times in five."""
    rows: int = 0
    seeds: int = 1
    reason: str = field(default="", compare=False)
    """Why nothing can be said, if so."""
    rows_needed: int | None = None
    """How many rows like these would show a difference as large as the margin four times in five; None if that cannot
    be told, or no number of rows would."""


def judge(comparisons: Sequence[Comparison], level: float = LEVEL, seed: int = 0) -> list[Verdict]:
    """A verdict for each comparison, adjusted for all those that are shown together.

    A clear difference stays clear even if it lies within the margin: its sign is known, and its size is shown.
    ``level`` is the chance of any false "helped" or "harmed" among them, and that an interval misses the difference.
    The draws of the swap test and the bootstrap follow from ``seed``.
    """
    family = _Family(level, len(comparisons), [_between(one) for one in comparisons])
    found = [_measured(one, own, family, seed) for one, own in zip(comparisons, family.between, strict=True)]
    known = [k for k, verdict in enumerate(found) if not verdict.reason]
    for k, p in zip(known, holm([found[k].p for k in known]), strict=True):
        verdict, sign = found[k], 1 if comparisons[k].higher_is_better else -1
        if p < level and verdict.difference:
            state = HELPED if sign * verdict.difference > 0 else HARMED
        else:
            within = -verdict.margin <= verdict.low and verdict.high <= verdict.margin
            rare = _rare(comparisons[k]) if within else ""
            state = EQUIVALENT if within and not rare else UNDECIDED
            verdict = replace(verdict, reason=rare)
        found[k] = replace(verdict, state=state, p=p)
    return found


def mean_interval(comparisons: Sequence[Comparison | None], level: float = LEVEL) -> tuple[float, float] | None:
    """Of the mean difference over clients that share no rows and count alike, each with a single training seed.

    It is over their test rows: it tells of these trained models and these clients. Student's, with Welch's degrees of
    freedom; a client with very few rows is taken to vary as the others do. Clients on whose rows the metric is not
    defined are left out; None where a client's rows are not known, or all have very few.
    """
    from scipy.special import stdtrit

    known = [one for one in comparisons if one is not None and len(one.joined) == 1]
    values = [(float(one.measure(one.joined)[0]), float(one.measure(one.alone)[0])) for one in known]
    defined = [k for k, (with_, alone) in enumerate(values) if not (math.isnan(with_) and math.isnan(alone))]
    mean = float(np.mean([values[k][0] - values[k][1] for k in defined])) if defined else math.nan
    if len(known) < len(comparisons) or not math.isfinite(mean):
        return None
    measured = [_row_variance(known[k], len(defined)) for k in defined]
    enough = [(variance, units - 1) for variance, units in measured if variance is not None]
    if not enough:
        return None
    pooled = sum(variance * freedom for variance, freedom in enough) / sum(freedom for _, freedom in enough)
    shared = sum(freedom for _, freedom in enough)
    errors = [
        (pooled / units, shared) if variance is None else (variance / units, max(units - 1, 1))
        for variance, units in measured
    ]
    total = sum(square for square, _ in errors)
    freedom = total**2 / sum(square**2 / own for square, own in errors) if total else 1
    half = float(stdtrit(freedom, 1 - level / 2)) * math.sqrt(total) / len(defined)
    return mean - half, mean + half


def _row_variance(one: Comparison, clients: int) -> tuple[float | None, float]:
    """What one of ``clients`` differences varies by, times its rows or groups, and how many they are.

    The pair of rows that Agresti and Min (2005) add, and the least that a share varies by, are shared out among the
    clients. None: too few to tell, other than of rows that are right or wrong.
    """
    joined, alone = (np.asarray(rows, float) for rows in (one.joined, one.alone))
    units = effective(one)
    least = _least(one, units) ** 2 * units / clients
    if one.groups is None and one.measure is share and _binary(joined, alone):
        won, lost = (float(better.sum()) + 0.5 / clients for better in (joined > alone, joined < alone))
        rows = joined.shape[1] + 2 / clients
        return max((won + lost - (won - lost) ** 2 / rows) / rows, least), rows
    if units < FEW:
        return None, units
    return max(_Draws(one, joined, alone, 0, ERROR_DRAWS).error() ** 2 * units, least), units


def effective(one: Comparison) -> float:
    """How many rows or groups there are; groups of unequal size count as the fewer that tell as much (Kish, 1965)."""
    if one.groups is None:
        return float(np.shape(one.joined)[1])
    sizes = np.unique(one.groups, return_counts=True)[1].astype(float)
    return float(sizes.sum() ** 2 / np.square(sizes).sum())


def _rare(one: Comparison) -> str:
    """Why rows cannot show that nothing changes, where so few are of rare classes that count as much as common ones."""
    if one.minority is None:
        return ""
    few = int(one.minority.sum()) if one.groups is None else len(np.unique(one.groups[one.minority]))
    what = f"{'test row' if one.groups is None else 'group'}{'s' if few > 1 else ''}"
    why = "of other classes than the commonest: too few to show that nothing changes"
    return f"only {few} {what} {why}" if 0 < few < FEW else ""


def _least(one: Comparison, units: float) -> float:
    """The standard error of a share where no row changes, as in Tango's interval; an error has none."""
    z = normal(1 - LEVEL / 2)
    return z / (units + z * z) if one.counted or one.measure is share else 0.0


def _between(one: Comparison) -> float:
    """The variance of the difference between trainings; NaN with one.

    Between folds it is what their rows do not explain, which can be less than nothing.
    """
    joined, alone = (np.asarray(rows, float) for rows in (one.joined, one.alone))
    if one.trainings < 2 or joined.shape != alone.shape or joined.shape[1] < FEW:
        return math.nan
    if len(joined) > 1:
        return float((one.measure(joined) - one.measure(alone)).var(ddof=1))
    parts = [one.folds == fold for fold in np.unique(np.asarray(one.folds))]
    each = np.array([float((one.measure(joined[:, own]) - one.measure(alone[:, own]))[0]) for own in parts])
    each = each[np.isfinite(each)]
    by_rows = _Draws(one, joined, alone, 0, ERROR_DRAWS).error() ** 2 * len(parts)
    return float(each.var(ddof=1)) - by_rows if len(each) > 1 else math.nan


@dataclass(frozen=True)
class _Family:
    """What is shown together."""

    level: float
    size: int
    between: Sequence[float]

    def variance(self, own: float) -> tuple[float, int]:
        """Between trainings, and how many comparisons it rests on: of a client that varies more than most, its own."""
        known = [v for v in self.between if math.isfinite(v)]
        mean = sum(known) / len(known)
        return (max(own, 0.0), 1) if own > mean else (max(mean, 0.0), len(known))


def _measured(one: Comparison, own: float, family: _Family, seed: int) -> Verdict:
    """A verdict whose p-value is not adjusted yet, and whose state is not set; ``own`` as ``_between`` gives it."""
    level = family.level
    joined, alone = (np.asarray(rows, float) for rows in (one.joined, one.alone))
    seeds, rows = joined.shape[:2]
    if joined.shape != alone.shape:
        raise ValueError(f"two models were tested on rows of shapes {joined.shape} and {alone.shape}")
    if rows < FEW:
        return Verdict(UNDECIDED, math.nan, rows=rows, seeds=seeds, reason=f"only {rows} test rows")
    values, zero = one.measure(joined), one.measure(alone)
    differences = values - zero
    margin = one.margin
    if margin is None:
        margin = MARGIN if one.higher_is_better else MARGIN * float(zero.mean())
    about = {"difference": float(differences.mean()), "margin": margin, "rows": rows, "seeds": seeds}
    if not np.isfinite(differences).all():
        return Verdict(UNDECIDED, **about, reason="the metric is not defined on these test rows")
    if one.groups is not None and (groups := len(np.unique(one.groups))) < FEW:
        return Verdict(UNDECIDED, **about, reason=f"only {groups} groups of test rows")
    if one.trainings == 1 and one.groups is None and one.measure is share and _binary(joined, alone):
        won, lost = int((joined > alone).sum()), int((joined < alone).sum())
        p, (low, high) = mcnemar(won, lost), score_interval(won, lost, rows, level)
        detectable, needed = _shown_by_shares(2 * min(won, lost) + 1, rows, margin, level, family.size)
        return Verdict(UNDECIDED, **about, low=low, high=high, p=p, detectable=detectable, rows_needed=needed)
    units, draws = effective(one), _Draws(one, joined, alone, seed)
    least = _least(one, units)
    within = max(draws.error(), least)
    between, pooled = family.variance(own) if math.isfinite(own) else (0.0, 1)
    between /= one.trainings
    spread = Spread.of(within**2, max(units - draws.parts, 1), between, pooled * (one.trainings - 1))
    low, high = spread.interval(about["difference"], level)
    if least:  # a share
        low, high = max(low, -1.0), min(high, 1.0)
    if seeds > 1:
        p = spread.p(about["difference"])
    else:
        p = draws.swap_test(max(DRAWS, 50 * family.size))
        if one.measure is not root_mean_square or between:
            p = max(p, spread.p(about["difference"], draws.skew() if within > least else 0.0))
    reach = spread.quantile(1 - level / (2 * family.size)) + spread.quantile(POWER)
    room = (margin / reach) ** 2 - between  # what rows may add to the variance
    needed = None
    if room > 0 and math.isfinite(within):  # the least error shrinks with the rows, any other with their root
        needed = max(rows, math.ceil(rows * (within / math.sqrt(room)) ** (2 if within > least else 1)))
    detectable = reach * spread.error
    if least and detectable > 1:  # more than a share can differ by
        detectable = math.inf
    return Verdict(UNDECIDED, **about, low=low, high=high, p=p, detectable=detectable, rows_needed=needed)


@lru_cache(maxsize=10_000)
def _shown_by_shares(chance: int, rows: int, margin: float, level: float, size: int) -> tuple[float, int | None]:
    """The smallest detectable difference of right or wrong rows, and how many would show the margin (Connor, 1987).

    ``chance``: on how many of the rows the models disagree as often for the one as for the other. All others that they
    disagree on make the difference, which therefore adds to the variance.
    """
    clear, often, by_chance = normal(1 - level / (2 * size)), normal(POWER), chance / rows
    fewest = math.ceil(math.log2(size / level))  # discordant rows; with less nothing is ever clear

    def root_rows(true: float) -> float:
        return clear * math.sqrt(by_chance + true) + often * math.sqrt(max(by_chance + true - true * true, 0.0))

    most = 1 - by_chance
    found = max(fewest / rows, root(lambda true: root_rows(true) - true * math.sqrt(rows), 0.0, 1.0))
    needed = max(rows, math.ceil(max((root_rows(margin) / margin) ** 2, fewest / margin))) if margin > 0 else None
    return found if found <= most else math.inf, needed


def _binary(*arrays: np.ndarray) -> bool:
    return all(bool(np.isin(a, (0.0, 1.0)).all()) for a in arrays)


class _Draws:
    """Rows dealt out again and again: between the two models for the test, from themselves for the interval."""

    def __init__(
        self, one: Comparison, joined: np.ndarray, alone: np.ndarray, seed: int, draws: int | None = None
    ) -> None:
        self.measure, self.joined, self.alone = one.measure, joined, alone
        self.groups, self.members, self.rng = np.arange(joined.shape[1]), None, np.random.default_rng(seed)
        if one.groups is not None:
            self.groups = np.unique(one.groups, return_inverse=True)[1]
            self.members = [np.flatnonzero(self.groups == g) for g in range(self.groups.max() + 1)]
        strata = np.zeros(joined.shape[1]) if one.strata is None else one.strata
        units = np.unique(self.groups, return_index=True)[1]  # a row or a group counts where its first row does
        self.strata = [np.flatnonzero(strata[units] == name) for name in np.unique(strata)]
        self.parts = len(self.strata)
        self.observed = float((one.measure(joined) - one.measure(alone)).mean())
        self.drawn = self._bootstrap(draws or DRAWS)

    def swap_test(self, draws: int) -> float:
        """The mid-p value; ``draws`` limits how small it can be. A large one needs fewer (Besag, Clifford 1991)."""
        a, b = self.joined[0], self.alone[0]
        extreme, limit, made = 0.0, abs(self.observed), 0
        for size in _chunks(DRAWS, a.size) + _chunks(draws - DRAWS, a.size):
            if made >= DRAWS and extreme >= ENOUGH:
                break
            made += size
            swap = (self.rng.random((size, self.groups.max() + 1)) < 0.5)[:, self.groups]
            swap = swap.reshape(*swap.shape, *[1] * (a.ndim - 1))
            found = np.abs(self.measure(np.where(swap, b, a)) - self.measure(np.where(swap, a, b)))
            tie = np.isclose(found, limit, rtol=1e-9, atol=1e-15)
            extreme += float((found > limit)[~tie].sum()) + 0.5 * float(tie.sum())
        return min(1.0, (extreme + 0.5) / (made + 1)) if limit else 1.0

    def error(self) -> float:
        """The bootstrap's, made larger by what rows, or groups, vary less among themselves than around the truth."""
        if not len(self.drawn):
            return math.inf
        units = len(self.groups) if self.members is None else len(self.members)
        return float(self.drawn.std()) * math.sqrt(units / max(units - self.parts, 1))

    def skew(self) -> float:
        apart = self.drawn - self.drawn.mean()
        return float((apart**3).mean() / apart.std() ** 3) if len(apart) and apart.std() > 0 else 0.0

    def _bootstrap(self, draws: int) -> np.ndarray:
        """The seeds' mean difference on rows drawn with replacement, where it is defined."""
        found = []
        for size in _chunks(draws, self.joined.size):
            if self.members is None:
                rows = self._picked(size)
                found.append(self._difference(self.joined[:, rows], self.alone[:, rows]))
                continue
            for _ in range(size):  # groups differ in size, so do the draws
                rows = np.concatenate([self.members[g] for g in self._picked(1)[0]])[None]
                found.append(self._difference(self.joined[:, rows], self.alone[:, rows]))
        drawn = np.concatenate(found)
        return drawn[np.isfinite(drawn)]

    def _picked(self, draws: int) -> np.ndarray:
        """[draws, rows or groups]: each stratum's drawn from its own, with replacement, in their places."""
        picked = np.empty((draws, sum(map(len, self.strata))), np.int64)
        for own in self.strata:
            picked[:, own] = own[self.rng.integers(0, len(own), (draws, len(own)))]
        return picked

    def _difference(self, joined: np.ndarray, alone: np.ndarray) -> np.ndarray:
        """Of [seeds, B, rows, ...]: [B], the mean over seeds."""
        return np.mean([self.measure(a) - self.measure(b) for a, b in zip(joined, alone, strict=True)], axis=0)


def _chunks(draws: int, size: int) -> list[int]:
    """The draws in pieces of about 64 MB at most."""
    most = max(1, min(draws, 8_000_000 // max(size, 1)))
    return [min(most, draws - start) for start in range(0, draws, most)]
