"""Lines as SuperLinks left them that did not start, each on a machine where it could not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from village import make_server

from fedekd.flower.supervise.diagnosis import disk_full, why_superlink_ended

BIND = "ERROR [uvicorn.error] [Errno {}] error while attempting to bind on address ('127.0.0.1', 443): {}"
SHUT = "INFO [uvicorn.error] Application shutdown complete."


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            [BIND.format(13, "permission denied"), SHUT],
            "may not open port 443: .*=CAP_NET_BIND",
        ),
        ([BIND.format(98, "address already in use"), SHUT], r"another program uses port"),
        ([BIND.format(99, "cannot assign requested address"), SHUT], "which is no address of this machine"),
        (["socket.gaierror: [Errno -2] Name or service not known"], "which is no address of this machine"),
    ],
)
def test_what_stopped_it_is_found(tmp_path: Path, lines: list[str], said: str) -> None:
    found = why_superlink_ended(lines, replace(make_server(tmp_path), address="fed.example.org:443"))
    assert found
    assert re.search(said, found)


def test_nothing_is_made_up(tmp_path: Path) -> None:
    lines = ["PermissionError: [Errno 13] Permission denied: 'server.key'", SHUT]
    assert why_superlink_ended(lines, replace(make_server(tmp_path), address="fed.example.org:443")) is None


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("sqlite3.OperationalError: database or disk is full\n  op.create", 1 << 30),
        ("OSError: [Errno 28] No space left on device", 1 << 30),
        ("ServerApp failed with exception: cannot write state.next: disk full; make room there", 1 << 30),
        ("  step.migration_fn(**kw)\n  F", 0),
    ],
)
def test_a_full_disk_is_told_in_words(tmp_path: Path, text: str, free: int) -> None:
    server = make_server(tmp_path)
    found = disk_full(text, server, free)
    assert found == f"disk full: there is no room for {server.state}; make room there, or set another `state`"
    assert disk_full("Connection refused", server, 1 << 30) is None
