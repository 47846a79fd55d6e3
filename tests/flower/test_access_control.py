from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from fedekd.flower.protocol import PIECE
from fedekd.flower.server.middleware import AccessControl, from_here

OTHER, HERE = ("10.0.0.9", 5), ("10.0.0.1", 8000)


def answer(path: str, client: tuple[str, int] | None, *, kind: str = "http", **headers: str) -> int:
    """The status that a request gets; 200 is the app's behind the gate."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    async def receive() -> None:
        raise AssertionError

    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "path": path, "client": client, "server": HERE, "headers": given}
    asyncio.run(AccessControl(app, largest=10 * PIECE)(scope, receive, send))
    return sent[0]["status"] if sent else 0


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/v1/fleet", "/"])
def test_other_machines_are_refused(path: str) -> None:
    assert answer(path, OTHER) == 403
    assert answer(path, None) == 403
    assert answer(path, ("not an address", 1)) == 403
    assert answer(path, OTHER, kind="websocket") == 0  # not even answered


@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/health"])
def test_what_sites_need_is_open(path: str) -> None:
    assert answer(path, OTHER) == 200


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ("/v1/fleet/push-object", PIECE + 10_000, PIECE + 100_000),
        ("/v1/fleet/push-messages", 2000, 4000),
        ("/v1/fleet/pull-messages", 1000, 100_000),
    ],
)
def test_what_a_site_sends_is_bounded(path: str, good: int, bad: int) -> None:
    for client in (OTHER, ("127.0.0.1", 5)):
        assert answer(path, client, content_length=str(good)) == 200
        assert answer(path, client, content_length=str(bad)) == 413
        assert answer(path, client, transfer_encoding="chunked") == 411


def test_this_machine_is_let_through() -> None:
    assert answer("/v1/control/start-run", ("127.0.0.1", 5)) == 200
    assert answer("/v1/control/start-run", ("::1", 5)) == 200
    assert from_here({"client": ("10.0.0.1", 5), "server": HERE})


def own_address() -> str:
    """An address of this machine that is not loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def test_a_real_superlink_refuses_a_stranger_its_control(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")
    stranger = own_address()
    if not stranger or stranger.startswith("127."):
        pytest.skip("this machine has no address besides loopback to pose as a stranger with")
    from bare_superlink import bare_superlink

    from fedekd.flower.supervise.processes import stop

    link, ca, port = bare_superlink(tmp_path, "0.0.0.0")

    def ask(method: str, path: str, source: str) -> int:
        context = ssl.create_default_context(cafile=str(ca))
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=10, context=context, source_address=(source, 0)
        )
        try:
            connection.request(method, path, headers={"X-Forwarded-For": "127.0.0.1"})  # which nobody believes
            return connection.getresponse().status
        finally:
            connection.close()

    try:
        end = time.monotonic() + 60
        while True:
            try:
                assert ask("HEAD", "/health", stranger) == 200
                break
            except OSError:
                assert time.monotonic() < end, link.lines()
                assert link.code is None, link.lines()
                time.sleep(0.2)
        for path in ("/v1/control/list-nodes", "/v1/runtime/acquire-task", "/docs"):
            assert ask("POST", path, stranger) == 403
            assert ask("POST", path, "127.0.0.1") != 403
        assert ask("POST", "/v1/fleet/pull-messages", stranger) != 403
    finally:
        stop([link])
