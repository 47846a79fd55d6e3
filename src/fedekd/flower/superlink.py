"""Flower's SuperLink with a gate in front: other machines reach what sites need, and nothing else.

Flower serves its control API (register a site, submit code to all of them) and its runtime API (take a run's tasks)
on the port that the sites use, to anyone who can connect. Here those two answer this machine alone.

    python -m fedekd.flower.superlink ARGUMENTS OF flower-superlink
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
OPEN = ("/v1/fleet/", "/health")


class Gate:
    """ASGI middleware that refuses strangers what is not theirs."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"].startswith(OPEN) or from_here(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})


def from_here(scope: Scope) -> bool:
    """Whether the other end of the connection is this machine: a loopback address, or the very one it connects to."""
    client, server = scope.get("client"), scope.get("server")
    if not client or not server:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    return address.is_loopback or client[0] == server[0]


def main() -> None:
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    others = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(Gate), *others())
    flower_superlink()


if __name__ == "__main__":
    main()
