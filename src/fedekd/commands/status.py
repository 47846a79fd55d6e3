"""fedekd server status and fedekd site status: printed once, or served for Prometheus and a browser."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedekd.commands.parser import command
from fedekd.errors import FedekdError

if TYPE_CHECKING:
    from fedekd.runs.federation_status import ServerState, SiteState

    Read = Callable[[], ServerState | SiteState]

HERE = "127.0.0.1"


def add_status(actions: Any, act: Callable[[argparse.Namespace], None], whose: str, text: str) -> None:
    status = command(actions, "status", act, text)
    status.add_argument("file", metavar=f"{whose.upper()}.toml", help=f"as `fedekd {whose} init` made it")
    status.add_argument("--json", action="store_true", help="everything, as JSON")
    status.add_argument("--prometheus", action="store_true", help="as metrics in Prometheus' text format")
    status.add_argument(
        "--serve", metavar="[HOST:]PORT",
        help="serve /metrics, /status.json and the page at / until interrupted (default host: this machine only)",
    )  # fmt: skip


def show(given: argparse.Namespace, read: Read, page: Callable[[], str]) -> None:
    """``page``: what a browser gets."""
    from fedekd.report.monitoring import lines, metrics

    if sum(map(bool, (given.json, given.prometheus, given.serve))) > 1:
        raise FedekdError("choose one of --json, --prometheus and --serve")
    status = read()
    if given.serve:
        serve(given.serve, read, page)
    elif given.prometheus:
        print(metrics(status), end="")
    else:
        print(json.dumps(status, indent=1) if given.json else "\n".join(lines(status)))


def serve(where: str, read: Read, page: Callable[[], str], ready: Callable[[int], None] | None = None) -> None:
    """Answer until interrupted; ``ready`` is told the port."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from fedekd.flower.settings import checked_address
    from fedekd.report.monitoring import metrics

    host, port = checked_address(where if ":" in where else f"{HERE}:{where}", "--serve")
    pages: dict[str, tuple[str, Callable[[], str]]] = {
        "/": ("text/html; charset=utf-8", page),
        "/metrics": ("text/plain; version=0.0.4; charset=utf-8", lambda: metrics(read())),
        "/status.json": ("application/json", lambda: json.dumps(read(), indent=1) + "\n"),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, make = pages.get(self.path.partition("?")[0], ("text/plain; charset=utf-8", None))
            try:
                code, text = (200, make()) if make else (404, "there are /, /metrics and /status.json\n")
            except FedekdError as error:
                code, kind, text = 503, "text/plain; charset=utf-8", f"{error}\n"
            content = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise FedekdError(f"cannot serve at {host}:{port}: {error.strerror}; name another port with --serve") from None
    with server:
        print(f"serving / /metrics /status.json at http://{host}:{server.server_address[1]}", flush=True)
        if ready:
            ready(server.server_address[1])
        server.serve_forever()
