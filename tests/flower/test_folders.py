"""Which of its federations a site's folder tells of, and in which order."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fedekd.flower.setup.folders import site_reports

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
