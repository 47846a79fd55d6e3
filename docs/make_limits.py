"""Print the figures of *Limits* and *Over seeds* in docs/metrics.md: where verdicts and intervals promise too much.

    python docs/make_limits.py

Nothing is trained; it takes about a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedekd import verdicts
from fedekd.metrics import paired_interval
from fedekd.scores import SCORES
from fedekd.units import describe
from fedekd.verdicts import HARMED, HELPED, Comparison, judge

CLIENTS, FEDERATIONS, DRAWS, TRIALS = 6, 200, 300, 1000


def alarms(client: Callable[[int], Comparison]) -> float:
    """The share of federations of equally good models in which any client is called clearly helped or harmed."""
    found = [judge([client(k) for k in range(CLIENTS)]) for _ in range(FEDERATIONS)]
    return float(np.mean([any(one.state in (HELPED, HARMED) for one in family) for family in found]))


def two_classes(
    rng: np.random.Generator, rows: int, of: str, change: Sequence[Callable[[np.ndarray], np.ndarray]]
) -> Comparison:
    """A model and another that is as good, and says it otherwise: ``change`` is what each does to its logits."""
    target = rng.random(rows) < (0.5 if of == "nll" else 0.3)
    logits = [each((1.5 if of == "nll" else 2.0) * (target - 0.5) + rng.normal(0, 1, rows)) for each in change]
    answers = [np.column_stack([target, 1 - p, p])[None] for p in (1 / (1 + np.exp(-z)) for z in logits)]
    return Comparison(*answers, SCORES[of].measure, describe(of).higher_is_better, counted=of != "nll")


def surer(rng: np.random.Generator, rows: int) -> Comparison:
    """The same NLL, by doubt and by few large losses."""
    return two_classes(rng, rows, "nll", (lambda z: 0.4 * z, lambda z: 3.28 * z))


def leaning(rng: np.random.Generator, rows: int) -> Comparison:
    """The same balanced accuracy, one finding more of either class."""
    return two_classes(rng, rows, "balanced_accuracy", (lambda z: z + 0.5, lambda z: z - 0.5))


def lucky(rng: np.random.Generator, seeds: int, luck: float) -> Comparison:
    """1,000 rows, trained ``seeds`` times with more or less luck."""
    ease = rng.normal(1.0, 1.0, 1000)
    runs = [[ease + rng.normal(0, luck) + rng.normal(0, 0.1, 1000) > 0 for _ in range(seeds)] for _ in "ab"]
    return Comparison(*np.array(runs, float))


def average(rng: np.random.Generator, seeds: int, fixed: bool) -> float:
    """How often the interval of Avg Δ holds 0, the truth; on a tenth of patients the method always wins or loses."""
    held = []
    for _ in range(TRIALS):
        patients, rows = rng.choice([-1, 0, 1], 3000, p=[0.05, 0.9, 0.05]), rng.choice(3000, 600, replace=False)
        drawn = [rows if fixed else rng.choice(3000, 600, replace=False) for _ in range(seeds)]
        low, high = paired_interval([patients[own].mean() + rng.normal(0, 0.01) for own in drawn]) or (0.0, 0.0)
        held.append(low <= 0 <= high)
    return float(np.mean(held))


def main() -> None:
    verdicts.DRAWS = DRAWS
    for name, make in (("NLL, one model surer", surer), ("balanced accuracy, models leaning apart", leaning)):
        for rows in (20, 50, 200):
            rng = np.random.default_rng(rows)
            share = alarms(lambda _, rng=rng, make=make, rows=rows: make(rng, rows))
            print(f"{name}, {rows} rows: {100 * share:.0f} %")
    verdicts.DRAWS = 50
    for seeds in (2, 3, 5):
        rng = np.random.default_rng(seeds)
        share = alarms(lambda k, rng=rng, seeds=seeds: lucky(rng, seeds, 0.0 if k else 0.2))
        print(f"one client's training varies, {seeds} seeds: {100 * share:.0f} %")
    for seeds in (3, 10):
        for fixed, of in ((True, "the same rows"), (False, "new splits")):
            share = average(np.random.default_rng(seeds), seeds, fixed)
            print(f"Avg Δ, {seeds} seeds, {of}: holds the truth in {100 * share:.0f} %")


if __name__ == "__main__":
    main()
