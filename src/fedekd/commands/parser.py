"""What every command's options are made of."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn

from fedekd.errors import FedekdError, unknown
from fedekd.settings import CHOICES, DEFAULT_PRESET, Settings

if TYPE_CHECKING:
    from rich.console import Console

Act = Callable[[argparse.Namespace], None]
KINDS: dict[str, type] = {"int": int, "float": float}
PLACEHOLDERS = {
    "seeds": "LIST",
    "methods": "LIST",
    "data": "DIR",
    "out": "DIR",
    "target": "COLUMN",
    "public": "X|FILE",
    "clients_from": "COLUMN",
    "group": "COLUMN",
    "subgroups": "COLUMN",
    "drop": "COLUMNS",
    "na_values": "TEXTS",
    "decimal": "MARK",
}


class Parser(argparse.ArgumentParser):
    """Raises what is wrong instead of printing the usage, and knows the nearest name to a mistyped one."""

    def __init__(self, **options: Any) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=layout, **options)

    def error(self, message: str) -> NoReturn:
        raise FedekdError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise unknown(action.option_strings[-1] if action.option_strings else "command", str(value), action.choices)

    def refuse(self, rest: Sequence[str]) -> NoReturn:
        """For arguments that nothing has taken."""
        name = rest[0].partition("=")[0]
        if name.startswith("-"):
            options = [option for action in self._actions for option in action.option_strings]
            raise unknown("option", name, options)
        self.error(f"unexpected argument {name!r}")


def command(commands: Any, name: str, act: Act | None, text: str, settings: Iterable[str] = ()) -> Parser:
    """A command with options for these fields of Settings, in their types, defaults and words."""
    parser: Parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(act=act, parser=parser)
    add_settings(parser, settings)
    return parser


def add_settings(parser: Any, settings: Iterable[str], otherwise: str = "") -> None:
    """``otherwise``: what holds where an option is not given, if not the setting's own default."""
    for field in fields(Settings):
        if field.name in settings and "help" in field.metadata:
            words, default = field.metadata["help"], field.default
            if isinstance(default, tuple):
                default = ",".join(map(str, default))
            if field.type == "bool":
                add_switch(parser, field.name, words)
                continue
            if default is not None or field.name in DEFAULT_PRESET:
                words += f" (default: {otherwise or ('as suits the dataset' if default is None else default)})"
            add_setting(parser, field.name, KINDS.get(str(field.type).removesuffix(" | None"), str), words)


def add_setting(parser: Any, name: str, kind: type, text: str) -> None:
    placeholder = PLACEHOLDERS.get(name, {int: "N", float: "X"}.get(kind, "NAME"))
    flag = "--" + name.replace("_", "-")
    parser.add_argument(flag, dest=name, type=kind, metavar=placeholder, help=text.replace("%", "%%"))


def add_choices(parser: Any) -> None:
    """What validation rows choose, for what is made of records that are there."""
    best = "add a line for each method with several configurations: each client gets what its validation rows choose"
    parser.add_argument("--best-of", action="store_true", help=best)
    add_chosen_by(parser, ", and with --best-of a configuration", ", or of the method's defaults,")


def add_chosen_by(parser: Any, also: str = "", or_that: str = "") -> None:
    text = f"how validation rows choose the best a client can do alone{also}: by the metric, or by the loss, unless "
    text += f"that of plain Local{or_that} is within one standard error of the lowest (default: as in the last run or "
    text += "study in DIR)"
    parser.add_argument("--chosen-by", choices=CHOICES["chosen_by"], help=text)


def add_switch(parser: Any, name: str, text: str) -> None:
    """None where it is not given, as with every setting: a file may say otherwise."""
    parser.add_argument("--" + name.replace("_", "-"), dest=name, action="store_true", default=None, help=text)


def console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)
