"""fedekd tune: search hyper-parameters of a method, or of Local, on validation rows."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import fields
from typing import Any

from fedekd.commands.parser import add_setting, command
from fedekd.commands.run import merged
from fedekd.errors import FedekdError
from fedekd.settings import REPORTED, TUNED_ON, Settings

DECIDED = ("methods", "seeds", "alone", "models", "thumbnails", "chosen_by")  # by tuning itself, or of no use to it
FIXED = (*DECIDED, "out")


def add(commands: Any) -> None:
    shared = [field.name for field in fields(Settings) if field.name not in FIXED]
    text = "search hyper-parameters on validation rows, with seeds that will not be reported"
    tune = command(commands, "tune", tune_method, text, shared)
    tune.add_argument("--method", default="fedekd", metavar="NAME", help="what to tune, or local (default: fedekd)")
    tune.add_argument(
        "--grid", nargs="+", action="extend", default=[], metavar="NAME=VALUES",
        help="values to try, such as beta=0.5,1,2 lr=0.001,0.01: the method's parameters or training settings",
    )  # fmt: skip
    add_setting(tune, "seeds", str, f"seeds to tune on (default: {TUNED_ON})")
    tune.add_argument(
        "--report-seeds", default=REPORTED, metavar="LIST",
        help=f"seeds of the results to report, which are never tuned on; or none (default: {REPORTED})",
    )  # fmt: skip
    tune.add_argument(
        "--by", default="loss", choices=["loss", "value"], help="rank by validation loss or metric (default: loss)"
    )
    add_setting(tune, "out", str, "folder for the runs (default: fedekd-tuning)")
    tune.add_argument(
        "--set", action="append", default=[], metavar="METHOD.PARAMETER=VALUE", help="a parameter to keep fixed"
    )
    tune.add_argument("--config", metavar="FILE", help="TOML file with settings; options given here override it")
    tune.add_argument("--workers", type=int, metavar="N", help="processes on a CPU (default: one for each core)")


def tune_method(given: argparse.Namespace) -> None:
    shared = {name: value for name, value in merged(given).items() if name not in DECIDED}
    grid: dict[str, list[str]] = {}
    for text in given.grid:
        name, equals, values = text.partition("=")
        if not (name and equals and values):
            raise FedekdError(f"--grid takes NAME=VALUE,VALUE such as beta=0.5,1,2, got {text!r}")
        grid.setdefault(name.replace("-", "_"), []).extend(value for value in values.split(",") if value)
    from fedekd.studies.tuning import tune

    reported = None if given.report_seeds == "none" else given.report_seeds
    try:
        found = tune(given.method, grid, shared, given.seeds or TUNED_ON, reported, given.by, workers=given.workers)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command continues where it stopped") from None
    print(found.text())
    print(f"the best: {_run_command(given, found.best.changes)}")


def _run_command(given: argparse.Namespace, changes: Any) -> str:
    """The settings as they were given, with the values found in their place."""
    values = {f.name: getattr(given, f.name, None) for f in fields(Settings) if f.name not in FIXED}
    own = dict(text.partition("=")[::2] for text in given.set)
    for name, value in changes:
        (own if "." in name else values)[name] = value
    words = ["fedekd", "run", *(("--config", given.config) if given.config else ()), "--methods", given.method]
    for name, value in values.items():
        if value is not None and value is not False:
            words += ["--" + name.replace("_", "-"), *(() if value is True else (str(value),))]
    for name, value in own.items():
        words += ["--set", f"{name}={value}"]
    if given.report_seeds != "none":
        words += ["--seeds", given.report_seeds]
    return shlex.join(words)
