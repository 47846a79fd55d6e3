"""The examples run as they are, in a process or a kernel of their own, and end in what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STATES = r"\d+ of \d+ client\S* (clearly harmed|clearly helped|equivalent|undecided)"
ENDS_IN = {
    "hospitals.py": rf"(?s)university.*city.*county.*island.*fedavg: {STATES}.*island\.safetensors",
    "mixed_models.py": rf"(?s)large CNN .*linear model .*fml: Avg Δ [+-]\d+\.\d points, {STATES}",
    "own_energy.py": rf"(?s)fedekd  .*label-energy .*interval \[.*fedekd-permuted .*{STATES}",
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


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(EXAMPLES / "own_csv.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [str(output) for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    for hospital in ("north", "south", "west"):
        assert sum(hospital in text for text in shown) >= 2
    assert any(re.search(r"helped|harmed|equivalent|undecided", text) for text in shown)
    assert (tmp_path / "notebook-results" / "report.html").exists()
    assert "west" in (tmp_path / "west.card.md").read_text()
    assert "benign" in shown[-1]


def test_no_patient_is_lost_or_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import hospitals

    hospitals.write_tables(tmp_path)
    rows = {path.stem: path.read_text().splitlines()[1:] for path in tmp_path.glob("*.csv")}
    assert {name: len(lines) for name, lines in rows.items()} == hospitals.SIZES
    assert len(set().union(*rows.values())) == 569
