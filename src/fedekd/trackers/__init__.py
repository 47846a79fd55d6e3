"""Experiment trackers that a run can be sent to while it lasts; each is imported only when asked for."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from fedekd.errors import FedekdError, unknown
from fedekd.settings import Settings
from fedekd.trackers.experiment import Experiment
from fedekd.trackers.tracker import Tracker

NEEDS = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}


def choose(names: str, settings: Settings, quiet: bool = False) -> list[Tracker]:
    """The trackers of a list such as ``tensorboard,mlflow``; nothing is imported, opened or written yet."""
    wanted = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())
    if not wanted:
        raise FedekdError(f"--log-to takes {', '.join(NEEDS)} or none, got {names!r}")
    for name in wanted:
        if name not in NEEDS and name != "none":
            raise unknown("tracker", name, (*NEEDS, "none"))
        if missing(NEEDS.get(name, ())):
            raise FedekdError(f"--log-to {name} needs a package that is not installed; pip install 'fedekd[{name}]'")
    experiment = Experiment.of(settings)
    return [Tracker(name, experiment, Path(settings.out), quiet) for name in wanted if name != "none"]


def missing(packages: Iterable[str]) -> list[str]:
    return [package for package in packages if find_spec(package) is None]
