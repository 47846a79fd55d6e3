"""fedekd run: train the methods and compare every client with training alone."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from fedekd.commands.parser import add_setting, command, console
from fedekd.errors import FedekdError
from fedekd.settings import SHORTCUTS, Settings, make_settings, read_toml

GATED = {  # for every method with a gate at once; what settings.SHORTCUTS names
    "beta": (float, "sharpness of the gate"),
    "lambda_kd": (float, "weight of the distillation from the proxy"),
    "energy": (str, "what the gate looks at: auto, kl, entropy, margin, lse, feature, squared"),
}


def add(commands: Any) -> None:
    every = [field.name for field in fields(Settings)]
    text = "train the methods and compare every client with training alone"
    run = command(commands, "run", run_methods, text, every)
    gated = run.add_argument_group("gated methods")
    for name in SHORTCUTS:
        kind, text = GATED[name]
        add_setting(gated, name, kind, text)
    more = run.add_argument_group("more")
    more.add_argument(
        "--set", action="append", default=[], metavar="METHOD.PARAMETER=VALUE",
        help="set a parameter of a method; may be repeated; `fedekd methods` lists them",
    )  # fmt: skip
    more.add_argument("--config", metavar="FILE", help="TOML file with settings; options given here win")
    more.add_argument(
        "--log-to", default="none", metavar="LIST",
        help="send every round's results to tensorboard, mlflow or wandb (default: none)",
    )  # fmt: skip
    more.add_argument(
        "--workers", type=int, metavar="N",
        help="processes for methods and seeds on a CPU (default: as many as cores where there is much to do)",
    )  # fmt: skip
    more.add_argument("--show-clients", action="store_true", help="show the table of clients for each seed")
    more.add_argument("--no-report", action="store_true", help="do not write report.html")
    more.add_argument("--quiet", action="store_true", help="no progress, only the results")


def run_methods(given: argparse.Namespace) -> None:
    settings = make_settings(merged(given))
    from fedekd.api import watched_run

    try:
        result = watched_run(settings, not given.quiet, given.log_to, workers=given.workers)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command continues where it stopped") from None
    from fedekd.report.terminal import print_result
    from fedekd.runs import command_file

    command_file.write(settings.out, given.words, settings.device)
    print_result(console(), result, settings.out, given.show_clients)
    if not given.no_report:
        from fedekd.report.page import write_page

        page = write_page(settings.out, None, {record["key"] for record in result.records}, settings.thumbnails)
        print(f"report in {page}; open it in a browser")


def merged(given: argparse.Namespace) -> dict[str, Any]:
    """The file's settings under those of the command line, which also overrule the file's [parameters]."""
    file = read_toml(given.config) if given.config else {}
    names = {f.name for f in fields(Settings)} - {"parameters"} | set(SHORTCUTS)
    line = {name: value for name in names if (value := getattr(given, name, None)) is not None}
    own = file.get("parameters", {})
    if not isinstance(own, dict) or not all(isinstance(table, dict) for table in own.values()):
        raise FedekdError(f"parameters in {given.config} must be tables such as [parameters.fedekd]")
    parameters = {
        method: {key: value for key, value in table.items() if key not in line} for method, table in own.items()
    }
    for text in given.set:
        left, equals, value = text.partition("=")
        method, dot, parameter = left.rpartition(".")
        if not (equals and dot and method and parameter):
            raise FedekdError(f"--set takes METHOD.PARAMETER=VALUE, such as fedprox.mu=0.1, got {text!r}")
        parameters.setdefault(method, {})[parameter] = value
    return {**file, **line, "parameters": parameters}
