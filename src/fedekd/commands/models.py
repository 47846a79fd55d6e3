"""fedekd models: list the models that --private and --proxy may name."""

from __future__ import annotations

import argparse
from typing import Any

from fedekd.commands.parser import command, console


def add(commands: Any) -> None:
    command(commands, "models", list_models, "list the models that --private and --proxy may name")


def list_models(given: argparse.Namespace) -> None:
    from fedekd.report.listing import print_models

    print_models(console())
