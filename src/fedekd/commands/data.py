"""fedekd data: list, fetch and look at datasets."""

from __future__ import annotations

import argparse
from typing import Any

from fedekd.commands.parser import command, console
from fedekd.settings import READING, make_settings

OWN = ("target", "task", "clients_from", "group", *READING)
PARTITION = ("alpha", "clients", "partition", "fraction", "data", *OWN, "public")


def add(commands: Any) -> None:
    data = command(commands, "data", None, "list, fetch and look at datasets")
    actions = data.add_subparsers(title="commands", metavar="COMMAND")
    command(actions, "list", list_data, "list the datasets, and say which are downloaded", ["data"])
    fetch = command(actions, "fetch", fetch_data, "download a dataset and check it", ["data"])
    fetch.add_argument("name", metavar="NAME", help="a name from `fedekd data list`")
    show = command(actions, "show", show_data, "show how the rows are dealt out to the clients", PARTITION)
    show.add_argument("dataset", metavar="NAME", nargs="?", help="a dataset's name or a file (default: digits)")
    show.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the split (default: 0)")
    look = command(
        actions, "inspect", inspect_data, "say what each column of your own file becomes", (*OWN, "subgroups")
    )
    look.add_argument("file", metavar="FILE", help="a table, an .npz file, or a folder of them")


def list_data(given: argparse.Namespace) -> None:
    from fedekd.data import catalogue, data_folder
    from fedekd.report.listing import print_datasets

    print_datasets(console(), catalogue(given.data), data_folder(given.data))


def fetch_data(given: argparse.Namespace) -> None:
    from fedekd.data import fetch

    print(f"{given.name} is in {fetch(given.name, given.data)}")


def show_data(given: argparse.Namespace) -> None:
    chosen = {name: getattr(given, name) for name in ("dataset", *PARTITION)}
    settings = make_settings({**chosen, "seeds": given.seed})
    from fedekd.data import federate, find_public, load_dataset
    from fedekd.dataset import Reading
    from fedekd.report.partition import print_partition

    dataset = load_dataset(
        settings.dataset,
        data_dir=settings.data,
        target=settings.target,
        task=settings.task,
        clients_from=settings.clients_from,
        group=settings.group,
        reading=Reading.of(settings),
    )
    public = find_public(settings.public, dataset, target=settings.target, clients_from=settings.clients_from)
    federation = federate(
        dataset,
        clients=settings.clients,
        alpha=settings.alpha,
        seed=given.seed,
        partition=settings.partition,
        public=public,
        fraction=settings.fraction,
    )
    print_partition(console(), federation)


def inspect_data(given: argparse.Namespace) -> None:
    from pathlib import Path

    settings = make_settings({"dataset": given.file, **{n: getattr(given, n) for n in (*OWN, "subgroups")}})
    from fedekd.data.columns import Roles
    from fedekd.data.inspection import inspect
    from fedekd.dataset import Reading
    from fedekd.report.inspection import print_inspection

    roles = Roles(settings.target, settings.clients_from, settings.group, settings.subgroups)
    found = inspect(Path(given.file).expanduser(), roles, Reading.of(settings), settings.task)
    print_inspection(console(), found)
