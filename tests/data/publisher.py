"""A publisher's web server on this machine, and how to have fetch ask it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedekd.data import fetch, registry
from fedekd.data.published import Published, Remote
from fedekd.errors import FedekdError


class Publisher(ThreadingHTTPServer):
    """A web server that knows ranges, and misbehaves when told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {}
        self.asked: list[str | None] = []
        self.cuts: list[int] = []
        self.ranges = True
        self.status = 200

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is part of the tests."""

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}?download=1"


class Answer(BaseHTTPRequestHandler):
    server: Publisher

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        whole = self.server.files.get(self.path.strip("/").partition("?")[0])
        if whole is None or self.server.status != 200:
            self.send_error(404 if whole is None else self.server.status)
            return
        start = int(wanted[6:-1]) if wanted and self.server.ranges else 0
        if start >= len(whole):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(whole)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(whole) - start))
        self.end_headers()
        stop = start + self.server.cuts.pop(0) if self.server.cuts else len(whole)
        self.wfile.write(whole[start:stop])

    def log_message(self, *_: Any) -> None:
        pass


def offer(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    url: str,
    checksum: str | None,
    members: dict[str, str | None] | None = None,
) -> None:
    changed(monkeypatch, name, remotes=(Remote(url, checksum, members or {}),))


def changed(monkeypatch: pytest.MonkeyPatch, name: str, **facts: Any) -> Published:
    """A published dataset of which some facts are others for the length of a test."""
    before = registry.recipe(name)
    assert before.published is not None
    other = replace(before.published, **facts)
    recipe = replace(before, load=other.load, find=other.located, published=other)
    monkeypatch.setitem(registry._RECIPES, name, recipe)
    return other


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def fails(folder: Path, name: str, *words: str) -> None:
    with pytest.raises(FedekdError) as caught:
        fetch(name, folder, progress=False)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
