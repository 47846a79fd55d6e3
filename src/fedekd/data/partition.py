"""Cutting rows into clients, and a client's rows into train, validation and test. Pure functions of a generator."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedekd.errors import FedekdError

REDRAWS = 1000
SMALLEST_SITE = 5
CLUSTERS = 5
_PLAIN_KMEANS = 20_000_000


def dirichlet(
    labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator, min_samples: int = 10
) -> list[np.ndarray]:
    """Row indices of each client: every class is dealt out in shares drawn from Dirichlet(alpha).

    When a client gets fewer than ``min_samples`` rows, everything is drawn again from the same generator.
    """
    _check_counts(len(labels), clients, min_samples)
    if not 0 < alpha < np.inf:
        raise FedekdError(f"alpha is {alpha}; give a number above 0 (0.1 uneven clients, 100 nearly even ones)")
    members = [np.where(labels == label)[0] for label in np.unique(labels)]
    for _ in range(REDRAWS):
        dealt, sizes = [], np.zeros(clients, int)
        for rows in members:
            rows = rows.copy()
            rng.shuffle(rows)
            shares = rng.dirichlet([alpha] * clients)
            if not abs(shares.sum() - 1) < 1e-6:
                raise FedekdError(f"alpha {alpha} is out of range; give one between 0.001 and 1000000")
            cuts = (np.cumsum(shares) * len(rows)).astype(int)[:-1]
            dealt.append((rows, cuts))
            sizes += np.diff(cuts, prepend=0, append=len(rows))
        if sizes.min() >= min_samples:
            return [np.concatenate(parts) for parts in zip(*(np.split(*one) for one in dealt), strict=True)]
    raise FedekdError(
        f"no partition of {len(labels)} rows among {clients} clients with alpha {alpha} left each at least "
        f"{min_samples} rows in {REDRAWS} draws; take fewer clients or a larger alpha"
    )


def iid(rows: int, clients: int, rng: np.random.Generator, min_samples: int = 10) -> list[np.ndarray]:
    """A random permutation cut into parts whose sizes differ by one at most."""
    _check_counts(rows, clients, min_samples)
    return np.array_split(rng.permutation(rows), clients)


def by_site(sites: np.ndarray, names: tuple[str, ...]) -> list[np.ndarray]:
    """The rows of each real site."""
    parts = [np.where(sites == site)[0] for site in range(len(names))]
    for name, part in zip(names, parts, strict=True):
        if len(part) < SMALLEST_SITE:
            raise FedekdError(
                f"site {name!r} has {len(part)} rows, too few to train, validate and test on; "
                f"give it at least {SMALLEST_SITE} or leave it out"
            )
    if len(parts) < 2:
        raise FedekdError(f"{names[0]!r} is the only site; a federation needs at least two")
    return parts


class Fold(NamedTuple):
    """Which of several equal parts of a client's rows is the test rows."""

    number: int
    of: int


def cut(
    rows: np.ndarray, rng: np.random.Generator, groups: np.ndarray | None = None, fold: Fold | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One client's rows, permuted, as 60 % train, 20 % validation, 20 % test; ``groups`` of rows stay whole, so that
    nobody is tested on a patient that it was trained on. With a ``fold`` that one is the test, and a quarter of the
    others is the validation; generators of one seed give folds that share no row."""
    if groups is not None:
        return _cut_groups(rows, rng, groups, fold)
    order = rng.permutation(rows).astype(np.int64)
    first, second = int(0.6 * len(rows)), int(0.8 * len(rows))
    if fold is not None:
        if len(rows) < fold.of:
            raise FedekdError(f"a client has {len(rows)} rows, too few for {fold.of} folds; take fewer folds")
        start, end = (number * len(rows) // fold.of for number in (fold.number, fold.number + 1))
        order, second = np.roll(order, -end), len(rows) - (end - start)  # the fold comes last
        first = int(0.75 * second)
    return order[:first], order[first:second], order[second:]


def _cut_groups(
    rows: np.ndarray, rng: np.random.Generator, groups: np.ndarray, fold: Fold | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    first, second = 0.6, 0.8
    if fold is not None:
        first, second = 0.75 * (1 - 1 / fold.of), 1 - 1 / fold.of
    before = 0
    for group in rng.permutation(np.unique(groups)):
        own = rows[groups == group]
        place = (before + len(own) / 2) / len(rows)
        if fold is not None:  # the folds before the test follow those behind it
            behind = int(place * fold.of) - fold.number - 1
            place = (behind % fold.of + place * fold.of % 1) / fold.of
        parts[0 if place < first else 1 if place < second else 2].append(own)
        before += len(own)
    if not (parts[0] and parts[2]):
        raise FedekdError(
            f"a client's {len(rows)} rows are of {len(np.unique(groups))} groups, too few or too uneven to test on "
            "others than it trains on; give each client more groups, or leave --group out"
        )
    none = rows[:0]
    train, val, test = (rng.permutation(np.concatenate([none, *part])).astype(np.int64) for part in parts)
    return train, val, test


class Points(NamedTuple):
    """What K-means works on."""

    rows: np.ndarray
    tolerance: float = 1e-4

    @classmethod
    def of(cls, features: np.ndarray) -> Points:
        """Of ``features`` [N, D]: pixels in 0..1, or standardised columns. No seed has a part in them."""
        rows, width = features.shape
        if width <= rows or rows * width <= _PLAIN_KMEANS:
            return cls(features)
        # scikit-learn multiplies its tolerance by the mean variance of a column: keep the product as it was.
        return cls(_coordinates(features), 1e-4 * (rows / width))


def kmeans_clusters(points: Points, seed: int) -> np.ndarray:
    """The cluster of each row, by K-means."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    if len(points.rows) < CLUSTERS:
        raise FedekdError(f"{len(points.rows)} rows cannot be grouped into {CLUSTERS} clusters; give more rows")
    # One thread: ten times faster where cores are shared, and the same sums on every machine.
    with threadpool_limits(1):
        found = KMeans(n_clusters=CLUSTERS, n_init=10, random_state=seed, tol=points.tolerance).fit_predict(points.rows)
    return np.asarray(found, dtype=np.int64)


def _coordinates(features: np.ndarray) -> np.ndarray:
    """The same points in N dimensions instead of D > N: no distance changes, and K-means sees nothing else."""
    centre = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    products = np.zeros((len(features), len(features)))
    for start in range(0, features.shape[1], 8192):
        block = features[:, start : start + 8192] - centre[start : start + 8192]
        products += block @ block.T
    lengths, axes = np.linalg.eigh(products)
    return axes * np.sqrt(np.maximum(lengths, 0))


def _check_counts(rows: int, clients: int, min_samples: int) -> None:
    if clients < 2:
        raise FedekdError(f"clients is {clients}; a federation needs at least 2")
    if min_samples < 3:
        raise FedekdError(f"min_samples is {min_samples}; a client needs 3 rows to train, validate and test on")
    if rows < clients * min_samples:
        most = rows // min_samples
        remedy = f"take at most {most} clients" if most > 1 else "give more rows"
        raise FedekdError(f"{rows} rows cannot give {clients} clients {min_samples} rows each; {remedy}")
