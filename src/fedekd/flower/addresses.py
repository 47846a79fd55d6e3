"""Addresses and names as administrators write them."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from fedekd.errors import FedekdError


def checked_address(text: str, what: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[IPv6]:port``."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not re.fullmatch(r"[A-Za-z0-9.:_-]+", host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise FedekdError(f"{what} must look like fed.example.org:8000, got {text!r}")
    return host, int(port)


def checked_name(name: str, where: Path | str) -> str:
    """A site's name, which is also a file's name."""
    if not usable_name(name):
        raise FedekdError(f"{where}: a site's name has letters, digits, . _ - and at most 63 of them, got {name!r}")
    return name


def usable_name(name: str) -> str:
    """The name, or nothing where it is not one."""
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name) else ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
