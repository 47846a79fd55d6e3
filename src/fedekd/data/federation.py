"""Dealing a dataset out to clients: their rows, and the input statistics they share."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fedekd import rng as streams
from fedekd.data import partition as parting
from fedekd.data.public import PublicRows, set_aside
from fedekd.dataset import Dataset
from fedekd.errors import FedekdError, unknown
from fedekd.federation import Federation, Split
from fedekd.validation import is_number

_CLUSTERS: WeakKeyDictionary[Dataset, dict[int, np.ndarray]] = WeakKeyDictionary()
_POINTS: WeakKeyDictionary[Dataset, parting.Points] = WeakKeyDictionary()
KINDS = ("auto", "dirichlet", "iid", "sites")


def federate(
    dataset: Dataset,
    *,
    clients: int = 6,
    alpha: float = 0.1,
    seed: int = 0,
    partition: str = "auto",
    min_samples: int = 10,
    clusters: np.ndarray | None = None,
    public: float | PublicRows | None = None,
    fraction: float = 1.0,
    fixed: bool = False,
    fold: parting.Fold | None = None,
) -> Federation:
    """Deal a dataset's rows out to clients and cut each client's into train, validation and test, as ``seed`` draws.

    ``partition`` is "dirichlet" (uneven classes, the more so the smaller ``alpha`` is; for regression, uneven K-means
    clusters of the inputs), "iid", "sites" (the dataset's own) or "auto": the sites where there are any, else
    dirichlet. Each client that is not a site gets at least ``min_samples`` rows; where they are in groups, as many
    groups, or five if that is fewer. ``clusters`` stands in for the K-means clusters of a regression's rows when they
    are known already. ``public`` is a share of the rows, which is set aside before the rest is dealt out, or the rows
    of a file: see ``find_public``. ``fraction`` is the share of each client's training and validation rows that is
    kept, at least one to train on; all test rows stay, and a smaller fraction's rows are among a larger one's.
    ``fixed`` says that runs of several training seeds share these rows, so that their records are kept apart from those
    of runs with rows of their own. ``fold`` says which part of each client's rows is tested, so that all folds together
    test every row once. Missing values become the median of their column (or the mean, as ``Dataset.fill`` says) over
    all clients' training rows, so ``Federation.dataset`` is then a copy.
    """
    if partition not in KINDS:
        raise unknown("partition", partition, KINDS)
    clients, seed, fraction = _whole("clients", clients), _whole("seed", seed), _share(fraction)
    if partition == "auto":
        partition = "dirichlet" if dataset.sites is None else "sites"
    _check_names(dataset)
    rng = np.random.default_rng(seed)
    held, shared, whole = _apart(dataset, public, seed)
    try:
        parts = _deal(dataset, held, partition, clients, alpha, rng, min_samples, seed, clusters)
    except FedekdError as error:
        if len(held) == len(dataset.y):
            raise
        raise FedekdError(f"with {len(shared)} of {len(dataset.y)} rows public: {error}") from None
    splits = _cut(dataset, [held[part] for part in parts], rng, fold)
    if fraction < 1:
        splits = tuple(_thinned(split, fraction, seed, client) for client, split in enumerate(splits))
    train = np.concatenate([split.train for split in splits])
    fill = fills(whole, train)
    whole = filled(whole, fill)
    shift, gain = input_statistics(whole, train)
    mean, std = target_statistics(whole, train)
    groups, subgroups = dataset.groups, dataset.subgroups
    always = {
        "kind": partition,
        "alpha": float(alpha) if partition == "dirichlet" else None,
        "clients": len(splits),
        "seed": seed,
        "fingerprint": _fingerprint(splits, shared),
    }
    sometimes = {
        "public": _about(public, len(shared)),
        "fixed": fixed or None,
        "fold": fold and fold.number,
        "folds": fold and fold.of,
        "group": groups and groups.column,
        "subgroups": subgroups and {"column": subgroups.column, "names": list(subgroups.names)},
        "fraction": fraction if fraction < 1 else None,
    }
    return Federation(
        dataset=whole,
        clients=splits,
        names=dataset.site_names if partition == "sites" else tuple(str(client) for client in range(clients)),
        partition=always | {name: value for name, value in sometimes.items() if value is not None},
        shift=shift,
        gain=gain,
        target_mean=mean,
        target_std=std,
        public=shared,
        public_labelled=public.labelled if isinstance(public, PublicRows) else True,
        fill=fill,
    )


def _check_names(dataset: Dataset) -> None:
    for named in (dataset.groups, dataset.subgroups):
        if named is not None and len(named.codes) != len(dataset.y):
            raise FedekdError(f"{named.column!r} names {len(named.codes)} rows and there are {len(dataset.y)}")


def _apart(dataset: Dataset, public: float | PublicRows | None, seed: int) -> tuple[np.ndarray, np.ndarray, Dataset]:
    """The rows to deal out, the public ones, and the dataset that holds both."""
    rows = np.arange(len(dataset.y))
    if public is None:
        return rows, np.empty(0, np.int64), dataset
    if isinstance(public, PublicRows):
        if len(public.dataset.y) != len(rows) + len(public.rows):
            raise FedekdError("these public rows were read for another dataset; read them again with find_public")
        return rows, public.rows, public.dataset
    shared, held = set_aside(len(rows), public, seed, dataset.groups)
    return held, shared, dataset


def _about(public: float | PublicRows | None, rows: int) -> dict[str, Any] | None:
    """Where the public rows are from, for the record."""
    if isinstance(public, PublicRows):
        return {"file": public.fingerprint, "labelled": public.labelled, "rows": rows}
    return None if public is None else {"share": float(public), "rows": rows}


def _deal(
    dataset: Dataset,
    held: np.ndarray,
    partition: str,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
    min_samples: int,
    seed: int,
    clusters: np.ndarray | None,
) -> list[np.ndarray]:
    """The rows ``held`` parted among the clients, as indices into ``held``."""
    if partition == "sites":
        if dataset.sites is None:
            raise FedekdError(f"dataset {dataset.name!r} has no sites of its own; take partition 'dirichlet' or 'iid'")
        return parting.by_site(dataset.sites[held], dataset.site_names)
    if clients > len(held):
        raise FedekdError(f"{clients} clients but only {len(held)} samples; take fewer clients")
    labels = None if partition == "iid" else _groups(dataset, seed, clusters)[held]
    if dataset.groups is None:
        return _dealt(len(held), labels, clients, alpha, rng, min_samples)
    # Groups go whole, as their first rows go: else one client would train on a patient that another is tested on.
    _, first, group = np.unique(dataset.groups.codes[held], return_index=True, return_inverse=True)
    least, whose = min(min_samples, parting.SMALLEST_SITE), np.empty(len(first), np.int64)
    if len(first) < least * clients:
        raise FedekdError(
            f"{len(first)} groups by {dataset.groups.column!r} cannot give {clients} clients {least} groups each; "
            "take fewer clients, or leave --group out"
        )
    dealt = _dealt(len(first), None if labels is None else labels[first], clients, alpha, rng, least)
    for client, part in enumerate(dealt):
        whose[part] = client
    return [np.flatnonzero(whose[group] == client) for client in range(clients)]


def _dealt(
    rows: int, labels: np.ndarray | None, clients: int, alpha: float, rng: np.random.Generator, min_samples: int
) -> list[np.ndarray]:
    """By Dirichlet shares of each label, or evenly where there are none."""
    if labels is None:
        return parting.iid(rows, clients, rng, min_samples)
    return parting.dirichlet(labels, clients, alpha, rng, min_samples)


def _whole(what: str, value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise FedekdError(f"{what} is {value!r}; give a whole number, 0 or more")
    return number


def _share(value: float) -> float:
    if not is_number(value) or not 0 < value <= 1:
        raise FedekdError(f"fraction is {value!r}; give a number above 0 and at most 1")
    return float(value)


def _cut(
    dataset: Dataset, owned: Iterable[np.ndarray], rng: np.random.Generator, fold: parting.Fold | None
) -> tuple[Split, ...]:
    groups = dataset.groups.codes if dataset.groups else None
    return tuple(Split(*parting.cut(rows, rng, None if groups is None else groups[rows], fold)) for rows in owned)


def _thinned(split: Split, fraction: float, seed: int, client: int) -> Split:
    """The first part of a random order of the rows, which is the same for every fraction."""
    draw = streams.stream(seed, "fraction", client)

    def kept(rows: np.ndarray) -> np.ndarray:
        count = math.ceil(round(fraction * len(rows), 9))
        return rows[np.sort(draw.permutation(len(rows))[:count])]

    return Split(kept(split.train), kept(split.val), split.test)


def _groups(dataset: Dataset, seed: int, clusters: np.ndarray | None) -> np.ndarray:
    """What the Dirichlet shares are drawn over: the classes, or a regression's clusters."""
    if clusters is not None:
        if np.shape(clusters) != dataset.y.shape:
            raise FedekdError(f"clusters has shape {np.shape(clusters)} for {len(dataset.y)} rows; give one for each")
        return np.asarray(clusters)
    return dataset.y if dataset.task == "classification" else input_clusters(dataset, seed)


def input_clusters(dataset: Dataset, seed: int) -> np.ndarray:
    """The K-means cluster of each row by its input alone, remembered for as long as the dataset lives."""
    known = _CLUSTERS.setdefault(dataset, {})
    if seed not in known:
        known[seed] = parting.kmeans_clusters(_points(dataset), seed)
    return known[seed]


def _points(dataset: Dataset) -> parting.Points:
    """Remembered where they are smaller than the rows, as those of large images are, which take seconds to find."""
    points = _POINTS.get(dataset) or parting.Points.of(_features(dataset))
    if points.rows.nbytes < dataset.x.nbytes:
        _POINTS[dataset] = points
    return points


def _features(dataset: Dataset) -> np.ndarray:
    """The rows as K-means sees them: pixels in 0..1, table columns standardised by all rows."""
    dataset = filled(dataset, fills(dataset, np.arange(len(dataset.y))))
    flat = dataset.x.reshape(len(dataset.x), -1).astype(np.float32)
    if dataset.x.ndim == 2:
        shift, gain = _standardisation(flat, (0,))
        return flat * gain + shift
    if dataset.scale is not None:
        flat /= np.float32(dataset.scale)
        return flat
    low, high = flat.min(), flat.max()
    flat -= low
    flat /= high - low if high > low else np.float32(1)
    return flat


def fills(dataset: Dataset, train: np.ndarray) -> np.ndarray | None:
    """For each column its median or mean over the rows ``train``, as ``dataset.fill`` says; 0 where all are missing.

    None where no value may be missing.
    """
    if not dataset.gaps:
        return None
    known = [column[~np.isnan(column)] for column in dataset.x[train].T]
    if dataset.fill == "mean":
        return np.array([values.mean(dtype=np.float64) if len(values) else 0 for values in known], np.float32)
    return np.array([np.median(values) if len(values) else 0 for values in known], np.float32)


def filled(dataset: Dataset, fill: np.ndarray | None) -> Dataset:
    """With each missing value replaced by its column's in ``fill``, which ``fills`` gives."""
    return dataset if fill is None else replace(dataset, x=np.where(np.isnan(dataset.x), fill, dataset.x), gaps=False)


def input_statistics(dataset: Dataset, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if dataset.scale is not None:
        return np.asarray(-1, np.float32), np.asarray(2 / dataset.scale, np.float32)
    if dataset.x.ndim == 2:
        return _standardisation(dataset.x[train], (0,))
    shift, gain = _standardisation(dataset.x[train], (0, 2, 3))
    return shift[:, None, None], gain[:, None, None]


def _standardisation(rows: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Shift and gain to mean 0 and deviation 1. What never varies is only centred."""
    mean, std = rows.mean(axes, dtype=np.float64), rows.std(axes, dtype=np.float64)
    varies = rows.max(axes) > rows.min(axes)
    gain = 1 / np.where(varies & (std > 0), std, 1.0)
    return (-mean * gain).astype(np.float32), gain.astype(np.float32)


def target_statistics(dataset: Dataset, train: np.ndarray) -> tuple[float, float]:
    if not dataset.standardise_target:
        return 0.0, 1.0
    targets = dataset.y[train].astype(np.float64)
    return float(targets.mean()), float(targets.std()) or 1.0


def _fingerprint(splits: tuple[Split, ...], public: np.ndarray) -> str:
    """Of every client's rows, and of the public ones where there are any."""
    digest = hashlib.sha256()
    everything = [rows for split in splits for rows in (split.train, split.val, split.test)]
    for rows in [*everything, public] if len(public) else everything:
        digest.update(len(rows).to_bytes(8, "little") + rows.astype("<i8").tobytes())
    return digest.hexdigest()[:16]
