"""The same command twice at the same time: each run stands in the folder once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fedekd.runs.store import read_records


def test_two_runs_into_one_folder_write_no_line_twice(tmp_path: Path) -> None:
    given = ["--rounds", "2", "--epochs", "1", "--methods", "fedavg", "--clients", "2"]
    command = [sys.executable, "-m", "fedekd", "run", *given, "--out", str(tmp_path), "--models", "none", "--quiet"]
    both = [subprocess.Popen([*command, "--no-report"], stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [one.wait(timeout=120) for one in both] == [0, 0]
    keys = [record["key"] for record in read_records(tmp_path / "results.jsonl")]
    assert len(keys) == len(set(keys)) == 2
