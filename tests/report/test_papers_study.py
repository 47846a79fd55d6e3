"""The committed records of the paper's study as a page, as figures and as the documentation has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_page import PAPER, Outline, no_heading_skips_a_level, nothing_comes_from_outside, page_data

from fedekd.report import study_records
from fedekd.report.figures import write_figures
from fedekd.runs import findings as module
from fedekd.runs.findings import Finding, findings, headline, losses, not_known
from fedekd.runs.records import Record
from fedekd.runs.results import load
from fedekd.runs.transfer import MethodTransfer, analyse

HOME = PAPER.parents[1]


@pytest.fixture(scope="module", autouse=True)
def analysed() -> Iterator[dict[Any, list[MethodTransfer]]]:
    """What there was to analyse: that takes 15 seconds, and the same records from the same folder need it once."""
    known: dict[Any, list[MethodTransfer]] = {}

    def once(records: Sequence[Record], folder: Path) -> list[MethodTransfer]:
        same = Path(folder).resolve(), *((r["dataset"], r["alpha"], r["label"], r["seed"], r["key"]) for r in records)
        if same not in known:
            known[same] = analyse(records, folder)
        return known[same]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_records, "analyse", once)
        patch.setattr(module, "analyse", once)
        yield known


@pytest.fixture(scope="module")
def own(analysed) -> list[Finding]:
    return [one for one in findings(load(PAPER).records, folder=PAPER) if one.label == "fedekd"]


@pytest.fixture(scope="module")
def text(analysed, request) -> str:
    file = request.getfixturevalue("study_page")  # only now, or it would be made before ``analysed``
    return file.read_text(encoding="utf-8")


def test_the_page_is_sound(text):
    no_heading_skips_a_level(text)
    nothing_comes_from_outside(text)


def test_the_study_stands_on_an_axis_of_deltas(text):
    dots = page_data(text)["charts"]["dots-0"]
    mean, low, high = (dots["fields"].index(name) for name in ("mean", "low", "high"))
    for rows in dots["rows"].values():
        assert [row[mean] for row in rows] == sorted((row[mean] for row in rows), reverse=True)
        assert any(row[dots["fields"].index("paper")] is not None for row in rows)
        assert all(row[low] <= row[mean] <= row[high] for row in rows if row[low] is not None)


def test_a_study_has_the_papers_figures_and_tables(text, own):
    found, words = page_data(text), " ".join(Outline(text).words)
    assert {"heat-classification", "grid-regression", "dots-0", "agreement", "agreement-cells"} <= set(found["charts"])
    assert {"sweep-classification-fedekd-beta", "sweep-classification-fedekd-lambda_kd"} <= set(found["charts"])
    assert set(found["choices"]) == {"method", "alpha", "quantity"}
    assert "FedeKD minus each method" in words
    first = words[: words.index("Where does it help? All methods")]
    assert headline(own) in first
    assert losses(own) in first
    assert not re.search(r"\d runs", first)
    assert all(one.sentence() in words for one in own)
    assert "no runs of OCTMNIST here: its file was not available" in words
    beta = found["charts"]["sweep-classification-fedekd-beta"]
    values = {row[beta["fields"].index("value")] for row in beta["rows"][""]}
    assert values == {"0.25", "0.5", "1", "2", "4", "8"}


def test_the_documentation_says_what_the_records_say(own):
    text = (HOME / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert text.index(headline(own)) < text.index("\n## ")
    for one in own:
        assert one.sentence() in text
    for note in not_known(own):
        assert note[1:] in text


def test_a_study_gives_the_papers_figures(tmp_path):
    names = {path.stem for path in write_figures(PAPER, "svg", tmp_path)}
    assert {"results-cifar10-0.1", "results-retinamnist-0.3", "heat-classification", "grid-regression"} <= names
    assert {"sweep-classification-fedekd-beta", "sweep-classification-fedekd-lambda_kd"} <= names
    assert "agreement-Avg_classification" in names


def test_the_page_and_the_findings_are_of_the_same_records(text, own, analysed):
    assert len(analysed) == 1
