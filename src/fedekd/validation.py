"""Whether a value read from JSON has the shape that a type says: TypedDicts, lists, dicts, literals, numbers, text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Finite = Annotated[float, "finite"]
"""A number that is neither infinite nor NaN; a plain ``float`` may be either."""
T = TypeVar("T")
Some = Annotated[list[T], "some"]
"""A list that is not empty."""

LARGEST = 2**63
Check = Callable[[Any], None]


def is_number(value: Any) -> TypeGuard[float]:
    """Whole or not, of Python or numpy's float64; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Invalid(ValueError):
    """What is wrong, and where inside the value."""

    def __init__(self, why: str, *path: str | int) -> None:
        self.why, self.path = why, path

    def at(self, place: str | int) -> Invalid:
        return Invalid(self.why, place, *self.path)

    def __str__(self) -> str:
        """As ``clients[2].delta is missing``."""
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path).removeprefix(".")
        return f"{path or 'it'} {self.why}"


def parse_json(text: bytes) -> Any:
    """Raises ValueError for what is not JSON, or holds halves of characters, which cannot be written out again."""
    try:
        value = json.loads(text)
        if b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return value


@cache
def validator(kind: Any) -> Check:
    """A function that raises ``Invalid`` for what is not of this type. Keys beyond a TypedDict's may be any."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    if is_typeddict(kind):
        return _fields(kind)
    if origin is NotRequired:
        return validator(args[0])
    if origin is Annotated:
        return _some(validator(args[0])) if args[1] == "some" else SCALARS[kind]
    if origin is list:
        return _items(validator(args[0]))
    if origin in (dict, Mapping):
        return _values(validator(args[1]))
    if origin is Literal:
        return _one_of(args)
    if origin in (Union, UnionType):
        return _any_of([validator(arg) for arg in args])
    raise TypeError(f"no values of type {kind} can be checked")


def _wrong(value: Any, wanted: str) -> Invalid:
    kinds = {dict: "an object", list: "a list", NoneType: "null", bool: "true or false", str: "text", int: "a number"}
    shown = repr(value) if isinstance(value, (int, float)) else kinds.get(type(value), "something else")
    return Invalid(f"must be {wanted}, and is {shown}")


def _text(value: Any) -> None:
    if type(value) is not str:
        raise _wrong(value, "text")


def _whole(value: Any) -> None:
    if type(value) is not int or not -LARGEST < value < LARGEST:
        raise _wrong(value, "a whole number")


def _number(value: Any) -> None:
    if type(value) is not float and (type(value) is not int or not -LARGEST < value < LARGEST):
        raise _wrong(value, "a number")


def _finite(value: Any) -> None:
    _number(value)
    if not math.isfinite(value):
        raise _wrong(value, "a finite number")


def _truth(value: Any) -> None:
    if type(value) is not bool:
        raise _wrong(value, "true or false")


def _nothing(value: Any) -> None:
    if value is not None:
        raise _wrong(value, "null")


def _anything(value: Any) -> None:
    pass


SCALARS: dict[Any, Check] = {
    str: _text,
    int: _whole,
    float: _number,
    Finite: _finite,
    bool: _truth,
    NoneType: _nothing,
    Any: _anything,
}


def _fields(kind: Any) -> Check:
    hints = get_type_hints(kind, include_extras=True)
    # where annotations are strings, __required_keys__ does not know of NotRequired
    optional = {name for name in hints if name in kind.__optional_keys__ or get_origin(hints[name]) is NotRequired}
    needed = [(name, validator(hint)) for name, hint in hints.items() if name not in optional]
    other = [(name, validator(hint)) for name, hint in hints.items() if name in optional]

    def check(value: Any) -> None:
        if type(value) is not dict:
            raise _wrong(value, "an object")
        for name, test in needed:
            try:
                test(value[name])
            except KeyError:
                raise Invalid("is missing", name) from None
            except Invalid as wrong:
                raise wrong.at(name) from None
        for name, test in other:
            if name in value:
                try:
                    test(value[name])
                except Invalid as wrong:
                    raise wrong.at(name) from None

    return check


def _items(test: Check) -> Check:
    def check(value: Any) -> None:
        if type(value) is not list:
            raise _wrong(value, "a list")
        for place, item in enumerate(value):
            try:
                test(item)
            except Invalid as wrong:
                raise wrong.at(place) from None

    return check


def _some(test: Check) -> Check:
    def check(value: Any) -> None:
        test(value)
        if not value:
            raise Invalid("is empty")

    return check


def _values(test: Check) -> Check:
    def check(value: Any) -> None:
        if type(value) is not dict:
            raise _wrong(value, "an object")
        for name, item in value.items():
            try:
                test(item)
            except Invalid as wrong:
                raise wrong.at(name) from None

    return check


def _one_of(values: tuple[Any, ...]) -> Check:
    wanted = " or ".join(map(str, values))

    def check(value: Any) -> None:
        if not any(type(value) is type(one) and value == one for one in values):
            raise Invalid(f"must be {wanted}, and is {value!r:.40}")

    return check


def _any_of(tests: list[Check]) -> Check:
    """The first that is named tells what is wrong."""

    def check(value: Any) -> None:
        try:
            tests[0](value)
        except Invalid:
            for test in tests[1:]:
                with suppress(Invalid):
                    return test(value)
            raise

    return check
