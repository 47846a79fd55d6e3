"""Secure aggregation as real processes on loopback, through Flower."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from fedekd.flower.site.audit import read_audit

SITES = ("north", "south", "west")


def test_a_federation_whose_server_sees_only_sums(town) -> None:
    here = town(aggregation="secure", rounds=1, epochs=1, give_up=3000.0)
    peers = here.folder / "peers"
    peers.mkdir()
    for name in SITES:
        here.site(name, peers=str(peers), alone="plain")
    for key in (here.folder / "server" / "nodes").glob("*.pub"):
        shutil.copy(key, peers)
    here.start("server", *SITES)
    report = here.finish(240)
    assert report["counted"] == [list(SITES)] * 2
    here.equals_the_simulation(report, *SITES)
    asked = [one for one in read_audit(here.folder / "north" / "state") if "asked" in one]
    stages = [one["asked"].get("stage", one["event"]) for one in asked]
    assert stages[0] == "join"
    assert stages[-7:] == ["keys", "shares", "visit", "confirm", "reveal", "visit", "end"], (
        "on a slow machine not at once"
    )
