"""The settings of a run: defaults, the dataset's preset, TOML files, and their checks. Imports no torch."""

from __future__ import annotations

import functools
import json
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from fedekd.errors import FedekdError, unknown
from fedekd.files import check_name
from fedekd.units import METRICS
from fedekd.validation import is_number

DEFAULT_PRESET = {"rounds": 10, "epochs": 2, "batch_size": 32, "lr": 1e-3}
MOST_SEEDS = 10_000
MOST_FOLDS = 100
MOST = 100_000  # rounds or epochs: more is a mistake, or in a federation of real sites an attack
MOST_TOML = 2**20  # bytes
MANY = 1_000
"""Clients from which on all of them are measured only in the end, unless ``measure_every`` is given, and no models,
details for the page or curves are kept, nor a checkpoint of every round."""
READING = ("drop", "decimal", "missing", "dates", "na_values")  # the fields of fedekd.dataset.Reading
TUNED_ON, REPORTED = "100-102", "0-9"  # seeds of `fedekd tune`
NEWER: dict[str, Any] = {
    "participation": 1.0,
    "weight_decay": 0.0,
    "lr_schedule": "constant",
    "augment": "none",
    "choose_rounds": False,
    "metric": None,
    "combine": "mean",
    "measure_every": 1,
}
"""Training settings that older records and run keys lack, and what those were run with."""
ChosenBy = Literal["metric", "loss"]
"""What of the validation rows chooses the best that a client can do alone."""
SHORTCUTS = ("beta", "lambda_kd", "energy")  # parameters that every gated method takes
CHOICES = {
    "partition": ("auto", "dirichlet", "iid", "sites"),
    "precision": ("fp32", "tf32", "bf16"),
    "engine": ("auto", "serial", "stacked"),
    "weighting": ("uniform", "samples"),
    "combine": ("mean", "median", "trimmed", "krum"),
    "optimizer": ("adam", "sgd", "momentum"),
    "lr_schedule": ("constant", "cosine"),
    "augment": ("none", "flip-crop"),
    "task": ("classification", "regression"),
    "metric": tuple(METRICS),
    "chosen_by": get_args(ChosenBy),
    "models": ("first", "all", "none"),
    "alone": ("plain", "menu"),
    "decimal": (".", ","),
    "missing": ("mean", "drop", "flag"),
    "dates": ("text", "age", "drop"),
}


Number = tuple[str, Callable[[float], bool]]


def _whole(low: int, high: float = math.inf) -> Number:
    words = f"a whole number >= {low}" if high == math.inf else f"a whole number from {low} to {high}"
    return words, lambda value: isinstance(value, int) and low <= value <= high


POSITIVE: Number = "a number > 0", lambda value: 0 < value < math.inf
SHARE: Number = "a number > 0 and <= 1", lambda value: 0 < value <= 1
NUMBERS: dict[str, Number] = {
    "alpha": POSITIVE,
    "lr": POSITIVE,
    "weight_decay": ("a number >= 0", lambda value: 0 <= value < math.inf),
    "clients": _whole(2),
    "rounds": _whole(1),
    "epochs": _whole(1),
    "batch_size": _whole(1),
    "measure_every": _whole(1),
    "split_seed": _whole(0),
    "folds": _whole(2, MOST_FOLDS),
    "participation": SHARE,
    "fraction": SHARE,
}
"""What these settings must be, where they are given, in words and as a test."""


def _help(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Settings:
    """Everything that ``fedekd run`` can be told. None means the dataset's preset, or nothing given."""

    dataset: str = _help("a dataset's name, or a table, .npz or folder of your own", "digits")
    methods: tuple[str, ...] = _help(
        "names, or groups such as paper or all; local always runs too", ("fedekd", "fedavg")
    )
    alone: str = _help(
        "what each client is compared with: plain local training, or the best of a menu of ways to train alone", "plain"
    )
    alpha: float = _help("how alike simulated clients are (Dirichlet): 0.1 is very uneven, 100 nearly even", 0.1)
    clients: int = _help("number of simulated clients", 6)
    seeds: tuple[int, ...] = _help("one run for each seed, such as 0, 0-9 or 0,3,5", (0,))
    split_seed: int | None = _help("split the rows by this seed in every run (default: by the run's own seed)")
    folds: int | None = _help(
        "test every row once: cut each client's rows into this many parts, of which each seed tests a different one "
        "(sets --split-seed 0)"
    )
    rounds: int | None = _help("communication rounds")
    epochs: int | None = _help("local epochs per round")
    batch_size: int | None = _help("samples per batch")
    lr: float | None = _help("learning rate")
    lr_schedule: str = _help("constant, or cosine: falls round by round to nearly 0", "constant")
    optimizer: str = _help("adam, sgd or momentum (sgd with momentum 0.9), fresh each round", "adam")
    weight_decay: float = _help("weight decay; decoupled with adam (AdamW)", 0.0)
    augment: str = _help("none, or flip-crop: random flips and crops of training images", "none")
    choose_rounds: bool = _help("keep each client's model from the round with its lowest validation loss", False)
    weighting: str = _help("average uniformly or by training samples", "uniform")
    combine: str = _help("how uploads are combined: mean or, against bad clients, median, trimmed or krum", "mean")
    measure_every: int | None = _help(
        "measure all clients after every N rounds, and after the last "
        f"(default: 1; from {MANY:,} clients on, only after the last)"
    )
    participation: float = _help("share of clients in each round, drawn anew each time", 1.0)
    partition: str = _help("how rows are split: auto, dirichlet, iid or sites", "auto")
    metric: str | None = _help(
        "what Δ is measured in: accuracy (default), balanced_accuracy, macro_f1, auroc, nll or ece; for regression "
        "rmse (default), mae or r2"
    )
    chosen_by: ChosenBy = _help(  # noqa: RUF009
        "how validation rows choose the best a client can do alone: by the metric, or by the loss, unless that of "
        "plain Local is within one standard error of the lowest",
        "metric",
    )
    fraction: float = _help("share of each client's training and validation rows to keep; all test rows stay", 1.0)
    device: str = _help("cpu, cuda or auto", "cpu")
    precision: str = _help("fp32, tf32 or bf16", "fp32")
    engine: str = _help("auto (stacked on a GPU), serial or stacked", "auto")
    data: str | None = _help("folder with the published datasets (or $FEDEKD_DATA)")
    target: str | None = _help("column of a table to predict")
    task: str | None = _help("classification or regression, if the data does not tell")
    clients_from: str | None = _help("column (table) or array (npz) with the client of each row")
    group: str | None = _help(
        "column (table) or array (npz) that says which rows belong together, such as a patient's; not an input"
    )
    subgroups: str | None = _help("column (table) or array (npz), such as sex: show Δ for each of its values")
    drop: tuple[str, ...] | None = _help("columns of a table that are not inputs, such as patient_id")
    decimal: str | None = _help("the decimal mark in a table: . (default) or ,")
    missing: str | None = _help(
        "a missing value becomes the mean of the training rows (mean; flag also adds a column that marks it), or its "
        "row is left out (drop)"
    )
    dates: str | None = _help("what columns of dates become: text (default), age (years until 2025) or drop")
    na_values: tuple[str, ...] | None = _help(
        "texts that mean a missing value (default: NA, NaN, null, ..); an empty cell always does"
    )
    public: str | None = _help("rows that the server and all clients hold: a share such as 0.1, or a file")
    private: str | None = _help(
        "the private model: a name from `fedekd models`, or your own package.module:function; several, separated by "
        "commas, are dealt out to the clients in turn"
    )
    proxy: str | None = _help("the proxy model: a name from `fedekd models`, or your own package.module:function")
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by method
    thumbnails: bool = _help(
        "let the page show training samples that the gate distrusts: pictures, rows, labels", False
    )
    models: str = _help("which seeds' trained models to keep: first, all or none", "first")
    out: str = _help("folder for the results", "fedekd-results")

    def seed_of_split(self, seed: int) -> int:
        """The seed that deals out the rows for the run with this training seed."""
        return seed if self.split_seed is None else self.split_seed


def make_settings(given: Mapping[str, Any]) -> Settings:
    """Settings from what a user gave (command line, TOML or Python), completed by the preset and checked."""
    given = {key: value for key, value in given.items() if value is not None}
    given |= {key: str(given[key]) for key in ("out", "data") if isinstance(given.get(key), Path)}
    names = {f.name for f in fields(Settings)}
    shortcuts = {key: given.pop(key) for key in SHORTCUTS if key in given}
    for key in given:
        if key not in names:
            raise unknown("setting", key, names | set(SHORTCUTS))
    if "seeds" in given:
        given["seeds"] = parse_seeds(given["seeds"])
    if "folds" in given:
        _check_number("folds", given["folds"])
        given = {"seeds": tuple(range(given["folds"])), "split_seed": 0, **given}
    if "methods" in given:
        given["methods"] = parse_names(given["methods"])
    for name in ("drop", "na_values"):
        if name in given:
            given[name] = parse_texts(name, given[name])
    for role in ("private", "proxy"):
        several = given.get(role)
        if isinstance(several, (list, tuple)):
            named = all(isinstance(one, str) for one in several)
            given[role] = ",".join(several) if named else tuple(several)
    if isinstance(given.get("public"), (int, float)) and not isinstance(given["public"], bool):
        given["public"] = str(given["public"])
    for f in fields(Settings):
        wrong = f.name in given and str(f.type).startswith("str") and not isinstance(given[f.name], str)
        if wrong and not (f.name in ("private", "proxy") and _factories(given[f.name])):
            raise FedekdError(f"{f.name} must be text, got {given[f.name]!r}")
    settings = Settings(**given)
    from fedekd.data.registry import preset  # here: `fedekd --help` reads the settings' names and must not wait for it

    suited = {**DEFAULT_PRESET, **preset(settings.dataset)}
    settings = replace(settings, **{k: v for k, v in suited.items() if getattr(settings, k) is None})
    if shortcuts:
        merged = {"*": {**shortcuts, **settings.parameters.get("*", {})}}
        settings = replace(settings, parameters={**settings.parameters, **merged})
    _check(settings)
    return settings


def _factories(given: Any) -> bool:
    return all(callable(one) or isinstance(one, str) for one in given) if isinstance(given, tuple) else callable(given)


def model_name(make: Any) -> str:
    """A factory of models as the command line names it, package.module:function; a partial by what it completes."""
    while isinstance(make, functools.partial):
        make = make.func
    named = make if hasattr(make, "__qualname__") else type(make)
    return f"{named.__module__}:{named.__qualname__}"


def read_toml(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML file: the same names as on the command line, methods' own under [parameters.NAME]."""
    where = Path(path)
    try:
        if where.exists() and not where.is_file():
            raise FedekdError(f"cannot read {path}: it is not a file; give a TOML file")
        if where.stat().st_size > MOST_TOML:
            raise FedekdError(f"{path} has more than {MOST_TOML // 2**20} MiB, far too much for settings; shorten it")
        content = tomllib.loads(where.read_text(encoding="utf-8"))
        json.dumps(content, default=str)  # which fails where it is nested deeper than others can follow
    except OSError as error:
        raise FedekdError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise FedekdError(f"{path} is not valid TOML: it is nested too deep") from None
    except ValueError as error:  # of which TOML's and Unicode's are kinds
        raise FedekdError(f"{path} is not valid TOML: {error}") from None
    return {key.replace("-", "_"): value for key, value in content.items()}


def parse_seeds(given: int | str | Iterable[int]) -> tuple[int, ...]:
    """``0-9``, ``0,3,5``, 7, or any iterable of integers."""
    seeds: list[int] = []
    try:
        for part in [given] if isinstance(given, int) else given.split(",") if isinstance(given, str) else given:
            first, dash, last = str(part).strip().partition("-")
            seeds += range(int(first), min(int(last), int(first) + MOST_SEEDS) + 1) if dash else [int(first)]
            if len(seeds) > MOST_SEEDS:
                raise FedekdError(f"more than {MOST_SEEDS} seeds in {given!r}")
    except (ValueError, TypeError):
        raise FedekdError(f"seeds must look like 0, 0-9 or 0,3,5, got {given!r}") from None
    if not seeds:
        raise FedekdError(f"no seeds in {given!r}; try 0-9")
    return tuple(dict.fromkeys(seeds))


def parse_names(given: str | Iterable[str]) -> tuple[str, ...]:
    try:
        names = given.split(",") if isinstance(given, str) else list(given)
    except TypeError:
        raise FedekdError(f"methods must be names such as fedekd,fedavg, got {given!r}") from None
    return tuple(dict.fromkeys(n.strip() if isinstance(n, str) else n for n in names if n))


def parse_texts(name: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """Texts with commas between them; a list where they hold commas themselves."""
    try:
        found: list[str] | None = given.split(",") if isinstance(given, str) else list(given)
    except TypeError:
        found = None
    if found is None or not all(isinstance(one, str) for one in found):
        raise FedekdError(f"{name} must be texts such as a,b, got {given!r}")
    return tuple(dict.fromkeys(one.strip() for one in found if one.strip()))


def _check(settings: Settings) -> None:
    for name in NUMBERS:
        if (value := getattr(settings, name)) is not None:
            _check_number(name, value)
    if settings.folds is not None:
        _check_folds(settings.folds, settings.seeds)
    if not isinstance(settings.choose_rounds, bool):
        raise FedekdError(f"choose_rounds must be true or false, got {settings.choose_rounds!r}")
    if settings.public is not None:
        _check_public(settings.public)
    for name, choices in CHOICES.items():
        value = getattr(settings, name)
        if value is not None and value not in choices:
            raise unknown(name, str(value), choices)
    check_combine(settings.combine, settings.weighting)
    if not settings.out:
        raise FedekdError("out must name a folder")
    for place in (settings.out, settings.dataset):
        check_name(Path(place))
    if not settings.methods:
        raise FedekdError("no methods given; try --methods fedekd,fedavg or paper")
    if not isinstance(settings.parameters, Mapping):
        raise FedekdError(f"parameters must be tables such as [parameters.fedekd], got {settings.parameters!r}")
    for method, parameters in settings.parameters.items():
        if not isinstance(parameters, Mapping):
            raise FedekdError(f"[parameters.{method}] must be a table of values, got {parameters!r}")


def _check_number(name: str, value: Any) -> None:
    words, holds = NUMBERS[name]
    if not is_number(value) or not holds(value):
        raise FedekdError(f"{name} must be {words}, got {value!r}")
    if name in ("rounds", "epochs") and value > MOST:
        raise FedekdError(f"{name} must be at most {MOST:,}, got {value:,}")


def _check_folds(folds: int, seeds: Collection[int]) -> None:
    tested = Counter(seed % folds for seed in seeds)
    if len(tested) < folds or len(set(tested.values())) > 1:
        raise FedekdError(
            f"with {folds} folds each seed tests one of them, and these seeds do not test all equally "
            f"often; take 0-{folds - 1}, or 0-{2 * folds - 1} to test each twice"
        )


def check_combine(combine: str, weighting: str, where: str = "") -> None:
    """A robust combination treats all alike. ``where``: the file that says so."""
    if combine != "mean" and weighting != "uniform":
        raise FedekdError(f"{where}combine = {combine!r} knows no weights; set weighting to uniform")


def _check_public(public: str) -> None:
    from fedekd.data.public import as_share

    share = as_share(public)
    if share is None and not (public and Path(public).expanduser().exists()):
        raise FedekdError(f"public must be a share such as 0.1 or a file that is there, got {public!r}")
    if share is not None and not 0 < share < 1:
        raise FedekdError(f"public must be a share > 0 and < 1, or a file, got {public!r}")
