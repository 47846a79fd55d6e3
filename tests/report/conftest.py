"""The page of the paper's study, written once: it takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_page import PAPER

from fedekd.report.page import write_page


@pytest.fixture(scope="session")
def study_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(PAPER, tmp_path_factory.mktemp("study") / "study.html")
