"""Flower's SuperLink with a gate in front: other machines reach what sites need, in bounded size, and nothing else.

Flower serves its control API (register a site, submit code to all of them) and its runtime API (take a run's tasks)
on the port that the sites use, to anyone who can connect. Here those two answer this machine alone.

    python -m fedekd.flower.supervise.superlink ARGUMENTS OF flower-superlink
"""

from __future__ import annotations

import importlib
import ipaddress
import os
from functools import partial
from types import SimpleNamespace
from typing import Any

from fedekd.flower.supervise.long_poll import App, LongPoll, Receive, Scope, Send

OPEN = ("/v1/fleet/", "/health")
LARGEST = "FEDEKD_LARGEST"  # environment variable: bytes that one message of a site may have
DEFAULT = 1_000_000_000
PIECE = 4 << 20  # bytes of a model in one request, which is held in memory whole
REQUEST = 1 << 16  # bytes of a request that carries no part of a model
ANNOUNCED = 80  # bytes in which a message announces one of its parts


class AccessControl:
    """ASGI middleware that refuses strangers what is not theirs, and anyone what would fill the server."""

    def __init__(self, app: App, largest: int = DEFAULT) -> None:
        parts = -(-largest // PIECE)
        self.app = app
        self.limits = {"/v1/fleet/push-object": PIECE + REQUEST, "/v1/fleet/push-messages": 2048 + ANNOUNCED * parts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0 if scope["type"] == "lifespan" else self._refusal(scope)
        if not status:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

    def _refusal(self, scope: Scope) -> int:
        """The status with which a request is refused; 0 lets it in."""
        path = scope["path"]
        if not (path.startswith(OPEN) or from_here(scope)):
            return 403
        if path.startswith("/v1/fleet/"):
            headers = dict(scope["headers"])
            if b"transfer-encoding" in headers:
                return 411
            if int(headers.get(b"content-length", b"0")) > self.limits.get(path, REQUEST):
                return 413
        return 0


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
    import uvicorn
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    cli: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    gate, others = Middleware(AccessControl, int(os.environ.get(LARGEST, DEFAULT))), extensions.get_middleware
    extensions.get_middleware = lambda: (gate, Middleware(LongPoll), *others())
    # A site that waits for a message must not hold up the SuperLink's end.
    cli.uvicorn = SimpleNamespace(run=partial(uvicorn.run, timeout_graceful_shutdown=1))
    cli.flower_superlink()


if __name__ == "__main__":
    main()
