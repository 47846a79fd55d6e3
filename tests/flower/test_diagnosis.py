"""Lines as SuperLinks left them that did not start, each on a machine where it could not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from village import make_server

from fedekd.flower.supervise.diagnosis import why_superlink_ended

BIND = "ERROR [uvicorn.error] [Errno {}] error while attempting to bind on address ('127.0.0.1', 443): {}"
SHUT = "INFO [uvicorn.error] Application shutdown complete."


@pytest.mark.parametrize(
    ("lines", "free", "said"),
    [
        (
            [BIND.format(13, "permission denied"), SHUT],
            1 << 30,
            "may not open port 443: .*=CAP_NET_BIND",
        ),
        ([BIND.format(98, "address already in use"), SHUT], 1 << 30, r"another program uses port"),
        ([BIND.format(99, "cannot assign requested address"), SHUT], 1 << 30, "which is no address of this machine"),
        (["socket.gaierror: [Errno -2] Name or service not known"], 1 << 30, "which is no address of this machine"),
        (["sqlite3.OperationalError: database or disk is full", "  op.create"], 1 << 30, "is full: make room"),
        (["OSError: [Errno 28] No space left on device"], 1 << 30, "is full: make room"),
        (["  step.migration_fn(**kw)", "  F"], 0, "is full: make room"),
    ],
)
def test_what_stopped_it_is_found(tmp_path: Path, lines: list[str], free: int, said: str) -> None:
    found = why_superlink_ended(lines, replace(make_server(tmp_path), address="fed.example.org:443"), free)
    assert found
    assert re.search(said, found)


def test_nothing_is_made_up(tmp_path: Path) -> None:
    lines = ["PermissionError: [Errno 13] Permission denied: 'server.key'", SHUT]
    assert why_superlink_ended(lines, replace(make_server(tmp_path), address="fed.example.org:443"), 1 << 30) is None
