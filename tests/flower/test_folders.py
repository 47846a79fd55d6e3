"""Which of its federations a site's folder tells of, and in which order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedekd.cli import main
from fedekd.errors import FedekdError
from fedekd.flower.setup.folders import site_reports
from fedekd.runs.federation_report import read_report

OWN = {
    "name": "north",
    "method": "fedekd",
    "metric": "accuracy",
    "local": 0.7,
    "value": 0.8,
    "delta": 0.1,
    "n_train": 9,
}


def test_the_newest_federation_of_a_site_comes_last(tmp_path: Path) -> None:
    """Their names are random, so that their order tells nothing."""
    for age, name in enumerate(("aa", "cc", "bb")):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "report.json"
        file.write_text(json.dumps(OWN))
        os.utime(file, (1000.0 - age, 1000.0 - age))
    (tmp_path / "dd").mkdir()
    (tmp_path / "dd" / "report.json").write_text("{}")
    assert [path.parent.name for path in site_reports(tmp_path)] == ["bb", "cc", "aa"]


def test_a_state_of_another_user_is_not_said_to_be_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flower").mkdir()
    (tmp_path / "flower" / "supernode.log").touch()
    assert main(["report", str(tmp_path)]) == 2
    assert "is complete yet" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main(["report", str(tmp_path)]) == 2
    assert f"cannot read {tmp_path}: it is for its owner alone; run this as that user" in capsys.readouterr().err


def test_nobody_is_told_to_move_away_what_another_user_owns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(FedekdError, match=r"report\.json: it is for its owner alone; run this as that user$"):
        read_report(tmp_path)
