"""What stands in front of Flower's SuperLink: other machines reach what sites need, in bounded size, and nothing else.

Flower serves its control API (register a site, submit code to all of them) and its runtime API (take a run's tasks)
on the port that the sites use, to anyone who can connect. Here those two answer this machine alone.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedekd.flower.protocol import PIECE

Scope = MutableMapping[str, Any]
Event = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/v1/fleet/", "/health")
REQUEST = 1 << 16  # bytes of a request that carries no part of a model
ANNOUNCED = 80  # bytes in which a message announces one of its parts
QUESTION = "/v1/fleet/pull-messages"
ACTIVATION, HEARTBEAT = "/v1/fleet/activate-node", "/v1/fleet/send-node-heartbeat"
KEY = b"flwr-public-key"  # the header that says whose request it is
KEPT = 1000  # keys that were turned away and are kept in mind: anybody can make more
NEWS = "/v1/runtime/push-"  # how the ServerApp hands in messages and what belongs to them
HOLD = 20.0  # seconds; Flower's sites wait 30 for an answer
LOOK = 0.1  # seconds between two looks whether anything was handed in


class AccessControl:
    """ASGI middleware that refuses strangers what is not theirs, and anyone what would fill the server."""

    def __init__(self, app: App, largest: int) -> None:
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


class OneMachine:
    """ASGI middleware that tells when two machines use one key: ``tell(key, where one is, where the other is)``.

    Flower turns the second away for as long as the first is there, and tells nobody. A site that was restarted is
    turned away as well, until its old connection counts as gone; but then nothing is heard of that one any more.
    """

    def __init__(self, app: App, tell: Callable[[bytes, str, str], None]) -> None:
        self.app, self.tell = app, tell
        self.refused: dict[bytes, str] = {}
        self.told: set[tuple[bytes, str]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path not in (ACTIVATION, HEARTBEAT):
            await self.app(scope, receive, send)
            return
        statuses = []

        async def watched(event: Event) -> None:
            statuses.extend([event["status"]] if "status" in event else [])
            await send(event)

        await self.app(scope, receive, watched)
        key, where = dict(scope["headers"]).get(KEY, b""), (scope.get("client") or ("an unknown address",))[0]
        if path == ACTIVATION and statuses == [412]:
            self.refused[key] = where
            if len(self.refused) > KEPT:
                del self.refused[next(iter(self.refused))]
        elif path == ACTIVATION:
            self.refused.pop(key, None)
        elif statuses == [200] and key in self.refused and (key, self.refused[key]) not in self.told:
            self.told.add((key, self.refused[key]))
            self.tell(key, where, self.refused[key])


class LongPoll:
    """ASGI middleware: a site that asks for a message when there is none is answered once there is one.

    Flower's sites ask again and again, and every question costs a kilobyte of headers; asking seldom would cost time
    instead. This waits in front of Flower's own handling, and only for so long that nobody in between takes the
    connection for dead.
    """

    def __init__(self, app: App) -> None:
        self.app, self.news = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == QUESTION:
            await self._hold(scope, receive, send)
            return
        await self.app(scope, receive, send)
        self.news += path.startswith(NEWS)

    async def _hold(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        gone = asyncio.ensure_future(receive())  # all that can come now is that the site hangs up
        until = asyncio.get_running_loop().time() + HOLD
        try:
            while True:
                known = self.news
                answer = await self._ask(scope, body, gone)
                if not _empty(answer) or not await self._news(known, gone, until):
                    break
            for event in answer if not gone.done() else []:
                await send(event)
        finally:
            gone.cancel()

    async def _ask(self, scope: Scope, body: bytes, gone: asyncio.Future[Any]) -> list[Event]:
        """What the app answers, asked anew: it finds the request as it came."""
        rest = [{"type": "http.request", "body": body}]
        answer: list[Event] = []

        async def receive() -> Any:
            return rest.pop() if rest else await asyncio.shield(gone)

        async def send(event: Event) -> None:
            answer.append(event)

        await self.app(dict(scope), receive, send)
        return answer

    async def _news(self, known: int, gone: asyncio.Future[Any], until: float) -> bool:
        """Wait until something was handed in: True. False if the site hung up, the time is over or the server ends."""
        while self.news == known:
            left = until - asyncio.get_running_loop().time()
            try:
                if left <= 0 or (await asyncio.wait({gone}, timeout=min(LOOK, left)))[0]:
                    return False
            except asyncio.CancelledError:
                return False  # with the empty answer, or the site would take the end for a fault
        return True


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    return body


def _empty(answer: list[Event]) -> bool:
    """Whether it is a good answer without any message: a protobuf of no bytes."""
    good = any(event.get("status") == 200 for event in answer)
    return good and not any(event.get("body") for event in answer)
