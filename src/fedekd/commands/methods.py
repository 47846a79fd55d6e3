"""fedekd methods: list the methods, and what they exchange with given models and data."""

from __future__ import annotations

import argparse
from typing import Any

from fedekd.commands.parser import command, console
from fedekd.settings import make_settings

SETTINGS = ("dataset", "data", "target", "task", "clients_from", "public", "private", "proxy")


def add(commands: Any) -> None:
    text = "list the methods and their parameters; for a dataset or models, also what they exchange"
    command(commands, "methods", list_methods, text, SETTINGS)


def list_methods(given: argparse.Namespace) -> None:
    from fedekd import methods
    from fedekd.report.listing import print_costs, print_methods

    chosen = {name: value for name in SETTINGS if (value := getattr(given, name)) is not None}
    if not chosen:
        print_methods(console(), methods.known(), methods.groups())
        return
    settings = make_settings(chosen)
    from fedekd.runs.costs import costs

    found = costs(settings)
    print_methods(console(), methods.known(), methods.groups())
    print_costs(console(), found)
