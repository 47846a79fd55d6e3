"""In a real Jupyter kernel: one output that changes, and a result that is a table."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedekd.report.progress import in_notebook
from fedekd.runs.results import RunResults

CODE = """
import torch
torch.set_num_threads(1)
import fedekd
from tiny import tiny_private, tiny_proxy
fedekd.run("digits", out="out", rounds=8, epochs=1, clients=3, alpha=0.5, methods="fedavg",
           private=tiny_private, proxy=tiny_proxy, models="none")
"""


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("nbclient", "ipykernel"))), reason="pip install nbclient ipykernel"
)
def test_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE)])
    updates: list[str] = []

    class Client(NotebookClient):
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            updates.append(msg["msg_type"])
            return super().process_message(msg, cell, cell_index)

    Client(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown, result = notebook.cells[0].outputs
    assert shown.output_type == "display_data"
    assert "2 runs trained" in shown.data["text/html"]
    assert shown.data["text/plain"].count("mean accuracy") == 1
    assert shown.data["text/plain"].count("Avg Δ") == 1
    assert 3 <= updates.count("update_display_data") < 2 * 8 * 3, "it changes, though not with every client"
    assert result.output_type == "execute_result"
    assert result.data["text/html"].startswith("<table>")
    assert 'scope="col"' in result.data["text/html"]


def test_not_in_a_notebook() -> None:
    assert not in_notebook()


def test_a_result_as_html(result: Callable[..., RunResults]) -> None:
    html = RunResults(result(methods=3, seeds=2).records)._repr_html_()
    assert html.count("<tr>") == 1 + 4
    assert "95 % interval" in html
    assert "digits, alpha 0.1, 6 clients, 2 seeds" in html


def test_names_are_text_and_never_markup(record: Callable[..., dict[str, Any]]) -> None:
    records = [{**each, "dataset": "<b>d"} for each in (record("local"), record(label="<script>x"))]
    html = RunResults(records)._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;x" in html
    assert "&lt;b&gt;d" in html


def test_results_of_several_kinds_have_a_table_each(result: Callable[..., RunResults]) -> None:
    both = RunResults(result().records + result(metric="rmse").records)
    assert both._repr_html_().count("<table>") == 2
    assert RunResults([])._repr_html_() == "no results"
