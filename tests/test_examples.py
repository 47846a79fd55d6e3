"""The examples run as they are, in a process of their own, and end in what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ENDS_IN = {
    "hospitals.py": r"(?s)university.*city.*county.*island.*fedavg: \d+ clearly harmed.*island\.safetensors",
    "mixed_models.py": r"(?s)large CNN .*linear model .*fml: Avg Δ [+-]\d+\.\d points, \d clearly harmed",
    "own_energy.py": r"(?s)fedekd  .*label-energy .*interval \[.*fedekd-permuted .*\d+ clearly harmed",
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == ENDS_IN.keys()


@pytest.mark.parametrize("name", ENDS_IN)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "results"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(ENDS_IN[name], done.stdout), done.stdout
    assert "Warning" not in done.stderr


def test_no_patient_is_lost_or_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import hospitals

    hospitals.write_tables(tmp_path)
    rows = {path.stem: path.read_text().splitlines()[1:] for path in tmp_path.glob("*.csv")}
    assert {name: len(lines) for name, lines in rows.items()} == hospitals.SIZES
    assert len(set().union(*rows.values())) == 569
