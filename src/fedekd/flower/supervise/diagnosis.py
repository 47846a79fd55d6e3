"""Why a SuperLink ends, found among the lines that it leaves, with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from fedekd.flower.settings import ServerSettings, checked_address

FULL = 1 << 20  # bytes that are left on a disk on which Flower's database has no room
FULL_WORDS = ("disk is full", "no space left", "quota exceeded")
AMBIENT = "AmbientCapabilities=CAP_NET_BIND_SERVICE"  # what a service needs for a port below 1024


def cause(lines: Sequence[str], server: ServerSettings, free: int) -> str | None:
    """``free``: bytes that are left for the state; on a full disk the log itself breaks off. None: something else."""
    text, port = "\n".join(lines).lower(), checked_address(server.address, "address")[1]
    if free < FULL or any(words in text for words in FULL_WORDS):
        return f"the disk of {server.state} is full: make room there, or set another `state`"
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
