"""The command line. Each command imports what it needs when it runs, so that help and listings answer at once."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fedekd import __version__
from fedekd.errors import FedekdError, unknown
from fedekd.settings import PAPER, SHORTCUTS, Settings, make_settings, read_toml

if TYPE_CHECKING:
    from rich.console import Console

Act = Callable[[argparse.Namespace], None]
ABOUT = "Federated learning that shows every site whether joining the federation helped or harmed it."
EXAMPLES = """examples:
  fedekd run                                    FedeKD against Local and FedAvg on digits
  fedekd run --methods all --alpha 0.5 --seeds 0-9
  fedekd run --dataset patients.csv --target outcome --clients-from hospital
  fedekd run --methods fedekd,fedprox --set fedprox.mu=0.1 --beta 2
  fedekd data show digits --alpha 0.1"""
GATED = {  # for every method with a gate at once; what settings.SHORTCUTS names
    "beta": (float, "sharpness of the gate"),
    "lambda_kd": (float, "weight of the distillation from the proxy"),
    "energy": (str, "what the gate looks at: auto, kl, entropy, margin, lse, feature, squared"),
}
PARTITION = ("alpha", "clients", "partition", "data", "target", "task", "clients_from")
STUDY = ("data", "out", "seeds", "rounds", "epochs", "device", "precision", "engine")
KINDS: dict[str, type] = {"int": int, "float": float}
PLACEHOLDERS = {"seeds": "LIST", "methods": "LIST", "data": "DIR", "out": "DIR", "target": "COLUMN"}


class Parser(argparse.ArgumentParser):
    """Raises what is wrong instead of printing the usage, and knows the nearest name to a mistyped one."""

    def __init__(self, **options: Any) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=layout, **options)

    def error(self, message: str) -> NoReturn:
        raise FedekdError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise unknown("command", str(value), action.choices)

    def refuse(self, rest: Sequence[str]) -> NoReturn:
        """For arguments that nothing has taken."""
        name = rest[0].partition("=")[0]
        if name.startswith("-"):
            options = [option for action in self._actions for option in action.option_strings]
            raise unknown("option", name, options)
        self.error(f"unexpected argument {name!r}")


def make_parser() -> Parser:
    top = Parser(prog="fedekd", description=ABOUT, epilog=EXAMPLES)
    top.add_argument("--version", action="version", version=f"fedekd {__version__}")
    top.set_defaults(act=None, parser=top)
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    every = [field.name for field in fields(Settings)]
    text = "train the methods and compare every client with training alone"
    run = _command(commands, "run", run_methods, text, every)
    gated = run.add_argument_group("gated methods")
    for name in SHORTCUTS:
        kind, text = GATED[name]
        _add(gated, name, kind, text)
    more = run.add_argument_group("more")
    more.add_argument(
        "--set", action="append", default=[], metavar="METHOD.PARAMETER=VALUE",
        help="a method's own parameter; may be repeated; `fedekd methods` lists them",
    )  # fmt: skip
    more.add_argument("--config", metavar="FILE", help="TOML file with the same settings; options given here win")
    more.add_argument("--show-clients", action="store_true", help="the table of clients for each of several seeds")
    more.add_argument("--quiet", action="store_true", help="no progress, only the results")

    study = _command(commands, "study", run_study, "run a grid of datasets, alphas, seeds and methods", STUDY)
    study.add_argument("study", metavar="NAME", help="`paper`, or a TOML file")
    study.add_argument("--only", default="", metavar="FILTER", help="such as dataset=cifar10,alpha=0.5,method=fedekd")
    study.add_argument("--dry-run", action="store_true", help="only count runs, samples and bytes")
    study.add_argument("--workers", type=int, metavar="N", help="processes on a CPU (default: as many as cores)")
    study.add_argument("--ray", metavar="ADDRESS", help="spread the runs over a Ray cluster (or: local)")

    table = _command(commands, "table", print_tables, "the paper's tables from a folder of results")
    table.add_argument("folder", metavar="DIR", help="where a study has left its results")
    table.add_argument("--format", default="markdown", choices=["markdown", "latex", "csv"], help="(default: markdown)")
    table.add_argument("--against", choices=["paper"], help="the paper's number beside each cell")
    table.add_argument("--only", default="", metavar="TABLE", help="one table by a part of its title")

    _command(commands, "methods", list_methods, "list the methods and their parameters")

    data = _command(commands, "data", None, "list, fetch and look at datasets")
    actions = data.add_subparsers(title="commands", metavar="COMMAND")
    _command(actions, "list", list_data, "what is here and what is not", ["data"])
    fetch = _command(actions, "fetch", fetch_data, "download a dataset and check it", ["data"])
    fetch.add_argument("name", metavar="NAME", help="as `fedekd data list` shows it")
    show = _command(actions, "show", show_data, "draw how the samples lie over the clients", PARTITION)
    show.add_argument("dataset", metavar="NAME", nargs="?", help="a dataset's name or a file (default: digits)")
    show.add_argument("--seed", type=int, default=0, metavar="N", help="of the partition (default: 0)")
    return top


def _command(commands: Any, name: str, act: Act | None, text: str, settings: Iterable[str] = ()) -> Parser:
    """A command with options for these fields of Settings, in their types, defaults and words."""
    parser: Parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(act=act, parser=parser)
    for field in fields(Settings):
        if field.name in settings and "help" in field.metadata:
            words, default = field.metadata["help"], field.default
            if isinstance(default, tuple):
                default = ",".join(map(str, default))
            if default is not None or field.name in PAPER:
                words += f" (default: {'as suits the dataset' if default is None else default})"
            _add(parser, field.name, KINDS.get(str(field.type).removesuffix(" | None"), str), words)
    return parser


def _add(parser: Any, name: str, kind: type, text: str) -> None:
    placeholder = PLACEHOLDERS.get(name, {int: "N", float: "X"}.get(kind, "NAME"))
    flag = "--" + name.replace("_", "-")
    parser.add_argument(flag, dest=name, type=kind, metavar=placeholder, help=text.replace("%", "%%"))


# What the commands do


def run_methods(given: argparse.Namespace) -> None:
    settings = make_settings(_merged(given))
    from fedekd.report.progress import watch

    try:
        with watch(not given.quiet) as observer:  # which is there while torch takes its seconds to import
            from fedekd.runs import execute

            result = execute(settings, observer)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command continues where it stopped") from None
    from fedekd.report.terminal import print_result

    print_result(_console(), result, settings.out, given.show_clients)


def _merged(given: argparse.Namespace) -> dict[str, Any]:
    """The file's settings under those of the command line, which also overrule the file's [parameters]."""
    file = read_toml(given.config) if given.config else {}
    names = {f.name for f in fields(Settings)} - {"parameters"} | set(SHORTCUTS)
    line = {name: value for name in names if (value := getattr(given, name)) is not None}
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


def run_study(given: argparse.Namespace) -> None:
    overrides = {name: getattr(given, name) for name in STUDY}
    from fedekd import studies

    study = studies.load_study(given.study, overrides, given.only)
    if given.dry_run:
        print(studies.describe(study).text())
        return
    try:
        outcome = studies.run_study(study, workers=given.workers, ray=given.ray)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command continues where it stopped") from None
    print(outcome.text())
    if outcome.failed:
        raise FedekdError(f"{len(outcome.failed)} runs failed, see failures.jsonl; the same command tries them again")


def print_tables(given: argparse.Namespace) -> None:
    from fedekd.report.paper_tables import make_tables
    from fedekd.report.table_formats import render, select
    from fedekd.results import load
    from fedekd.store import read_records

    records, failures = load(given.folder).records, read_records(Path(given.folder) / "failures.jsonl")
    tables = make_tables(records, failures, against_paper=given.against == "paper")
    print(render(select(tables, given.only) if given.only else tables, given.format))


def list_methods(given: argparse.Namespace) -> None:
    from fedekd import methods
    from fedekd.report.listing import print_methods

    print_methods(_console(), methods.known(), methods.GROUPS)


def list_data(given: argparse.Namespace) -> None:
    from fedekd.data import catalogue, data_folder
    from fedekd.report.listing import print_datasets

    print_datasets(_console(), catalogue(given.data), data_folder(given.data))


def fetch_data(given: argparse.Namespace) -> None:
    from fedekd.data import fetch

    print(f"{given.name} is in {fetch(given.name, given.data)}")


def show_data(given: argparse.Namespace) -> None:
    chosen = {name: getattr(given, name) for name in ("dataset", *PARTITION)}
    settings = make_settings({**chosen, "seeds": given.seed})
    from fedekd.data import federate, load_dataset
    from fedekd.report.partition import print_partition

    dataset = load_dataset(
        settings.dataset, data_dir=settings.data, target=settings.target,
        task=settings.task, clients_from=settings.clients_from,
    )  # fmt: skip
    federation = federate(
        dataset, clients=settings.clients, alpha=settings.alpha, seed=given.seed, partition=settings.partition
    )
    print_partition(_console(), federation)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


# How it ends


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 2 for what a user can mend, said in one line; 130 when interrupted. Bugs keep their traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # where there is no Δ, a ? will do
    try:
        try:
            return _answer(argv)
        finally:
            if sys.stdout:
                sys.stdout.flush()
    except FedekdError as error:
        return _complain(str(error))
    except KeyboardInterrupt as stop:
        print("; ".join(["interrupted", *map(str, stop.args)]), file=sys.stderr)
        return 130
    except BrokenPipeError:
        _abandon_output()
        return 1
    except OSError as error:
        _abandon_output()
        return _complain(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search("out of memory|allocate memory", str(error)):
            raise
        return _complain("out of memory; try a smaller --batch-size, fewer --clients or less data")


def _answer(argv: Sequence[str] | None) -> int:
    given, rest = make_parser().parse_known_args(argv)
    if rest:
        given.parser.refuse(rest)
    if given.act:
        given.act(given)
    else:
        given.parser.print_help()
    return 0


def _complain(text: str) -> int:
    print("fedekd:", " ".join(text.split()), file=sys.stderr)
    return 2


def _abandon_output() -> None:
    """Keep Python from trying, and failing, to write the rest when it exits."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
