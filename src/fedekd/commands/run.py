"""fedekd run: train the methods and compare every client with training alone."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from fedekd.commands.parser import add_setting, add_settings, command, console
from fedekd.errors import FedekdError
from fedekd.settings import READING, SHORTCUTS, Settings, make_settings, read_toml

GATED = {  # for every method with a gate at once; what settings.SHORTCUTS names
    "beta": (float, "for gated methods: sharpness of the gate"),
    "lambda_kd": (float, "for gated methods: weight of the distillation from the proxy"),
    "energy": (str, "for gated methods: what the gate looks at: auto, kl, entropy, margin, lse, feature or squared"),
}
GROUPS = {  # every field of Settings that has an option, in one of them
    "data": (
        "dataset", "data", "target", "task", "clients_from", "group", "subgroups", "public", "clients", "alpha",
        "partition", "split_seed", "folds", "fraction",
    ),
    "reading tables": READING,
    "methods": ("methods", "alone", "private", "proxy"),
    "training": (
        "seeds", "rounds", "epochs", "batch_size", "lr", "lr_schedule", "optimizer", "weight_decay", "augment",
        "choose_rounds", "weighting", "combine", "participation", "measure_every", "device", "precision", "engine",
    ),
    "output": ("metric", "chosen_by", "out", "models", "thumbnails"),
}  # fmt: skip


def add(commands: Any) -> None:
    text = "train the methods and compare every client with training alone"
    run = command(commands, "run", run_methods, text)
    groups = {title: run.add_argument_group(title) for title in GROUPS}
    for title, names in GROUPS.items():
        add_settings(groups[title], names)
    for name in SHORTCUTS:
        add_setting(groups["methods"], name, *GATED[name])
    groups["methods"].add_argument(
        "--set", action="append", default=[], metavar="METHOD.PARAMETER=VALUE",
        help="set a parameter of a method; may be repeated; `fedekd methods` lists them",
    )  # fmt: skip
    groups["training"].add_argument(
        "--workers", type=int, metavar="N",
        help="processes for methods and seeds on a CPU (default: up to one for each core, if there is enough to do)",
    )  # fmt: skip
    output = groups["output"]
    output.add_argument("--dry-run", action="store_true", help="only say what would be trained, sent and kept")
    output.add_argument(
        "--log-to", default="none", metavar="LIST",
        help="send every round's results to tensorboard, mlflow or wandb (default: none)",
    )  # fmt: skip
    output.add_argument("--show-clients", action="store_true", help="show the table of clients for each seed")
    output.add_argument("--no-report", action="store_true", help="do not write report.html")
    output.add_argument("--quiet", action="store_true", help="no progress, only the results")
    run.add_argument("--config", metavar="FILE", help="TOML file with settings; options given here override it")


def run_methods(given: argparse.Namespace) -> None:
    settings = make_settings(merged(given))
    if given.dry_run:
        _plan(settings)
        return
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


def _plan(settings: Settings) -> None:
    """Loads the data and rehearses the methods, but trains nothing and writes nothing."""
    from pathlib import Path

    from fedekd.report.listing import print_plan
    from fedekd.runs.plan import plan
    from fedekd.runs.store import read_records

    done = {record["key"] for record in read_records(Path(settings.out) / "results.jsonl")}
    print_plan(console(), plan(settings), done, settings)


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
