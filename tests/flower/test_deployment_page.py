"""The commands of docs/deployment.md that prepare server and sites, run as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
ROWS = "age,sex,outcome\n50,f,ill\n61,m,well\n42,f,ill\n70,m,well\n33,f,well\n"


def documented(start: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return next(shlex.split(line, comments=True) for line in lines if line.startswith(start))


def test_from_nothing_to_ready(tmp_path):
    (tmp_path / "patients.csv").write_text(ROWS)
    for start in ("fedekd server init", "fedekd site init", "fedekd site schema"):
        if "site init" in start:
            (tmp_path / "fed" / "certificates" / "ca.crt").rename(tmp_path / "ca.crt")
        command = [sys.executable, "-m", *documented(start)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "north" / "keys" / "north.pub").exists()
    assert (tmp_path / "fed" / "server.toml").exists()
    assert '"sex=f"' in (tmp_path / "schema.json").read_text()
    check = documented("fedekd site check")
    done = subprocess.run([sys.executable, "-m", *check], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "data         ok: all 5 rows fit schema.json" in done.stdout, done.stdout + done.stderr
    assert "model        ok: " in done.stdout
    assert done.returncode == 2, "there is no server yet"
