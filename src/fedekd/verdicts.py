"""Helped, harmed, equivalent or undecided: what a client's test rows can say about two models, beyond chance.

One function, ``judge``, serves the terminal, the page, the tables and the sites. It compares what two models answered
on the same rows:

- right or wrong, one seed: McNemar's test with the mid-p value; the interval is Agresti and Min's (2005).
- any other metric, one seed: the paired swap test, which deals the two answers of each row to the two models at random,
  and a bootstrap interval over rows. (A bootstrap's own p-value raises twice as many false alarms at 30 rows.)
- several training seeds on the same rows: Student's t on the seeds' mean difference, whose variance is the bootstrap's
  over rows plus that between seeds. Two or three seeds tell the latter badly, so that no comparison's own counts for
  less than the mean over all that are shown.

Rows of one group, such as a patient, are swapped and drawn together. Holm's method (1979) keeps the chance of any false
"helped" or "harmed" among all comparisons that are shown together at 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

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
    """What two models made of one client's test rows, [seeds, rows, ...]: seeds of training, on the same rows."""

    joined: np.ndarray
    alone: np.ndarray
    measure: Measure = share
    higher_is_better: bool = True
    groups: np.ndarray | None = None
    """[rows]: rows of one number belong together."""
    strata: np.ndarray | None = None
    """[rows]: of several clients' rows, whose each is; what is drawn for the interval has as many of each."""
    margin: float | None = None
    """Differences within it count as none; by default MARGIN, of errors in proportion to the one alone."""


@dataclass(frozen=True)
class Verdict:
    state: str
    difference: float
    """With the method minus alone, in the metric's own units and direction."""
    low: float = math.nan
    high: float = math.nan
    """Its 95 % interval, for this comparison alone."""
    p: float = 1.0
    """After Holm's method."""
    margin: float = MARGIN
    detectable: float = math.inf
    """The smallest difference that these rows would show four times in five."""
    rows: int = 0
    seeds: int = 1
    reason: str = field(default="", compare=False)
    """Why nothing can be said, where that is so."""

    @property
    def rows_needed(self) -> int | None:
        """Rows like these that would show a difference as large as the margin; None where that cannot be told."""
        if not (math.isfinite(self.detectable) and self.margin > 0):
            return None
        return max(self.rows, math.ceil(self.rows * (self.detectable / self.margin) ** 2))


def judge(comparisons: Sequence[Comparison], level: float = LEVEL, seed: int = 0) -> list[Verdict]:
    """A verdict for each comparison, of all those that are shown together.

    A difference that is clear stays clear where it lies within the margin: its sign is known, and its size is shown.
    """
    family = _Family(level, len(comparisons), [_between(one) for one in comparisons])
    found = [_measured(one, family, seed) for one in comparisons]
    known = [k for k, verdict in enumerate(found) if not verdict.reason]
    for k, p in zip(known, holm([found[k].p for k in known]), strict=True):
        verdict, sign = found[k], 1 if comparisons[k].higher_is_better else -1
        if p < level and verdict.difference:
            state = HELPED if sign * verdict.difference > 0 else HARMED
        else:
            within = -verdict.margin <= verdict.low and verdict.high <= verdict.margin
            state = EQUIVALENT if within else UNDECIDED
        found[k] = replace(verdict, state=state, p=p)
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values, in the order given."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, k in enumerate(sorted(range(len(p_values)), key=lambda k: p_values[k])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[k]))
        adjusted[k] = highest
    return adjusted


def mcnemar(won: int, lost: int) -> float:
    """The two-sided mid-p value of McNemar's exact test: rows that only the one, or only the other, has right."""
    total, least = won + lost, min(won, lost)
    if won == lost:
        return 1.0
    counts = np.arange(least + 1)
    logs = [math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) for k in counts]
    chances = np.exp(np.array(logs) - total * math.log(2))
    return min(1.0, float(2 * chances.sum() - chances[-1]))


def agresti_min(won: float, lost: float, rows: int, level: float = LEVEL) -> tuple[float, float]:
    """The interval of a difference of paired shares, which keeps a width where no row changes."""
    won, lost, n = won + 0.5, lost + 0.5, rows + 2
    centre = (won - lost) / n
    half = _normal(1 - level / 2) * math.sqrt(won + lost - (won - lost) ** 2 / n) / n
    return max(-1.0, centre - half), min(1.0, centre + half)


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

    The pair of rows that Agresti and Min add is shared out among the clients. None: too few to tell, other than of
    rows that are right or wrong.
    """
    joined, alone = (np.asarray(rows, float) for rows in (one.joined, one.alone))
    if one.groups is None and one.measure is share and _binary(joined, alone):
        won, lost = (float(better.sum()) + 0.5 / clients for better in (joined > alone, joined < alone))
        rows = joined.shape[1] + 2 / clients
        return (won + lost - (won - lost) ** 2 / rows) / rows, rows
    units = joined.shape[1] if one.groups is None else len(np.unique(one.groups))
    if units < FEW:
        return None, units
    return _Draws(one, joined, alone, 0, ERROR_DRAWS).error() ** 2 * units**2 / (units - 1), units


def _between(one: Comparison) -> float:
    """The variance of the difference between training seeds; NaN with one seed."""
    joined, alone = (np.asarray(rows, float) for rows in (one.joined, one.alone))
    if len(joined) < 2 or joined.shape != alone.shape or joined.shape[1] < FEW:
        return math.nan
    return float((one.measure(joined) - one.measure(alone)).var(ddof=1))


@dataclass(frozen=True)
class _Family:
    """What is shown together."""

    level: float
    size: int
    between: Sequence[float]

    def variance(self, own: float) -> tuple[float, int]:
        """Between seeds, and how many comparisons it rests on."""
        known = [v for v in self.between if math.isfinite(v)]
        return max(own, sum(known) / len(known)), len(known)


def _measured(one: Comparison, family: _Family, seed: int) -> Verdict:
    """A verdict whose p-value is not adjusted yet, and whose state is not set."""
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
    least, binary = 0.0, one.measure is share and _binary(joined, alone)
    if seeds == 1 and one.groups is None and binary:
        won, lost = int((joined > alone).sum()), int((joined < alone).sum())
        p, (low, high) = mcnemar(won, lost), agresti_min(won, lost, rows, level)
        least = math.ceil(math.log2(family.size / level)) / rows  # fewer discordant rows are never significant
        error = (high - low) / 2 / _normal(1 - level / 2)
    else:
        draws = _Draws(one, joined, alone, seed)
        if seeds == 1:
            p, (low, high), error = draws.swap_test(max(DRAWS, 50 * family.size)), draws.interval(level), draws.error()
        else:
            floor = math.sqrt(2) / (rows + 2) if binary else 0.0  # as Agresti and Min's where no row changes
            p, (low, high), error = _over_seeds(differences, max(draws.error(), floor), rows, family)
    detectable = max(least, (_normal(1 - level / (2 * family.size)) + _normal(POWER)) * error)
    return Verdict(UNDECIDED, **about, low=float(low), high=float(high), p=p, detectable=detectable)


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

    def interval(self, level: float) -> tuple[float, float]:
        if not len(self.drawn):
            return math.nan, math.nan
        low, high = np.quantile(self.drawn, [level / 2, 1 - level / 2])
        return float(low), float(high)

    def error(self) -> float:
        return float(self.drawn.std()) if len(self.drawn) else math.inf

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


def _over_seeds(
    differences: np.ndarray, error: float, rows: int, family: _Family
) -> tuple[float, tuple[float, float], float]:
    """p-value, interval and standard error of the mean over training seeds, with Satterthwaite's degrees of freedom."""
    from scipy.special import stdtr, stdtrit

    seeds, mean, within = len(differences), float(differences.mean()), error**2
    variance, pooled = family.variance(float(differences.var(ddof=1)))
    between = variance / seeds
    total = within + between
    if total == 0:
        return (1.0 if mean == 0 else 0.0), (mean, mean), 0.0
    freedom = total**2 / (within**2 / (rows - 1) + between**2 / (pooled * (seeds - 1)))
    p = 2 * float(stdtr(freedom, -abs(mean) / math.sqrt(total)))
    half = float(stdtrit(freedom, 1 - family.level / 2)) * math.sqrt(total)
    return p, (mean - half, mean + half), math.sqrt(total)


def _normal(share_below: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(share_below)
