"""Differential privacy over real processes: what the report says is what the ledgers say, also after a kill -9."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")
pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'fedekd[dp]'")

from opacus.accountants import PRVAccountant

from fedekd.flower.supervise.processes import stop

EPSILON, DELTA = 30.0, 1e-3


def test_a_budget_is_spent_once_whatever_dies(town) -> None:
    """One of two sites is killed while it trains for the first time; it does the visit again, and pays for it once."""
    here = town(rounds=1, min_sites=2, batch_size=100)  # every row in each step: the noise is found at once
    dp = {"epsilon": EPSILON, "delta": DELTA, "clip": 1.0}
    here.site("north", dp={**dp, "teacher": "private"})
    here.site("south", "mortal:app", dp=dp, share=[])
    here.start("server", "north", "south")
    here.wait((here.folder / "south" / "state" / "tries").exists, 100, "first training")
    stop([here.child("south")])  # politely, or Flower would not let the site in again for twenty seconds
    here.start("south")
    report = here.finish(200)

    assert report["complete"]
    assert report["counted"] == [["north", "south"]] * 2
    tries = (here.folder / "south" / "state" / "tries").read_text().splitlines()
    assert len(tries) == 2, "it trained once before the kill and once after it"
    assert len(set(tries)) == 1, "with the same noise, to the same result"
    for name in ("north", "south"):
        told = report["privacy"][name]
        (ledger,) = (here.folder / name / "state").glob("*/spent.json")
        assert told == json.loads((ledger.parent / "report.json").read_text())["privacy"]
        kept = json.loads(ledger.read_text())
        ((rate, steps),) = kept["spent"].values()
        accountant = PRVAccountant()
        accountant.history = [(kept["noise"], rate, steps)]
        assert told["epsilon"] == pytest.approx(accountant.get_epsilon(DELTA))
        assert 0.9 * EPSILON < told["epsilon"] <= EPSILON
    assert report["privacy"]["south"]["guarantee"] == "the sent models, end to end"
    assert report["privacy"]["north"]["guarantee"] == "the sent models, for a fixed private model only"
    (south,) = (site for site in report["sites"] if site["name"] == "south")
    assert south == {"name": "south", "answered": True}, "it shares no numbers, yet tells its budget"
