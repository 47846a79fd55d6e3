"""Two runs side by side: what differs, and for whom it is clear."""

from __future__ import annotations

import pytest
from test_page import NASTY, Outline, save

from fedekd.cli import main
from fedekd.errors import FedekdError
from fedekd.report.page import write_difference


def folders(tmp_path, record, seeds=1, **changes):
    one = [record(m, (0.05, 0.0, 0.02), rows=2000, seed=s) for s in range(seeds) for m in ("local", "fedekd")]
    two = [record(m, (-0.05, 0.0, 0.021), rows=2000, seed=s) for s in range(seeds) for m in ("local", "fedekd")]
    for run in two:
        run["params"] = {**run["params"], "epochs": 5}
        run |= changes
    return save(tmp_path / "a", one), save(tmp_path / "b", two)


def said(*folders):
    return " ".join(Outline(write_difference(*folders).read_text(encoding="utf-8")).words)


@pytest.fixture(autouse=True)
def homes(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()


def test_what_differs_and_for_whom(tmp_path, record, capsys):
    one, two = folders(tmp_path, record)
    assert main(["report", str(one), str(two)]) == 0
    path = one / "difference.html"
    assert capsys.readouterr().out.strip() == str(path)
    words = " ".join(Outline(path.read_text(encoding="utf-8")).words)
    assert "1 setting differs." in words
    assert "epochs 2 5" in words
    assert "b minus a" in words
    assert "fedekd 0 0 95.0 85.0 −10.0" in words
    assert "clearly worse" in words
    assert words.count("equivalent") >= 4, "Local, and clients of which nothing changed"
    assert "On 1 seed both have the same clients and test rows" in words


def test_means_over_seeds_have_an_interval(tmp_path, record):
    words = said(*folders(tmp_path, record, seeds=3))
    assert "90.5 87.2 −3.3 −3.3 to −3.3" in words
    assert "Mean accuracy, b minus a, in points: local 0.0 (0.0 to 0.0); fedekd −3.3 (−3.3 to −3.3)." in words
    assert "On 3 seeds both have the same clients and test rows" in words


def test_other_rows_are_not_compared_client_by_client(tmp_path, record):
    words = said(
        *folders(
            tmp_path, record, partition={"kind": "iid", "alpha": None, "clients": 3, "seed": 0, "fingerprint": "ff"}
        )
    )
    assert "only means can be compared" in words
    assert "Client by client" not in words


def test_what_cannot_be_compared(tmp_path, record):
    one = save(tmp_path / "a", [record("local"), record("fedekd")])
    errors = save(tmp_path / "b", [record("local", metric="rmse"), record("fedekd", metric="rmse")])
    with pytest.raises(FedekdError, match="one run is in accuracy and the other in rmse"):
        write_difference(one, errors)
    both = save(tmp_path / "b", [record("local"), record("fedekd", metric="rmse")])
    with pytest.raises(FedekdError, match="holds several datasets or splits; a comparison needs"):
        write_difference(one, both)
    assert main(["report", str(one), str(one), "--site", "0"]) == 2


def test_a_hostile_name_stays_text(tmp_path, record):
    records = [record(m, rows=50) for m in ("local", "fedekd")]
    for one in records:
        one["clients"][0]["id"] = NASTY
    text = write_difference(save(tmp_path / "a", records), save(tmp_path / "b", records)).read_text(encoding="utf-8")
    assert NASTY not in text
    assert "0 settings differ." in " ".join(Outline(text).words)
