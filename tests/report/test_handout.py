"""One page for one site: what it says, for whom it cannot be made, and that it fits one sheet."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from test_page import NASTY, Outline, save

from fedekd.cli import main
from fedekd.errors import FedekdError
from fedekd.report import pdf
from fedekd.report.page import write_handout

OWN = {
    "name": "north", "method": "fedekd", "metric": "accuracy", "local": 0.8, "value": 0.9, "delta": 0.1,
    "n_train": 1200, "n_val": 400, "n_test": 400, "gain": 0.05, "chosen_by": "loss", "aggregation": "secure",
    "joined": {"label": "fedekd", "round": 9, "value": 0.9}, "alone": {"label": "local", "round": 7, "value": 0.85},
    "menu": [{"label": "local"}, {"label": "fedekd@alone"}],
    "verdict": {
        "state": "helped", "recommendation": "join", "reason": "with fedekd it is better", "low": 0.02, "high": 0.08,
    },
    "privacy": {"epsilon": 7.5, "delta": 1e-5, "guarantee": "the sent models, end to end"},
}  # fmt: skip
"""As a real site keeps it."""


@pytest.fixture
def folder(tmp_path, record):
    return save(tmp_path, [record(m, (0.05, -0.04, 0.0), rows=2000) for m in ("local", "fedekd", "fedavg")])


def said(folder, site):
    return " ".join(Outline(write_handout(folder, site).read_text(encoding="utf-8")).words)


def test_a_site_is_told_what_to_do_and_why(folder, capsys):
    assert main(["report", str(folder), "--site", "0"]) == 0
    path = folder / "site-0.html"
    assert capsys.readouterr().out.strip() == str(path)
    text = path.read_text(encoding="utf-8")
    words = " ".join(Outline(text).words)
    assert "Client 0 should join" in words
    assert "With fedekd its accuracy is 5.0 points better than alone (local), 95 % interval" in words
    assert "100 training, 20 validation and 2,000 test rows" in words
    assert "fedavg" in words
    assert "trained together with 2 other sites" in words
    assert "<svg" in text
    assert "<script" not in text
    assert "Client 1 should stay alone" in said(folder, "1")
    assert "clearly harmed" in said(folder, "1")


def test_few_rows_decide_nothing(tmp_path, record):
    folder = save(tmp_path, [record(m, (0.05, -0.04), rows=30) for m in ("local", "fedekd")])
    words = said(folder, "0")
    assert "Whether client 0 should join is not yet known" in words
    assert "points above alone (local), which may be chance: its 30 test rows can only show about" in words


def test_what_cannot_be_told_is_said_in_a_line(tmp_path, folder, record, capsys):
    assert main(["report", str(folder), "--site", "nobody"]) == 2
    assert "unknown site 'nobody'" in capsys.readouterr().err
    dealt = [record(m, rows=60, seed=seed) for m in ("local", "fedekd") for seed in range(2)]
    with pytest.raises(FedekdError, match="--split-seed 0"):
        write_handout(save(tmp_path / "dealt", dealt), "0")
    with pytest.raises(FedekdError, match="test rows that a verdict needs"):
        write_handout(save(tmp_path / "old", [record("local"), record("fedekd")]), "0")
    with pytest.raises(FedekdError, match="name methods with --methods"):
        write_handout(save(tmp_path / "alone", [record("local", rows=60)]), "0")


def test_no_name_becomes_markup(tmp_path, record):
    records = [record("local", rows=60), record("fedekd", rows=60, label=f"fedekd {NASTY}")]
    for one in records:
        one["clients"][0]["id"] = NASTY
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    text = write_handout(tmp_path, NASTY).read_text(encoding="utf-8")
    assert "<script" not in text


@pytest.mark.skipif(not any(map(shutil.which, pdf.BROWSERS)), reason="a PDF needs Chromium: apt-get install chromium")
def test_as_pdf_it_is_one_sheet(folder, tmp_path):
    path = tmp_path / "site.pdf"
    assert main(["report", str(folder), "--site", "0", "--out", str(path)]) == 0
    printed = path.read_bytes()
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1


def test_without_a_browser_there_is_no_pdf(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pdf.shutil, "which", lambda name: None)
    path = tmp_path / "site.pdf"
    assert main(["report", str(folder), "--site", "0", "--out", str(path)]) == 2
    assert "none of them is installed" in capsys.readouterr().err
    assert not path.exists()


def test_a_browser_that_fails_is_quoted(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pdf, "BROWSERS", ("false",))
    assert main(["report", str(folder), "--site", "0", "--out", str(tmp_path / "site.pdf")]) == 2
    assert "did not print the page" in capsys.readouterr().err


def real_site(folder, **changes):
    (folder / "state" / "0123456789abcdef").mkdir(parents=True)
    (folder / "site.toml").write_text(
        'name = "north"\nserver = "localhost:1"\nca = "c"\nkey = "k"\nstate = "state"\ndata = "digits"\n'
    )
    (folder / "state" / "0123456789abcdef" / "report.json").write_text(json.dumps({**OWN, **changes}))
    return folder


def test_a_real_site_has_such_a_page_of_its_own(tmp_path, capsys):
    folder, page = real_site(tmp_path / "north", group="mrn"), tmp_path / "north.html"
    assert main(["report", str(folder), "--out", str(page)]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    words = " ".join(Outline(page.read_text(encoding="utf-8")).words)
    for part in (
        "north should join With fedekd it is better.",
        "fedekd was trained together with other sites",
        "chosen on its validation rows by loss",
        "1,200 training, 400 validation and 400 test rows",
        "fedekd 85.0 90.0 +5.0 +2.0 to +8.0 clearly helped",
        "Federation 0123456789abcdef, report of ",
        "Test rows of one mrn count as one.",
        "Privacy of what left: epsilon 7.5 at delta 1e-05, for the sent models, end to end.",
        "The server saw only sums",
    ):
        assert part in words, words
    assert main(["report", str(folder)]) == 0
    assert "join: with fedekd it is better" in capsys.readouterr().out, "without --out it is printed"


def test_a_real_site_with_few_test_rows_has_no_interval(tmp_path):
    few = {"state": "undecided", "recommendation": "undecided", "reason": "few rows", "low": None, "high": None}
    folder, page = real_site(tmp_path / "north", verdict=few), tmp_path / "north.html"
    assert main(["report", str(folder), "--out", str(page)]) == 0
    assert "+5.0 n/a undecided" in " ".join(Outline(page.read_text(encoding="utf-8")).words)


def test_a_real_sites_page_has_its_other_metrics(tmp_path):
    scores = {
        "alone": {"accuracy": 0.85, "nll": 0.5, "auroc": None},
        "joined": {"accuracy": 0.9, "nll": 0.4, "auroc": 0.8},
    }
    folder, page = real_site(tmp_path / "north", scores=scores), tmp_path / "north.html"
    assert main(["report", str(folder), "--out", str(page)]) == 0
    words = " ".join(Outline(page.read_text(encoding="utf-8")).words)
    assert "The verdict is not about these. metric alone with the method AUROC in % n/a 80.0 NLL 0.5000 0.4000" in words


def test_of_a_real_federation_no_page_is_made_by_name(tmp_path, capsys):
    folder = real_site(tmp_path / "north")
    assert main(["report", str(folder), "--site", "north"]) == 2
    assert "made from its own folder: fedekd report DIR --out FILE" in capsys.readouterr().err


def test_a_real_sites_name_becomes_no_markup(tmp_path):
    folder, page = real_site(tmp_path / "north", name=NASTY, method=NASTY), tmp_path / "north.html"
    assert main(["report", str(folder), "--out", str(page)]) == 0
    assert "<script" not in page.read_text(encoding="utf-8")


def test_a_page_is_html_or_pdf(folder, tmp_path, capsys):
    assert main(["report", str(folder), "--out", str(tmp_path / "page.docx")]) == 2
    assert "name a file that ends in .html or .pdf" in capsys.readouterr().err
    assert not (tmp_path / "page.docx").exists()
