"""The public rows of a federation, which the server and every site read from a file of their own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedekd.data import formats
from fedekd.data.own import channels
from fedekd.dataset import Dataset
from fedekd.errors import FedekdError
from fedekd.flower.protocol.schema import Schema


@dataclass(frozen=True, eq=False)
class Public:
    dataset: Dataset
    labelled: bool
    """Without labels ``y`` is 0."""
    fingerprint: str


def read_public(path: Path, schema: Schema, target: str | None = None) -> Public:
    """Rows in the schema's columns and classes; a .npz may do without ``y``."""
    labelled = path.suffix.lower() != ".npz" or "y" in formats.npz_keys(path)
    dataset = schema.load(path, target if path.suffix.lower() == ".csv" else None) if labelled else _bare(path, schema)
    digest = hashlib.sha256(b"labelled" if labelled else b"")
    for array in (dataset.x, dataset.y):
        digest.update(np.ascontiguousarray(array).tobytes())
    return Public(dataset, labelled, digest.hexdigest()[:16])


def check_public(need: str, public: Public | None, method: str, where: str) -> None:
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
