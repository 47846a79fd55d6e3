"""What sites agree on before round one: columns, categories, labels, shape and scaling of a row.

One site makes it from its columns, categories and labels; no statistics of rows are in it unless their owner gives
them. The server hands it out; a site brings its own rows into it and names what does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedekd.data import load_dataset
from fedekd.data.own import Whole
from fedekd.dataset import TASKS, Dataset, Reading
from fedekd.errors import FedekdError
from fedekd.flower.protocol.scaling import Scaling
from fedekd.flower.saved_state import write_text
from fedekd.validation import parse_json

SHOWN = 5  # differences that are named one by one
FEW = 10  # texts of a column that may all be different
MOST = 100_000  # columns, labels or pixels in a row: more is a mistake, or an attack
LETTERS = 10_000  # of one name


@dataclass(frozen=True)
class Schema:
    task: str
    shape: tuple[int, ...]
    dtype: str
    columns: tuple[str, ...]
    """A table's inputs in their order, the one for text "m" in column "sex" as sex=m; () where they have no names."""
    labels: tuple[str, ...]
    """The classes in their order; () for a regression."""
    scaling: Scaling

    @property
    def outputs(self) -> int:
        return len(self.labels) or 1

    # --- making and keeping -------------------------------------------------------------------------------

    @classmethod
    def of(cls, dataset: Dataset, scaling: Scaling | None = None) -> Schema:
        """The schema of a dataset. Without a ``scaling`` of its rows, their categories and labels alone enter it."""
        if dataset.gaps:
            raise FedekdError(f"{dataset.source or dataset.name} has missing values; fill them before making a schema")
        for column, categories in categories_of(dataset.columns).items():
            if len(categories) > FEW and 2 * len(categories) > len(dataset.y):
                raise FedekdError(
                    f"column {column!r} holds {len(categories)} different texts in {len(dataset.y)} rows: names or "
                    "free text, which everyone would read in the schema; take the column out of the data"
                )
        labels = dataset.labels or tuple(str(k) for k in range(dataset.outputs))
        return cls(
            task=dataset.task,
            shape=tuple(dataset.x.shape[1:]),
            dtype=str(dataset.x.dtype),
            columns=dataset.columns,
            labels=labels if dataset.task == "classification" else (),
            scaling=scaling or Scaling.public(dataset),
        )

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str, where: str = "the schema") -> Schema:
        """A schema from its JSON, which may come from another machine: nothing in it is taken on trust."""
        try:
            given = parse_json(text.encode())
            scaling = Scaling(**given.pop("scaling"))
            lists: dict[str, Any] = {name: given.pop(name) for name in ("shape", "columns", "labels")}
            if not all(type(one) is list for one in lists.values()):
                raise ValueError("shape, columns or labels are no list")
            lists = {name: tuple(one) for name, one in lists.items()}
            schema = cls(**given, **lists, scaling=scaling)
            schema._check()
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise FedekdError(f"{where} is not a fedekd schema ({error}); make it anew") from None
        return schema

    def write(self, path: str | Path) -> None:
        write_text(Path(path), json.dumps(asdict(self), indent=1) + "\n", "--out")

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        try:
            return cls.parse(Path(path).read_text(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise FedekdError(f"cannot read the schema {path}: {getattr(error, 'strerror', None) or error}") from None

    def _check(self) -> None:
        if self.task not in TASKS or self.dtype not in ("uint8", "float32"):
            raise ValueError(f"task {self.task!r:.40}, dtype {self.dtype!r:.40}")
        if len(self.shape) not in (1, 3) or not all(type(n) is int and 0 < n <= MOST for n in self.shape):
            raise ValueError(f"shape {self.shape!r:.60}")
        for names in (self.columns, self.labels):
            if len(names) > MOST:
                raise ValueError(f"{len(names)} names")
            if not all(isinstance(name, str) and len(name) <= LETTERS for name in names):
                raise ValueError(f"a name is no text, or has more than {LETTERS} letters")
            if len(set(names)) != len(names):
                raise ValueError("a name stands twice")
        if (self.task == "classification") != (len(self.labels) > 1):
            raise ValueError(f"{len(self.labels)} labels for {self.task}")
        if self.columns and (len(self.columns),) != self.shape:
            raise ValueError(f"{len(self.columns)} columns for rows of shape {self.shape}")
        self.scaling.check(self.shape)

    # --- a site's rows in it ------------------------------------------------------------------------------

    def load(
        self, data: str | Path, target: str | None = None, reading: Reading | None = None, group: str | None = None
    ) -> Dataset:
        """A site's own data, as ``fedekd run`` would load it, brought into this schema."""
        whole = Whole(self.columns, self.labels)
        return self.fit(load_dataset(data, target=target, task=self.task, part_of=whole, reading=reading, group=group))

    def fit(self, dataset: Dataset) -> Dataset:
        """The same rows with this schema's columns and labels in this schema's order; raises for what differs."""
        differences = [*self._row_differences(dataset), *self._label_differences(dataset)]
        if differences:
            more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
            shown = "; ".join(differences[:SHOWN])
            raise FedekdError(f"{dataset.source or dataset.name} does not fit the federation's schema: {shown}{more}")
        return replace(
            dataset, x=self._columns(dataset), y=self._classes(dataset), outputs=self.outputs, labels=self.labels,
            columns=self.columns, sites=None, site_names=(), part=True,
        )  # fmt: skip

    def _row_differences(self, dataset: Dataset) -> list[str]:
        found = ["it has missing values"] if dataset.gaps else []
        if dataset.task != self.task:
            found.append(f"it is a {dataset.task}, the schema a {self.task}")
        if str(dataset.x.dtype) != self.dtype:
            found.append(f"its values are {dataset.x.dtype}, the schema's {self.dtype}")
        if not (self.columns and dataset.columns):
            if dataset.x.shape[1:] != self.shape:
                found.append(f"its rows have shape {dataset.x.shape[1:]}, the schema's {self.shape}")
            return found
        ours, theirs = _by_source(dataset.columns), _by_source(self.columns)
        for name, categories in theirs.items():
            if name not in ours:
                found.append(f"column {name!r} is missing")
            elif (ours[name] is None) != (categories is None):
                kind, other = ("numbers", "text") if ours[name] is None else ("text", "numbers")
                found.append(f"column {name!r} holds {kind}, in the schema {other}")
            else:
                new = [c for c in ours[name] or () if c not in (categories or ())]
                found += [f"column {name!r} holds {c!r}, which the schema does not know" for c in new]
        return found + [f"column {name!r} is not in the schema" for name in ours if name not in theirs]

    def _label_differences(self, dataset: Dataset) -> list[str]:
        if self.task != "classification" or dataset.task != "classification":
            return []
        return [f"label {name!r} is not in the schema" for name in _labels(dataset) if name not in self.labels]

    def _columns(self, dataset: Dataset) -> np.ndarray:
        if not (self.columns and dataset.columns) or dataset.columns == self.columns:
            return dataset.x
        place = {name: k for k, name in enumerate(dataset.columns)}
        x = np.zeros((len(dataset.x), len(self.columns)), np.float32)  # a category that no row has stays 0
        for k, name in enumerate(self.columns):
            if name in place:
                x[:, k] = dataset.x[:, place[name]]
        return x

    def _classes(self, dataset: Dataset) -> np.ndarray:
        if self.task != "classification":
            return dataset.y
        return np.array([self.labels.index(name) for name in _labels(dataset)], np.int64)[dataset.y]


def _labels(dataset: Dataset) -> tuple[str, ...]:
    return dataset.labels or tuple(str(k) for k in range(dataset.outputs))


def _by_source(columns: tuple[str, ...]) -> Mapping[str, list[str] | None]:
    """The columns of the file: None for numbers, else the texts found in it."""
    found: dict[str, list[str] | None] = {}
    for column in columns:
        name, equals, text = column.partition("=")
        if not equals:
            found[name] = None
        else:
            found[name] = [*(found.get(name) or []), text]
    return found


def categories_of(columns: tuple[str, ...]) -> dict[str, list[str]]:
    """The texts that a schema with these columns tells, by the column they stand in."""
    return {name: texts for name, texts in _by_source(columns).items() if texts is not None}
