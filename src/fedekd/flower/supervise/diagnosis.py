"""Why a SuperLink ended or a SuperNode has no connection, found among the lines that it left, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fedekd.flower.settings import ServerSettings, checked_address
from fedekd.flower.setup.init import AMBIENT
from fedekd.flower.supervise.processes import Child

FULL = 1 << 20  # bytes that are left on a disk on which Flower's database has no room
FULL_WORDS = ("disk full", "disk is full", "no space left", "quota exceeded")
SILENT = "the server does not answer"
NOT_LET_IN = (
    "the server does not let this site in: it does not have the site's public key, "
    "or still counts a connection that broke off a moment ago"
)
REASONS = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the server's certificate is not signed by this site's `ca`, has expired or names another host",
    ),
    ("Failed to activate SuperNode", NOT_LET_IN),
    (
        "Invalid SuperNode authentication|401 Unauthorized",
        "the server refuses this site's signature: this machine's clock is more than 5 s ahead of the server's or "
        "5 min behind it, or the server no longer knows the site's key (taken out, or a server with a new state)",
    ),
    (
        "address already in use",
        "another program uses the `port` of this site on this machine: stop it, or set another `port`",
    ),
    ("Unable to parse the private key", "`key` is not a private key"),
    ("WRONG_VERSION_NUMBER|record layer failure", "what answers at `server` does not speak TLS: check its port"),
    (r"Server error '5\d\d", "the server has a fault of its own, which its administrator finds in its log"),
)
SILENCES = (
    ("Name or service not known|No address associated", "its name is not known: check the host in `server`"),
    ("name resolution", "its name cannot be looked up: check this machine's name server"),
    ("refused", "connection refused: it is not started, or the port in `server` is another"),
    ("timed out", "timed out: its machine is off, or a firewall is between"),
    ("unreachable|No route", "this machine has no way to it through the network"),
)


def disk_full(text: str, server: ServerSettings, free: int) -> str | None:
    """That what failed with this text lacked room, and what to do. ``free``: bytes that are left for the state, since
    on a full disk the log itself breaks off. None: it was something else."""
    if free < FULL or any(words in text.lower() for words in FULL_WORDS):
        return f"disk full: there is no room for {server.state}; make room there, or set another `state`"
    return None


def why_superlink_ended(lines: Sequence[str], server: ServerSettings) -> str | None:
    """None: something else than what is known here."""
    text, port = "\n".join(lines).lower(), checked_address(server.address, "address")[1]
    if "address already in use" in text:
        return (
            f"another program uses port {port} of this machine: stop it, or set another port in `address`, here and "
            "at every site"
        )
    if "permission denied" in text and "to bind on" in text:
        return (
            f"this user may not open port {port}: below 1024 a service needs {AMBIENT}, as in the unit that "
            "`fedekd server init` writes for such a port; or set a port of 1024 or more in `address`, here and at "
            "every site"
        )
    if any(words in text for words in ("cannot assign requested address", "name or service not known")):
        return (
            f"`listen` is {server.listen}, which is no address of this machine: set one of its own, or 0.0.0.0 for all"
        )
    return None


def why_not_connected(text: str) -> str:
    """Why a SuperNode has no connection, from what it has logged since it had one; nothing if that does not tell."""
    text = re.split("Connection successful|SuperNode ID", text)[-1]
    if found := _first(REASONS, text):
        return found
    attempts = re.findall(r"Connection attempt failed(.*)", text)
    cause = _first(SILENCES, next((words for words in reversed(attempts) if words.startswith(":")), ""))
    return f"{SILENT} ({cause})" if cause else SILENT if attempts else ""


def why_supernode_ended(node: Child) -> str:
    """One line on why a SuperNode has ended, or does not connect, from its log."""
    text = log_of(node)
    if reason := why_not_connected(text):
        return reason
    if found := re.search(r"Exit Code: (\d+)\n(.*)", text):
        return f"the SuperNode ended with code {found[1]}: {found[2]}"
    return SILENT if node.code is None else f"the SuperNode ended with status {node.code}; see {node.log}"


def _first(meanings: Iterable[tuple[str, str]], text: str) -> str:
    return next((meaning for pattern, meaning in meanings if re.search(pattern, text)), "")


def log_of(node: Child) -> str:
    return "\n".join(node.lines())
