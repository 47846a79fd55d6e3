"""What a site and a server say to each other, read into bounded types before anything is done with it.

This is the one place where another machine's words are taken. What a site says that does not fit is left out and named
as that site's fault; what a server says that does not fit is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedekd.errors import FedekdError
from fedekd.flower.protocol import versions
from fedekd.flower.protocol.codes import Failed, StatusCode
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.protocol.terms import Terms, UnknownTerms
from fedekd.flower.protocol.wire import Packed, Payload
from fedekd.flower.settings import GUARANTEES, usable_name
from fedekd.settings import CHOICES
from fedekd.tasks import Classification, Regression
from fedekd.verdicts import STATES

METRICS = (Classification.metric, Regression.metric)
NUMBERS = ("local", "value", "delta", "low", "high", "gain")
BUDGET = ("epsilon", "delta", "clip")
LARGEST = 1e100  # of any number that a site tells
ROWS = 10**9  # that a site may say it has
SITES = 100_000  # in one federation: a site's number is below it
LONG = 10_000  # letters of a budget, or of the rounds that a site takes part in
MASKED, SEALED = 1000, 500  # sites that mask together, and bytes that one has for another
STAGES = ("keys", "shares", "confirm", "reveal")  # of masking, beside the upload itself
SHOWN = 60  # letters of what does not fit, in the log


# --- what a site says ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    code: StatusCode
    name: str
    """As the site calls itself; nothing where that is no name."""
    numbers: Mapping[str, Any]
    """What it shares for the report, and nothing else that it may have said: it ends in a file and on a screen."""
    models: Mapping[str, Packed]
    size: int
    faults: tuple[str, ...] = ()
    """What it said that does not fit, and was left out."""
    version: str = ""
    protocol: int = 1
    masking: Mapping[str, bytes] = field(default_factory=dict)
    """What it says of its masks, by the site that it is for or about."""

    @property
    def problem(self) -> str:
        """Why it does not count, where its code is not DONE."""
        return "; ".join([self.code.meaning, *self.faults])

    @classmethod
    def parse(cls, payload: Payload) -> Reply:
        words, faults = payload.words, list[str]()
        code = words.get("code")
        if type(code) is not int or code not in list(StatusCode):
            faults.append(f"code is {_shown(code)}")
            code = StatusCode.UNREADABLE
        numbers = {}
        for name, fits in FITTING.items():
            if name in words:
                if (value := fits(words[name])) is None:
                    faults.append(f"{name} is {_shown(words[name])}")
                else:
                    numbers[name] = value
        masking: Mapping[str, bytes] | None = {}
        if "masking" in words and (masking := _by_site(words["masking"])) is None:
            faults.append(f"masking is {_shown(words['masking'])}")
        said = words.get("name")
        return cls(
            StatusCode(code),
            usable_name(said) if isinstance(said, str) else "",
            numbers,
            payload.models,
            payload.size,
            tuple(faults),
            *versions.read(words),
            masking or {},
        )


def _number(value: Any, low: float = -LARGEST, high: float = LARGEST) -> float | None:
    """Compared before anything else is done: Python's whole numbers have no end, and NaN is in no range."""
    return float(value) if type(value) in (int, float) and low <= value <= high else None


def _by_site(text: Any) -> dict[str, bytes] | None:
    """Bytes for or about some sites, as `masking_text` writes them."""
    if type(text) is not str or len(text) > MASKED * (2 * SEALED + 100):
        return None
    try:
        given = json.loads(text)
        if type(given) is not dict or len(given) > MASKED or not all(map(usable_name, given)):
            return None
        found = {name: bytes.fromhex(content) for name, content in given.items()}
    except (ValueError, TypeError, RecursionError):
        return None
    return found if all(len(content) <= SEALED for content in found.values()) else None


def masking_text(given: Mapping[str, bytes]) -> str:
    return json.dumps({name: content.hex() for name, content in given.items()})


def _budget(text: Any) -> dict[str, Any] | None:
    if type(text) is not str or len(text) > LONG:
        return None
    try:
        given = json.loads(text)
        spent = {name: _number(given[name], 0) for name in BUDGET}
        guarantee = given["guarantee"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return None if None in spent.values() or guarantee not in GUARANTEES else {**spent, "guarantee": guarantee}


FITTING: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(NUMBERS, _number),
    "n": lambda value: value if type(value) is int and 1 <= value <= ROWS else None,
    "p": lambda value: _number(value, 0, 1),
    "metric": lambda value: value if value in METRICS else None,
    "state": lambda value: value if value in STATES else None,
    "chosen_by": lambda value: value if value in CHOICES["chosen_by"] else None,
    "privacy": _budget,
}
"""By word: what becomes of a value; None where it does not fit."""


# --- what a server says ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JoinRequest:
    federation: str
    terms: Terms
    schema: Schema
    layouts: str | None
    """What the server thinks that uploads look like, where they are no models."""
    name: str | None
    """Of the site's key, as the server has it."""

    @classmethod
    def parse(cls, payload: Payload) -> JoinRequest:
        words = _Words(payload)
        return cls(words.federation(), words.terms(), words.schema(), words.optional("layouts"), words.optional("name"))


@dataclass(frozen=True)
class VisitRequest:
    federation: str
    visit: int
    number: int
    """The site's, in the random streams."""
    rounds: frozenset[int] | None
    """Those that the site takes part in; None: all."""
    models: Mapping[str, Packed]
    attempt: str | None = None
    """At masking: the one that the upload is for; None: the visit has none."""
    sealed: Mapping[str, bytes] = field(default_factory=dict)
    """By the other sites that mask: their shares for this one."""

    @classmethod
    def parse(cls, payload: Payload) -> VisitRequest:
        words = _Words(payload)
        masking = (words.attempt(), words.by_site()) if "attempt" in payload.words else ()
        return cls(words.federation(), words.visit(), words.number(), words.rounds(), payload.models, *masking)


@dataclass(frozen=True)
class MaskingRequest:
    """A step of masking or unmasking, beside the visit that uploads."""

    federation: str
    visit: int
    attempt: str
    stage: str
    given: Mapping[str, bytes]
    """By site: its keys, nothing where it is only named, or its signature."""

    @classmethod
    def parse(cls, payload: Payload) -> MaskingRequest:
        words = _Words(payload)
        if (stage := words.text("stage")) not in STAGES:
            raise _refused(f"the server asks for {_shown(stage)} of masking, which there is not")
        return cls(words.federation(), words.visit(), words.attempt(), stage, words.by_site())


@dataclass(frozen=True)
class EndRequest:
    federation: str
    signed: Mapping[str, str]
    """The server's signed statement, part by part; nothing where it makes none."""

    @classmethod
    def parse(cls, payload: Payload) -> EndRequest:
        words = _Words(payload)
        parts = {name: words.optional(name) for name in ("statement", "signature", "certificate")}
        return cls(words.federation(), {name: part for name, part in parts.items() if part is not None})


class _Words:
    """Of a server, each asked for as what it must be; anything else is refused."""

    def __init__(self, payload: Payload) -> None:
        self.words = payload.words

    def federation(self) -> str:
        """It becomes the name of a folder."""
        name = self.words.get("federation")
        if not isinstance(name, str) or not re.fullmatch(r"[0-9a-f]{16}", name):
            raise _refused(f"the server calls its federation {_shown(name)}, which is no name for a folder")
        return name

    def visit(self) -> int:
        return self.whole("visit", 10 * SITES)

    def number(self) -> int:
        return self.whole("number", SITES)

    def attempt(self) -> str:
        attempt = self.text("attempt")
        if not re.fullmatch(r"[0-9a-f]{16}", attempt):
            raise _refused(f"the server's attempt is {_shown(attempt)}, not 16 hexadecimal digits")
        return attempt

    def by_site(self) -> dict[str, bytes]:
        found = _by_site(self.words.get("masking", "{}"))
        if found is None:
            raise _refused(f"the server's masking is {_shown(self.words['masking'])}, not bytes by site")
        return found

    def text(self, name: str) -> str:
        value = self.words.get(name)
        if not isinstance(value, str):
            raise _refused(f"the server's {name} is {_shown(value)}, no text")
        return value

    def terms(self) -> Terms:
        try:
            return Terms.parse(self.text("terms"))
        except UnknownTerms as error:
            version = versions.read(self.words)[0] or versions.UNTOLD
            raise Failed(StatusCode.VERSION, f"{error}; the server runs fedekd {version}") from None
        except FedekdError as error:
            raise _refused(str(error)) from None

    def schema(self) -> Schema:
        try:
            return Schema.parse(self.text("schema"), "the server's schema")
        except FedekdError as error:
            raise _refused(str(error)) from None

    def optional(self, name: str) -> str | None:
        return self.text(name) if name in self.words else None

    def whole(self, name: str, end: int) -> int:
        value = self.words.get(name)
        if type(value) is not int or not 0 <= value < end:
            raise _refused(f"the server's {name} is {_shown(value)}, not a whole number from 0 to {end - 1}")
        return value

    def rounds(self) -> frozenset[int] | None:
        if "rounds" not in self.words:
            return None
        text = self.text("rounds")
        if len(text) > LONG or not re.fullmatch(r"(\d{1,9}( \d{1,9})*)?", text, re.ASCII):
            raise _refused(f"the server's rounds are {_shown(text)}, not whole numbers")
        return frozenset(map(int, text.split()))


def _refused(text: str) -> Failed:
    return Failed(StatusCode.REFUSED, text)


def _shown(value: Any) -> str:
    if isinstance(value, (str, bytes)):
        value = value[:SHOWN]
    return repr(value)[:SHOWN]
