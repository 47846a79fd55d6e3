"""What MkDocs does besides: pages made from the program and the records, and formulas without a script.

- commands.md is made from the parser of the command line, so it cannot be out of date.
- paper-tables.md is results/paper/tables.md, and changelog.md is CHANGELOG.md.
- TeX becomes MathML, which browsers draw by themselves.
"""

from __future__ import annotations

import argparse
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

from fedekd.cli import ABOUT, make_parser

HOME = Path(__file__).resolve().parents[1]
FORMULA = re.compile(r'<(div|span) class="arithmatex">\s*\\([\[(])(.*?)\\[\])]\s*</\1>', re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "commands.md", content=command_reference()))
    for name, source in (("paper-tables.md", "results/paper/tables.md"), ("changelog.md", "CHANGELOG.md")):
        files.append(File.generated(config, name, content=(HOME / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """On a disk the tables lie beside docs/, on the site among its pages."""
    return markdown.replace("(../results/paper/tables.md)", "(paper-tables.md)")


def on_page_content(content: str, **_: Any) -> str:
    return FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    tex = html.unescape(found[3]).strip()
    return f'<div class="formula">{convert(tex, display="block")}</div>' if found[2] == "[" else convert(tex)


# The command reference


def command_reference() -> str:
    """Markdown for every command with its arguments, from the parser itself."""
    parts = ["# Commands", f"{ABOUT} `fedekd COMMAND --help` says the same as this page."]
    for parser in _commands(make_parser()):
        parts += [f"## {parser.prog}", parser.description or "", *_arguments(parser)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands that do something, those below others included."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                if sub.get_default("act"):
                    yield sub
                yield from _commands(sub)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    for group in parser._action_groups:
        rows = [_row(action) for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if rows:
            named = group.title not in ("positional arguments", "options", "commands")
            heading = [f"**{(group.title or '').capitalize()}**"] if named else []
            kind = "argument" if group.title == "positional arguments" else "option"
            yield "\n\n".join([*heading, "\n".join([f"| {kind} | |", "| --- | --- |", *rows])])


def _row(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    value = action.metavar or "|".join(map(str, action.choices or ()))
    shown = f"{names} {value}" if names and action.nargs != 0 else names or value
    text = (action.help or "").replace("%%", "%") + (" (required)" if action.required and names else "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (f"`{shown}`", text)) + " |"
