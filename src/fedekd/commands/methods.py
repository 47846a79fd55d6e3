"""fedekd methods: list the methods and their parameters."""

from __future__ import annotations

import argparse
from typing import Any

from fedekd.commands.parser import command, console


def add(commands: Any) -> None:
    command(commands, "methods", list_methods, "list the methods and their parameters")


def list_methods(given: argparse.Namespace) -> None:
    from fedekd import methods
    from fedekd.report.listing import print_methods

    print_methods(console(), methods.known(), methods.GROUPS)
