from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from fedekd.data import published

from .publisher import Publisher, changed


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], published.Published]:
    """A published dataset whose whole train split is said to have only so many images."""

    def shrink(name: str, rows: int) -> published.Published:
        return changed(monkeypatch, name, train=(rows,))

    return shrink


@pytest.fixture(autouse=True)
def no_settings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests do not see the tester's own data folder, save those that are about it."""
    if "real" not in request.fixturenames:
        monkeypatch.delenv("FEDEKD_DATA", raising=False)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    server = Publisher()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
