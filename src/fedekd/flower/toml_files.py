"""A TOML file as a frozen dataclass, whose every field says what stands above its key and what its value may be."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import Any, TypeVar

from fedekd.errors import FedekdError, unknown
from fedekd.settings import read_toml

T = TypeVar("T")


def entry(
    text: str,
    default: Any = MISSING,
    *,
    choices: Sequence[str] = (),
    low: float | None = None,
    example: Any = None,
    table: type | None = None,
) -> Any:
    """A field with the comment that stands above it in the file. ``low`` is the least number allowed; ``example``
    is shown, commented out, where the key is left out; ``table`` is the dataclass of a TOML table."""
    options = {"text": text, "choices": tuple(choices), "low": low, "example": example, "table": table}
    if default == {}:
        return field(default_factory=dict, metadata=options)
    return field(metadata=options) if default is MISSING else field(default=default, metadata=options)


def read(cls: type[T], path: str | Path, others: Mapping[str, type]) -> T:
    """The file's content, checked; paths in it are taken from the file's own folder.

    ``others``: whose settings may be given by mistake.
    """
    path = Path(path).expanduser().absolute()
    if path.is_dir():
        inside = [file for file in ("site.toml", "server.toml") if (path / file).is_file()]
        raise FedekdError(f"{path} is a folder; name the file in it{f': {path / inside[0]}' if inside else ''}")
    content = read_toml(path)
    for whose, other in others.items():
        if _required(other) <= content.keys():
            raise FedekdError(f"{path} holds the settings of a {whose}, for `fedekd {whose}`; name the other file here")
    return _filled(cls, content, path, "")


def _required(cls: type) -> set[str]:
    return {f.name for f in fields(cls) if f.metadata and f.default is MISSING and f.default_factory is MISSING}


def _filled(cls: type[T], content: Mapping[str, Any], path: Path, table: str) -> T:
    known = {f.name: f for f in fields(cls) if f.metadata}  # type: ignore[arg-type]
    for name in content:
        if name not in known:
            raise unknown(f"key in {path}", f"{table}{name}", [f"{table}{name}" for name in known])
    values = {}
    for name, f in known.items():
        if name in content:
            values[name] = _value(f, content[name], path, f"{table}{name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise FedekdError(f"{path}: {table}{name} is missing; it is: {f.metadata['text']}")
    return cls(**values)


def _value(f: dataclasses.Field, given: Any, path: Path, name: str) -> Any:
    kind = str(f.type).removesuffix(" | None")
    if f.metadata["table"] is not None:
        if not isinstance(given, Mapping):
            raise FedekdError(f"{path}: {name} must be a table [{name}], got {given!r}")
        return _filled(f.metadata["table"], given, path, f"{name}.")
    number = isinstance(given, (int, float)) and not isinstance(given, bool) and math.isfinite(given)
    fits, wanted = {
        "str": (isinstance(given, str) and given != "", "a text in quotes"),
        "Path": (isinstance(given, str) and given != "", "a path in quotes"),
        "int": (number and isinstance(given, int), "a whole number"),
        "float": (number, "a number"),
        "tuple[str, ...]": (_texts(given), "a list of texts such as [\"a\", \"b\"]"),
        "Mapping[str, Any]": (isinstance(given, Mapping), f"a table [{name}]"),
    }[kind]  # fmt: skip
    if not fits:
        raise FedekdError(f"{path}: {name} must be {wanted}, got {given!r}; it is: {f.metadata['text']}")
    low, choices = f.metadata["low"], f.metadata["choices"]
    if low is not None and given < low:
        raise FedekdError(f"{path}: {name} must be at least {low:g}, got {given!r}")
    for one in [given] if isinstance(given, str) else given if kind.startswith("tuple") else []:
        if choices and one not in choices:
            raise FedekdError(f"{path}: {unknown(name, one, choices)}")
    if kind == "Path":
        return Path(os.path.normpath(path.parent / Path(given).expanduser()))
    return float(given) if kind == "float" else tuple(given) if kind.startswith("tuple") else given


def _texts(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(one, str) for one in given)


def toml_text(cls: type, title: str, values: Mapping[str, Any]) -> str:
    """The file with every key of ``cls``: those in ``values``, else the defaults, else commented out."""
    lines = [f"# {title}"]
    tables: list[str] = []
    for f in fields(cls):
        if not f.metadata:
            continue
        value = values.get(f.name, None if f.default is MISSING else f.default)
        table = f.metadata["table"] is not None or str(f.type).startswith("Mapping")
        (tables if table else lines).extend(["", f"# {f.metadata['text']}", *_lines(f, value, table)])
    content = "\n".join([*lines, *tables]) + "\n"
    tomllib.loads(content)
    return content


def _lines(f: dataclasses.Field, value: Any, table: bool) -> list[str]:
    shown = value if value is not None else f.metadata["example"]
    off = "" if value is not None else "# "
    if table:
        return [f"{off}[{f.name}]", *(f"{off}{name} = {toml_value(one)}" for name, one in (shown or {}).items())]
    return [f"{off}{f.name} = {toml_value('' if shown is None else shown)}"]


def toml_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
