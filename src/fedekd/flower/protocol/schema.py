"""What sites agree on before round one: columns, categories, labels, shape and scaling of a row.

One site makes it from its columns, categories and labels; no statistics of rows are in it unless their owner gives
them. The server hands it out; a site brings its own rows into it and names what does not fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fedekd.data import load_dataset
from fedekd.data.own import Whole, is_number
from fedekd.dataset import TASKS, Dataset, Reading
from fedekd.errors import FedekdError
from fedekd.flower.protocol.scaling import Scaling
from fedekd.flower.saved_state import write_text
from fedekd.validation import parse_json

SHOWN = 5  # differences that are named one by one
FEW = 10  # texts of a column that may all be different
MOST = 100_000  # columns, labels or pixels in a row: more is a mistake, or an attack
LETTERS = 10_000  # of one name
EXTEND = "correct such values, or agree on a schema that has them, made with `fedekd site schema --extend`"
Difference = tuple[str, str]  # of a site's rows from a schema, and what to do about it, if there is something to say


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
        _check_texts(dataset)
        labels = dataset.labels or tuple(str(k) for k in range(dataset.outputs))
        return cls(
            task=dataset.task,
            shape=tuple(dataset.x.shape[1:]),
            dtype=str(dataset.x.dtype),
            columns=dataset.columns,
            labels=labels if dataset.task == "classification" else (),
            scaling=scaling or Scaling.public(dataset),
        )

    def extended(self, dataset: Dataset) -> Schema:
        """With the categories and labels that another site has besides. Its rows must fit in all else."""
        if not self.columns or not isinstance(self.scaling.gain, str):
            raise FedekdError("only a schema of a table that gives no scaling can be extended; make a new one")
        _check_texts(dataset)
        ours, columns = _by_source(dataset.columns), list[str]()
        for name, known in _by_source(self.columns).items():
            new = [text for text in ours.get(name) or () if text not in (known or ())]
            columns += [name] if known is None else [f"{name}={text}" for text in [*known, *new]]
        labels = (*self.labels, *(name for name in _labels(dataset) if name not in self.labels)) if self.labels else ()
        wider = replace(self, columns=tuple(columns), shape=(len(columns),), labels=labels)
        wider.fit(dataset)
        return wider

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
        return self.fit(self.read_rows(data, target, reading, group))

    def read_rows(
        self, data: str | Path, target: str | None = None, reading: Reading | None = None, group: str | None = None
    ) -> Dataset:
        """The same, as far as the file tells: it may still have what this schema does not know."""
        whole = Whole(self.columns, self.labels)
        try:
            return load_dataset(data, target=target, task=self.task, part_of=whole, reading=reading, group=group)
        except FedekdError as error:
            if reading is None:  # public rows, of which site.toml says nothing
                raise
            as_in_settings(error)

    def fit(self, dataset: Dataset) -> Dataset:
        """The same rows with this schema's columns and labels in this schema's order; raises for what differs."""
        differences = [*self._row_differences(dataset), *self._label_differences(dataset)]
        if differences:
            more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
            shown = "; ".join(text for text, _ in differences[:SHOWN])
            remedies = dict.fromkeys(remedy for _, remedy in differences if remedy)
            raise FedekdError(
                f"{dataset.source or dataset.name} does not fit the federation's schema: {shown}{more}"
                + "".join(f"; {remedy}" for remedy in remedies)
            )
        return replace(
            dataset, x=self._columns(dataset), y=self._classes(dataset), outputs=self.outputs, labels=self.labels,
            columns=self.columns, sites=None, site_names=(), part=True,
        )  # fmt: skip

    def _row_differences(self, dataset: Dataset) -> list[Difference]:
        found: list[Difference] = []
        if dataset.task != self.task:
            found.append((f"it is a {dataset.task}, the schema a {self.task}", ""))
        if str(dataset.x.dtype) != self.dtype:
            found.append((f"its values are {dataset.x.dtype}, the schema's {self.dtype}", ""))
        if not (self.columns and dataset.columns):
            if dataset.x.shape[1:] != self.shape:
                found.append((f"its rows have shape {dataset.x.shape[1:]}, the schema's {self.shape}", ""))
            return found
        ours, theirs = _by_source(dataset.columns), _by_source(self.columns)
        for name, categories in theirs.items():
            if name not in ours:
                empty = 'add it; with missing = "mean" in site.toml it may be empty'
                found.append((f"column {name!r} is missing", empty))
            elif categories is not None and _is_empty(dataset, name):
                continue  # of whatever kind: it is none of the categories in every row
            elif (ours[name] is None) != (categories is None):
                kind, other = ("numbers", "text") if ours[name] is None else ("text", "numbers")
                strange = next((text for text in ours[name] or () if not is_number(text)), None)
                example = f" ({strange!r})" if strange is not None else ""
                remedy = "correct such values, name them in `na_values`, or set `decimal` or `dates`"
                text = f"column {name!r} holds {kind}{example}, in the schema {other}"
                found.append((text, remedy if other == "numbers" else ""))
            else:
                new = [c for c in ours[name] or () if c not in (categories or ())]
                found += [(f"column {name!r} holds {c!r}, which the schema does not know", EXTEND) for c in new]
        remedy = "leave out with `drop` what the schema does not have"
        return found + [(f"column {name!r} is not in the schema", remedy) for name in ours if name not in theirs]

    def _label_differences(self, dataset: Dataset) -> list[Difference]:
        if self.task != "classification" or dataset.task != "classification":
            return []
        new = [name for name in _labels(dataset) if name not in self.labels]
        return [(f"label {name!r} is not in the schema", EXTEND) for name in new]

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


def as_in_settings(error: FedekdError) -> NoReturn:
    """Raise an error of reading rows again, with the keys of site.toml where it names options of the command line."""
    text = str(error).replace("give --missing mean, flag or drop", 'set missing = "mean" or "drop" in site.toml')
    text = re.sub(r"--(dates|decimal) (\S+)", r'\1 = "\2"', text)
    raise FedekdError(re.sub(r"--([a-z]+(?:-[a-z]+)*)", lambda m: f"`{m[1].replace('-', '_')}`", text)) from None


def _check_texts(dataset: Dataset) -> None:
    for column, categories in categories_of(dataset.columns).items():
        if len(categories) > FEW and 2 * len(categories) > len(dataset.y):
            raise FedekdError(
                f"column {column!r} holds {len(categories)} different texts in {len(dataset.y)} rows: names or free "
                "text, which everyone would read in the schema; leave the column out with `drop` in site.toml"
            )


def _is_empty(dataset: Dataset, column: str) -> bool:
    return (
        dataset.gaps and column in dataset.columns and bool(np.isnan(dataset.x[:, dataset.columns.index(column)]).all())
    )


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
