"""The rows that each end trains on: a site's own as a federation of one, and the public ones that all hold.

The server and every site read the public rows from a file of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedekd import rng
from fedekd.data import formats
from fedekd.data.federation import filled, fills
from fedekd.data.own import channels
from fedekd.data.partition import SMALLEST_SITE, cut
from fedekd.dataset import Dataset, RowNames
from fedekd.errors import FedekdError
from fedekd.federation import Federation, Split
from fedekd.files import TABLES, file_kind
from fedekd.flower.protocol.schema import Schema


def of_site(
    dataset: Dataset, schema: Schema, name: str, seed: int, number: int, public: Dataset | None = None
) -> Federation:
    """60 % train, 20 % validation, 20 % test of a site's own rows, drawn from (seed, number), and the public ones.

    Rows of one group (a patient) stay together.
    Scaling that is the site's own, and what missing numbers are filled with, follow from the training rows, so they are
    the same in every visit.
    """
    rows = len(dataset.y)
    if rows < SMALLEST_SITE:
        raise FedekdError(
            f"site {name!r} has {rows} rows, too few to train, validate and test on; give at least {SMALLEST_SITE}"
        )
    groups = dataset.groups.codes if dataset.groups else None
    split = Split(*cut(np.arange(rows), rng.stream(seed, "split", number), groups))
    fill = fills(dataset, split.train)
    dataset = filled(dataset, fill)
    scaling = schema.scaling.at_site(dataset, split.train)
    gain, shift = scaling.arrays()
    by = "own" if schema.scaling.own else "given"
    how = {"kind": "site", "alpha": None, "clients": 1, "seed": seed, "scaling": by}
    whole = Federation(dataset, (split,), (name,), how, shift, gain, scaling.mean, scaling.std, fill=fill)
    return whole if public is None else _with_public(whole, public)


def of_server(schema: Schema, seed: int, public: Dataset | None = None) -> Federation:
    """What the server holds: the public rows, and no one's own. Scaling that is a site's own is that of these rows."""
    kind = np.int64 if schema.task == "classification" else np.float32
    dataset = public or Dataset(
        "blank", schema.task, np.zeros((1, *schema.shape), schema.dtype), np.zeros(1, kind), schema.outputs,
        schema.labels, columns=schema.columns, part=True,
    )  # fmt: skip
    every, none = np.arange(len(dataset.y)), np.empty(0, np.int64)
    scaling = schema.scaling.at_site(dataset, every)
    gain, shift = scaling.arrays()
    how = {"kind": "server", "alpha": None, "clients": 0, "seed": seed, "scaling": "given"}
    split, held = Split(none, none, none), every if public else none
    return Federation(dataset, (split,), ("server",), how, shift, gain, scaling.mean, scaling.std, public=held)


def _with_public(federation: Federation, public: Dataset) -> Federation:
    """The same rows with the public ones behind them."""
    dataset, own = federation.dataset, len(federation.dataset.y)
    joined = replace(
        dataset, x=np.concatenate([dataset.x, public.x]), y=np.concatenate([dataset.y, public.y]),
        sites=None, site_names=(),
    )  # fmt: skip
    return replace(federation, dataset=joined, public=np.arange(own, len(joined.y), dtype=np.int64))


def joined(sites: Sequence[Federation]) -> Federation:
    """All sites' rows in one place: what no one can have in earnest, and what a simulation starts from."""
    first, start = sites[0], 0
    if any(site.partition["scaling"] == "own" for site in sites):
        raise FedekdError("a simulation has one scaling for all clients; take a schema that gives it")
    splits: list[Split] = []
    own = [len(site.dataset.y) - len(site.public) for site in sites]
    for site, rows in zip(sites, own, strict=True):
        splits += [Split(*(part + start for part in (c.train, c.val, c.test))) for c in site.clients]
        start += rows
    dataset = replace(
        first.dataset,
        x=np.concatenate([site.dataset.x[:rows] for site, rows in zip(sites, own, strict=True)]),
        y=np.concatenate([site.dataset.y[:rows] for site, rows in zip(sites, own, strict=True)]),
        groups=_named(sites),
    )
    names = tuple(name for site in sites for name in site.names)
    whole = replace(first, dataset=dataset, clients=tuple(splits), names=names)
    if not len(first.public):
        return whole
    shared = first.dataset
    return _with_public(whole, replace(shared, x=shared.x[first.public], y=shared.y[first.public]))


def _named(sites: Sequence[Federation]) -> RowNames | None:
    """The groups of all sites' rows, where all know theirs; none is of two sites."""
    given = [groups for site in sites if (groups := site.dataset.groups)]
    if len(given) < len(sites):
        return None
    starts = np.cumsum([0, *(len(groups.names) for groups in given[:-1])])
    codes = np.concatenate([groups.codes + start for groups, start in zip(given, starts, strict=True)])
    return RowNames(given[0].column, codes, tuple(name for groups in given for name in groups.names))


@dataclass(frozen=True, eq=False)
class PublicFile:
    """The public rows as one end has read them; the fingerprint tells whether the other end has the same."""

    dataset: Dataset
    labelled: bool
    """Without labels ``y`` is 0."""
    fingerprint: str


def read_public(path: Path, schema: Schema, target: str | None = None) -> PublicFile:
    """Rows in the schema's columns and classes; a .npz may do without ``y``."""
    labelled = file_kind(path) != ".npz" or "y" in formats.npz_keys(path)
    dataset = schema.load(path, target if file_kind(path) in TABLES else None) if labelled else _bare(path, schema)
    digest = hashlib.sha256(b"labelled" if labelled else b"")
    for array in (dataset.x, dataset.y):
        digest.update(np.ascontiguousarray(array).tobytes())
    return PublicFile(dataset, labelled, digest.hexdigest()[:16])


def check_public(need: str, public: PublicFile | None, method: str, where: str) -> None:
    """Raise where a method's ``public`` asks for more than there is; ``where`` is the file that should name them."""
    if need and public is None:
        raise FedekdError(f"method {method!r} needs public rows; name a file of them as `public` in {where}")
    if need == "labels" and public is not None and not public.labelled:
        raise FedekdError(f"method {method!r} needs the labels of the public rows, and those in {where} have none")


def _bare(path: Path, schema: Schema) -> Dataset:
    x = formats.read_npz(path, ("x",))["x"]
    if x.shape[1:] != schema.shape:
        x = channels(x) if x.ndim in (3, 4) else x
    if x.shape[1:] != schema.shape or not len(x):
        raise FedekdError(f"{path} holds rows of shape {x.shape[1:]}, the schema's have {schema.shape}")
    kind = np.int64 if schema.task == "classification" else np.float32
    blank = np.zeros(len(x), kind)
    given = x if x.dtype == np.uint8 and schema.dtype == "uint8" else x.astype(np.float32)
    dataset = Dataset(path.name, schema.task, given, blank, schema.outputs, schema.labels, part=True)
    return schema.fit(replace(dataset, columns=schema.columns))
