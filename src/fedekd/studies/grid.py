"""What a study asks for: blocks of settings in a TOML file, expanded into a grid.

Settings at the top of the file hold for every ``[[block]]``; a block's own replace them, and a file without blocks is
one block. In a block ``dataset``, ``alpha`` and ``fraction`` may be lists, and ``vary.METHOD.PARAMETER = [..]`` runs
the method with each value. Lists multiply; a run that several blocks ask for is done once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedekd.data.registry import canonical
from fedekd.errors import FedekdError, unknown
from fedekd.settings import SHORTCUTS, ChosenBy, Settings, make_settings, parse_seeds, read_toml

OWN = ("name", "vary")  # what a block may say besides settings
LISTS = ("dataset", "alpha", "fraction")  # settings that may be lists, with a run for each value
HOLD_LISTS = ("methods", "seeds", "drop", "na_values", "private", "proxy")  # whose one value may be a list
NUMBERS = ("alpha", "fraction", "clients")
FILTERS = ("dataset", "alpha", "fraction", "clients", "seed", "method")


@dataclass(frozen=True)
class Study:
    """A grid of settings, each of one dataset and alpha."""

    name: str
    grid: tuple[Settings, ...]
    methods: tuple[str, ...] = ()  # names or labels to run besides Local; empty: all

    @property
    def out(self) -> str:
        return self.grid[0].out

    @property
    def chosen_by(self) -> ChosenBy:
        return self.grid[0].chosen_by


def presets() -> dict[str, Path]:
    """The studies that come with fedekd."""
    folder = Path(str(files("fedekd.studies"))) / "presets"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_study(given: str | Path, overrides: Mapping[str, Any] | None = None, only: str = "") -> Study:
    """A preset by its name or a user's TOML file.

    ``overrides`` are settings that win over the file's. ``only`` keeps a part of the grid, such as
    ``dataset=cifar10,alpha=0.5,seed=0-2,method=fedekd``; values of one key are alternatives.
    """
    path, known = Path(given), presets()
    if str(given) in known:
        path = known[str(given)]
    elif path.suffix != ".toml" and not path.exists():
        raise unknown("study", str(given), [*known, "FILE.toml"])
    shared = read_toml(path)
    blocks = shared.pop("block", [{}])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise FedekdError(f"{path}: write each block of the study under a line [[block]]")
    given_now = {key: value for key, value in (overrides or {}).items() if value is not None}
    grid: list[Settings] = []
    for number, block in enumerate(blocks, start=1):
        own = {key.replace("-", "_"): value for key, value in block.items()}
        try:
            grid += _expanded({**shared, **own, **given_now})
        except FedekdError as error:
            where = f"block {own.get('name', number)} of {path.name}" if len(blocks) > 1 else path.name
            raise FedekdError(f"{where}: {error}") from None
    if len({settings.chosen_by for settings in grid}) > 1:
        raise FedekdError(f"{path.name}: chosen_by must be the same for all blocks, which share one folder")
    study = Study(path.stem, tuple(grid))
    return _filtered(study, only) if only else study


def _expanded(block: dict[str, Any]) -> Iterator[Settings]:
    names = [f.name for f in fields(Settings)]
    for key in block:
        if key not in (*names, *SHORTCUTS, *OWN):
            raise unknown("setting", key, (*names, *SHORTCUTS, *OWN, "block"))
    settings = {key: value for key, value in block.items() if key not in OWN}
    for key, value in settings.items():
        if isinstance(value, list) and key not in (*LISTS, *HOLD_LISTS):
            raise FedekdError(
                f"{key} takes one value, got {value}; only {', '.join(LISTS)} multiply. Write a [[block]] for each "
                "value, or search it with `fedekd tune`"
            )
    variants = list(_variants(block.get("vary", {}), settings.pop("parameters", {})))
    lists = [_listed(key, settings.pop(key, None)) for key in LISTS]
    for *values, parameters in itertools.product(*lists, variants):
        yield make_settings({**settings, **dict(zip(LISTS, values, strict=True)), "parameters": parameters})


def _variants(vary: Any, parameters: Any) -> Iterator[dict[str, dict[str, Any]]]:
    """The parameters by method, once for each combination of the values to vary."""
    for name, tables in (("vary", vary), ("parameters", parameters)):
        if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
            raise FedekdError(f"{name} must name a method and its parameters, as in {name}.fedekd.beta, got {tables!r}")
    axes = [
        [(method, key, value) for value in _listed(f"vary.{method}.{key}", values)]
        for method, table in vary.items()
        for key, values in table.items()
    ]
    for combination in itertools.product(*axes):
        changed: dict[str, dict[str, Any]] = {method: dict(table) for method, table in parameters.items()}
        for method, key, value in combination:
            changed.setdefault(method, {})[key] = value
        yield changed


def _listed(what: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    if not value:
        raise FedekdError(f"{what} is an empty list; give it a value, or leave it out")
    return value


# --- only a part of it -----------------------------------------------------------------------------------


def _filtered(study: Study, only: str) -> Study:
    kept: dict[str, list[Any]] = {key: [] for key in FILTERS}
    for part in only.split(","):
        key, equals, value = (text.strip() for text in part.partition("="))
        if not (equals and value):
            raise FedekdError(f"--only takes KEY=VALUE,KEY=VALUE such as dataset=cifar10,alpha=0.5, got {part!r}")
        if key not in FILTERS:
            raise unknown("key in --only", key, FILTERS)
        kept[key] += _meant(key, value)
    here: dict[str, set[Any]] = {
        "dataset": {canonical(s.dataset) for s in study.grid},
        "alpha": {float(s.alpha) for s in study.grid},
        "fraction": {float(s.fraction) for s in study.grid},
        "clients": {float(s.clients) for s in study.grid},
        "seed": {seed for s in study.grid for seed in s.seeds},
    }
    for key, values in here.items():
        for value in kept[key]:
            if value not in values:
                raise unknown(f"{key} in --only", str(value), map(str, values))
    grid = [
        replace(s, seeds=tuple(seed for seed in s.seeds if _passes(seed, kept["seed"])))
        for s in study.grid
        if _passes(canonical(s.dataset), kept["dataset"])
        and all(_passes(float(getattr(s, key)), kept[key]) for key in NUMBERS)
    ]
    grid = [s for s in grid if s.seeds]
    if not grid:
        raise FedekdError(f"--only {only} leaves nothing of study {study.name}; loosen it")
    return replace(study, grid=tuple(grid), methods=tuple(kept["method"]))


def _meant(key: str, value: str) -> list[Any]:
    if key == "seed":
        return list(parse_seeds(value))
    if key not in NUMBERS:
        return [canonical(value) if key == "dataset" else value]
    try:
        return [float(value)]
    except ValueError:
        raise FedekdError(f"{key} in --only must be a number, got {value!r}") from None


def _passes(value: Any, wanted: Iterable[Any]) -> bool:
    return not wanted or value in wanted
