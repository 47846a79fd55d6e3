from __future__ import annotations

from types import SimpleNamespace

from order import FIRST, HERE, slow_first


def test_the_files_that_begin_first_are_there():
    assert [name for name in FIRST if not (HERE / name).is_file()] == []
    assert len(set(FIRST)) == len(FIRST)


def test_slow_files_begin_first_and_nothing_else_moves():
    names = ["data/test_own.py", FIRST[1], "test_cli.py", FIRST[0], "data/test_own.py", FIRST[1]]
    items = [SimpleNamespace(path=HERE / name, name=str(k)) for k, name in enumerate(names)]
    assert [item.name for item in slow_first(items)] == ["3", "1", "5", "0", "2", "4"]
