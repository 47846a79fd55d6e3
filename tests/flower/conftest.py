"""A town to run a federation in, stopped at the end of the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from town import Town

HERE = Path(__file__).parent


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits) -> Iterator[Callable[..., Town]]:
    paths = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    from town import Town

    made: list[Town] = []

    def make(**settings) -> Town:
        made.append(Town(tmp_path, digits, **settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()
        assert one.processes() == []
