from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fedekd.errors import FedekdError
from fedekd.flower.supervise.processes import Child, sole_owner


def test_two_supervisors_do_not_share_a_state(tmp_path: Path) -> None:
    with (
        sole_owner(tmp_path / "state"),
        pytest.raises(FedekdError, match="in use by another process; stop that one first"),
        sole_owner(tmp_path / "state"),
    ):
        pass
    with sole_owner(tmp_path / "state"):
        pass


def test_what_is_written_meanwhile_is_for_the_owner(tmp_path: Path) -> None:
    """Also in a folder that someone made for all to see, and by the processes that are started."""
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        with sole_owner(state):
            (state / "ours").touch()
            child = Child("child", [sys.executable, "-c", f"open({str(state / 'its')!r}, 'w')"], state / "log")
            child.process.wait()
        assert os.umask(0o022) == 0o022, "and afterwards all is as it was"
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in state.iterdir()} == dict.fromkeys(
        (".lock", "ours", "its", "log"), 0o600
    )


def test_lines_have_no_colours(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of an earlier process\n")
    child = Child("child", [sys.executable, "-c", r"print('\x1b[92mINFO \x1b[0m: ended')"], tmp_path / "log")
    child.process.wait()
    assert child.lines() == ["INFO : ended"]
