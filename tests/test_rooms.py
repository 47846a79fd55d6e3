"""Rooms import what lies below them, and the picture in the documentation shows the rooms as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FILE = Path(__file__).parents[1] / "tools" / "rooms.py"
SPEC = importlib.util.spec_from_file_location("rooms", FILE)
rooms = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(rooms)


def test_dependencies_point_one_way():
    assert rooms.wrong() == []


def test_every_room_has_a_place():
    there = {path.stem for path in rooms.SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - {"__init__"} == set(rooms.places())


def test_the_page_names_every_room():
    page = (rooms.HOME / "docs" / "architecture.md").read_text()
    rest = {room for room in rooms.places() if f"`{room}`" not in page and f"`{room}/`" not in page}
    assert rest == {"__main__"}


def test_a_step_up_is_seen(monkeypatch):
    """The first test could not fail if nothing were read."""
    up = rooms.Import("fedekd.runs.store", "fedekd.report.page", 1)
    monkeypatch.setattr(rooms, "imports", lambda: [up])
    assert rooms.wrong() == ["fedekd.runs.store:1 imports fedekd.report.page: runs does not stand above report"]


def test_what_is_read():
    found = {(one.source, one.target) for one in rooms.imports()}
    assert ("fedekd.methods.fedekd", "fedekd.gate") in found, "from fedekd import gate"
    assert ("fedekd.engines.serial", "fedekd.exchange") in found


def test_the_picture_is_of_today():
    assert rooms.PICTURE.read_text() == rooms.draw(), "run python tools/rooms.py --draw"
