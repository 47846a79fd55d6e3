"""A site's rows as a federation of one, and several of them as the federation that a simulation would train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedekd import rng
from fedekd.data import Dataset, Federation, Split
from fedekd.data.partition import SMALLEST_SITE, cut
from fedekd.errors import FedekdError
from fedekd.flower.schema import Schema


def of_site(dataset: Dataset, schema: Schema, name: str, seed: int, number: int) -> Federation:
    """60 % train, 20 % validation, 20 % test of a site's own rows, drawn from (seed, number).

    Scaling that is the site's own follows from the training rows, so it is the same in every visit.
    """
    rows = len(dataset.y)
    if rows < SMALLEST_SITE:
        raise FedekdError(
            f"site {name!r} has {rows} rows, too few to train, validate and test on; give at least {SMALLEST_SITE}"
        )
    split = Split(*cut(np.arange(rows), rng.stream(seed, "split", number)))
    scaling = schema.scaling.at_site(dataset, split.train)
    gain, shift = scaling.arrays()
    by = "own" if schema.scaling.own else "given"
    how = {"kind": "site", "alpha": None, "clients": 1, "seed": seed, "scaling": by}
    return Federation(dataset, (split,), (name,), how, shift, gain, scaling.mean, scaling.std)


def joined(sites: Sequence[Federation]) -> Federation:
    """All sites' rows in one place: what no one can have in earnest, and what a simulation starts from."""
    first, start = sites[0], 0
    if any(site.partition["scaling"] == "own" for site in sites):
        raise FedekdError("a simulation has one scaling for all clients; take a schema that gives it")
    splits: list[Split] = []
    for site in sites:
        splits += [Split(*(rows + start for rows in (c.train, c.val, c.test))) for c in site.clients]
        start += len(site.dataset.y)
    dataset = replace(
        first.dataset,
        x=np.concatenate([site.dataset.x for site in sites]),
        y=np.concatenate([site.dataset.y for site in sites]),
    )
    names = tuple(name for site in sites for name in site.names)
    return replace(first, dataset=dataset, clients=tuple(splits), names=names)
