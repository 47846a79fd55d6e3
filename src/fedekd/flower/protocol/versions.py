"""Servers and sites of different versions of fedekd: they work together, or it is said which one must be updated.

What is added to a message or to the terms is left out where it says nothing new (``Terms.text``), and what is not known
is not looked at; so most versions understand each other. ``PROTOCOL`` goes up with a change that an older version would
misread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedekd import __version__

PROTOCOL = 1
OLDEST = 1  # that this version still understands
UNTOLD = "an early version"  # before versions were told


def own() -> dict[str, str | int]:
    """As words of a message."""
    return {"fedekd": __version__, "protocol": PROTOCOL}


def read(words: Mapping[str, Any]) -> tuple[str, int]:
    """Version and protocol of the other end; nothing and 1 where it does not tell, or tells nonsense."""
    version, protocol = words.get("fedekd"), words.get("protocol")
    told = isinstance(version, str) and re.fullmatch(r"[0-9A-Za-z.+-]{1,40}", version)
    return str(version) if told else "", protocol if type(protocol) is int and 0 < protocol < 10**6 else 1


def server_problem(words: Mapping[str, Any]) -> str | None:
    """At a site: why it and the server that says these words cannot work together; None if they can."""
    version, protocol = read(words)
    if OLDEST <= protocol <= PROTOCOL:
        return None
    which = "update fedekd at this site" if protocol > PROTOCOL else "the server must update its fedekd"
    return f"the server runs fedekd {version or UNTOLD} and this site {__version__}: {which}"


def site_problem(name: str, version: str, protocol: int) -> str:
    """At the server, of a site that cannot work with it."""
    which = "update fedekd at this server" if protocol > PROTOCOL else f"{name} must update its fedekd"
    return f"{name} runs fedekd {version or UNTOLD} and this server {__version__}: {which}"
