"""A dataset: its rows, what they mean, and the checks every source of rows must pass."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedekd.errors import FedekdError, unknown

TASKS = ("classification", "regression")


@dataclass(frozen=True, eq=False)
class RowNames:
    """A name for each row, such as its patient or the patient's sex."""

    column: str
    codes: np.ndarray
    """int64 [N]: places in ``names``."""
    names: tuple[str, ...]

    @classmethod
    def of(cls, column: str, values: np.ndarray) -> RowNames:
        names, codes = np.unique(values, return_inverse=True)
        return cls(
            column, codes.astype(np.int64), tuple(f"{n:g}" if names.dtype.kind == "f" else str(n) for n in names)
        )


@dataclass(frozen=True)
class Reading:
    """How a user's own table is to be read, where the file does not tell; the defaults change nothing."""

    drop: tuple[str, ...] = ()
    """Columns that are no inputs."""
    decimal: str = "."
    missing: str | None = None
    """``mean`` or ``flag``: a missing number becomes the mean of the training rows, with ``flag`` beside a column that
    says where; ``drop``: its row is left out. None: a file with missing values is refused."""
    dates: str = "text"
    """What a column of dates becomes: ``text`` (a column for each), ``age`` (a number of years) or ``drop``."""
    na_values: tuple[str, ...] | None = None
    """The texts that mean a missing value, besides the empty one; None: the usual ones, such as NA and null."""

    @classmethod
    def of(cls, given: Any) -> Reading:
        """From anything with attributes or keys of these names: settings, or the metadata of a model."""
        get = given.get if isinstance(given, dict) else lambda name: getattr(given, name, None)
        chosen: dict[str, Any] = {f.name: get(f.name) for f in fields(cls)}
        chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items() if v is not None}
        return cls(**chosen)

    def changes(self) -> dict[str, Any]:
        """What differs from the defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows ``x`` with labels or targets ``y``; checked and converted to the types below when it is created."""

    name: str
    task: str
    """``classification`` or ``regression``."""
    x: np.ndarray
    """Images: uint8 or float32 [N, C, H, W]; tables: float32 [N, D]."""
    y: np.ndarray
    """int64 [N] labels 0..outputs-1, or float32 [N] targets in the user's units."""
    outputs: int
    """Number of classes; 1 for regression."""
    labels: tuple[str, ...] = ()
    """The classes' names."""
    scale: float | None = 255.0
    """The raw value that maps to 1: input = (x/scale - .5)/.5. None: standardise by the pooled training rows."""
    sites: np.ndarray | None = None
    """int64 [N]: the real client of each row, when the sites are real."""
    site_names: tuple[str, ...] = ()
    source: str = ""
    """Where it came from, for humans."""
    standardise_target: bool = False
    """Targets are standardised by the pooled training rows inside training; metrics stay in the user's units."""
    columns: tuple[str, ...] = ()
    """The names of a table's D columns; the one that stands for text "m" in column "sex" is called sex=m."""

    part: bool = False
    """Whether these are one site's rows of a larger whole, which may lack classes."""
    gaps: bool = False
    """Whether a table may have missing values (NaN), which ``federate`` fills in from the clients' training rows."""
    fill: str = "median"
    """With what: the ``median`` or the ``mean`` of a column."""
    reading: Reading = Reading()
    """How the file that the rows are from was read."""
    groups: RowNames | None = None
    """Which rows belong together, such as those of one patient. Rows that a public file adds have no name."""
    subgroups: RowNames | None = None
    """What results are shown by, such as sex."""
    notes: tuple[str, ...] = ()
    """What the user should know about how the rows were read, a line each."""

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise unknown("task", str(self.task), TASKS)
        x, y = np.asarray(self.x), np.asarray(self.y)
        self._check_shapes(x, y)
        put = object.__setattr__
        put(self, "x", self._rows(x))
        put(self, "y", self._classes(y) if self.task == "classification" else self._targets(y))
        if self.sites is not None:
            self._check_sites(np.asarray(self.sites))

    @property
    def class_names(self) -> tuple[str, ...]:
        """``labels``, or the classes' numbers where they have no names."""
        return self.labels or tuple(str(label) for label in range(self.outputs))

    def _fail(self, problem: str) -> FedekdError:
        return FedekdError(f"dataset {self.name!r}: {problem}")

    def _check_shapes(self, x: np.ndarray, y: np.ndarray) -> None:
        if x.ndim not in (2, 4):
            raise self._fail(f"x has shape {x.shape}; give images as [N, C, H, W] or a table as [N, D]")
        if y.ndim != 1 or len(x) != len(y):
            raise self._fail(f"x has {len(x)} rows but y has shape {y.shape}; give one value of y for each row")
        if self.fill not in ("median", "mean"):
            raise unknown("way to fill", self.fill, ("median", "mean"))
        if self.gaps and x.ndim != 2:
            raise self._fail("only a table may have missing values; leave gaps out")
        if 0 in x.shape:
            raise self._fail(f"x is empty (shape {x.shape}); give it at least one row and one feature")
        if self.columns and x.shape[1:] != (len(self.columns),):
            raise self._fail(
                f"{len(self.columns)} column names for rows of shape {x.shape[1:]}; give one for each column"
            )
        if self.scale is not None and not 0 < self.scale < np.inf:
            raise self._fail(f"scale is {self.scale}; give a number above 0, or None to standardise")

    def _rows(self, x: np.ndarray) -> np.ndarray:
        if x.dtype == np.uint8 and x.ndim == 4:
            return x
        if x.dtype.kind not in "buif":
            raise self._fail(f"x has type {x.dtype}; give numbers")
        x = as_float32(x)
        wrong, kind = (np.isinf(x), "infinite") if self.gaps else (~np.isfinite(x), "missing or infinite")
        bad = int(wrong.reshape(len(x), -1).any(1).sum())
        if bad:
            raise self._fail(f"x has {kind} values in {bad} of {len(x)} rows; fill or remove them")
        return x

    def _classes(self, y: np.ndarray) -> np.ndarray:
        if y.dtype.kind not in "iu":
            raise self._fail(f"labels have type {y.dtype}; give integers 0..{self.outputs - 1}")
        if not self.part and (self.outputs < 2 or y.min() == y.max()):
            raise self._fail("all rows belong to one class; classification needs at least two")
        if y.min() < 0 or y.max() >= self.outputs:
            worst = y.min() if y.min() < 0 else y.max()
            raise self._fail(f"label {worst} is outside 0..{self.outputs - 1}")
        if self.labels and len(self.labels) != self.outputs:
            raise self._fail(f"{len(self.labels)} class names for {self.outputs} classes; give one for each")
        return y.astype(np.int64)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        if self.outputs != 1 or y.dtype.kind not in "buif":
            raise self._fail(f"a regression has numeric targets and outputs=1, not {y.dtype} and {self.outputs}")
        y = as_float32(y)
        bad = int((~np.isfinite(y)).sum())
        if bad:
            raise self._fail(f"{bad} of {len(y)} targets are missing or infinite; fill or remove those rows")
        return y

    def _check_sites(self, sites: np.ndarray) -> None:
        if sites.shape != (len(self.x),) or sites.dtype.kind not in "iu" or sites.min() < 0:
            raise self._fail(f"sites ({sites.dtype}, shape {sites.shape}) must be one number 0, 1, .. for each row")
        count = int(sites.max()) + 1
        if self.site_names and len(self.site_names) < count:
            raise self._fail(f"{len(self.site_names)} site names for {count} sites; give one for each")
        if len(set(self.site_names)) < len(self.site_names):
            raise self._fail("two sites have the same name; give each its own")
        object.__setattr__(self, "sites", sites.astype(np.int64))
        if not self.site_names:
            object.__setattr__(self, "site_names", tuple(str(site) for site in range(count)))


def as_float32(values: np.ndarray) -> np.ndarray:
    """``values`` in single precision; what does not fit becomes infinite, without a warning."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)
