from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedekd.errors import FedekdError
from fedekd.report.federation import print_report
from fedekd.runs.federation_report import FederationReport, read_report

REPORT = {
    "method": "fedekd", "complete": True, "rounds": 3, "bytes_up": 1_234_000, "bytes_down": 999, "seconds": 41.6,
    "sites": [
        {"name": "north", "n": 600, "metric": "accuracy", "local": 0.9, "value": 0.925, "delta": 0.025},
        {"name": "south", "delta": -0.01},
        {"name": "west"},
    ],
}  # fmt: skip


def test_a_report_is_a_table_of_what_sites_share(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({**REPORT, "later": "keys are ignored"}))
    out = io.StringIO()
    report = read_report(tmp_path)
    assert report
    print_report(Console(file=out, width=100), report)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "accuracy in %; Δ: with the federation minus alone, in points" in lines
    assert "north 600 90.0 92.5 +2.5" in lines
    assert "south kept kept kept −1.0" in lines
    assert "west kept kept kept kept" in lines
    said = "0 clearly harmed, 0 clearly helped, 2 undecided, of the 2 sites that share their Δ"
    assert said in lines
    assert "3 rounds of fedekd, 1.2 MB up, 999 B down, 42 s" in lines


def test_a_larger_error_is_harm_and_a_spent_budget_is_told(tmp_path: Path) -> None:
    sites = [{"name": "north", "metric": "rmse", "delta": 2.5}, {"name": "south", "metric": "rmse", "delta": -1.0}]
    spent = {"north": {"epsilon": 7.99, "delta": 1e-5, "clip": 1.0, "guarantee": "the sent models, end to end"}}
    (tmp_path / "report.json").write_text(json.dumps({**REPORT, "sites": sites, "privacy": spent}))
    report, out = read_report(tmp_path), io.StringIO()
    assert report
    print_report(Console(file=out, width=100), report)
    assert "0 clearly harmed, 0 clearly helped, 2 undecided, of the 2 sites that share their Δ" in out.getvalue()
    assert "RMSE; Δ: with the federation minus alone\n" in out.getvalue()
    assert "+2.500" in out.getvalue()
    assert "north: epsilon 7.99 at delta 1e-05, for the sent models, end to end" in out.getvalue()


@pytest.mark.parametrize(
    ("metric", "delta", "low", "high", "surely"),
    [
        ("accuracy", -0.1, -0.2, -0.01, 1), ("accuracy", -0.1, -0.2, 0.01, 0),
        ("rmse", 0.1, 0.01, 0.2, 1), ("rmse", 0.1, -0.01, 0.2, 0),
    ],
)  # fmt: skip
def test_harm_beyond_chance(metric: str, delta: float, low: float, high: float, surely: int) -> None:
    site = {"name": "north", "metric": metric, "delta": delta, "low": low, "high": high}
    report = FederationReport("fedekd", True, sites=[site, {"name": "south", "metric": metric, "delta": delta}])
    assert (report.surely_harmed, report.surely_helped) == (surely, 0)
    mirrored = {**site, "delta": -delta, "low": -high, "high": -low}
    report = FederationReport("fedekd", True, sites=[mirrored])
    assert (report.surely_harmed, report.surely_helped) == (0, surely)


def test_harm_beyond_chance_is_over_all_sites() -> None:
    """Of twenty sites that nothing happened to, one has an interval that leaves out zero."""
    usual = {"metric": "accuracy", "delta": -0.1, "low": -0.2, "high": -0.01}
    sites = [{"name": "north", **usual}, *({**usual, "name": f"{k}", "high": 0.01} for k in range(19))]
    report = FederationReport("fedekd", True, sites=sites)
    assert (report.surely_harmed, report.surely_helped) == (0, 0)
    sites[0] |= {"low": -0.3, "high": -0.09}  # 3.6 standard errors
    assert FederationReport("fedekd", True, sites=sites).surely_harmed == 1


def test_verdicts_are_over_all_sites_that_share_one(tmp_path: Path) -> None:
    """Each site judges itself; together, a p-value of .03 among three is not clear any more."""
    told = [("helped", 0.001), ("harmed", 0.03), ("equivalent", 0.7), ("undecided", 0.3), ("wonderful", 0.0)]
    sites = [{"name": name, "state": name, "gain": 0.02, "p": p} for name, p in told]
    (tmp_path / "report.json").write_text(json.dumps({**REPORT, "sites": [*sites, {"name": "west"}]}))
    report, out = read_report(tmp_path), io.StringIO()
    assert report
    states = {"helped": "helped", "harmed": "undecided", "equivalent": "equivalent", "undecided": "undecided"}
    assert report.states == states
    print_report(Console(file=out, width=100), report)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    said = "4 sites share a verdict: 1 clearly helped, 1 equivalent, 2 undecided"
    assert said in lines
    assert "helped kept kept kept kept clearly helped" in lines
    assert "west kept kept kept kept kept" in lines
    assert not any("their Δ" in line for line in lines)


def test_no_report_and_a_broken_one(tmp_path: Path) -> None:
    assert read_report(tmp_path) is None
    for content in ("{", "[]", '{"rounds": 3}'):
        (tmp_path / "report.json").write_text(content)
        with pytest.raises(FedekdError, match=r"cannot read .*report\.json"):
            read_report(tmp_path)
