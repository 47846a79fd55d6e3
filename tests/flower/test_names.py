"""Whose name it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from village import Hand, federate, make_server, schema_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.flower.protocol.wire import Payload


def test_a_name_belongs_to_its_key(tmp_path, digits, caplog):
    """A site that was asked first answers as another: it is turned away, and the other one is not."""
    schema, sites = schema_of(digits), write_sites(tmp_path, digits)
    thief = replace(sites[2], name="birch", state=sites[2].state.with_name("thief"))
    post = Hand(sites[:2])
    post.sites = {999: thief, **post.sites}
    post.keys = {999: "elder"}

    def answering(name, kind, reply):
        return Payload({"code": 0, "name": "birch"}) if kind == "join" and reply.words["code"] else reply

    post.spoil = answering
    _, report = federate(make_server(tmp_path, rounds=1, epochs=1), schema, sites[:2], post)
    assert [site["name"] for site in report["sites"]] == ["alder", "birch"]
    assert all(site["answered"] for site in report["sites"])
    assert (
        "turned away: the site with the key elder.pub calls itself 'birch'; its name is that of its key" in caplog.text
    )
    assert "the server has this site's key as 'elder', and here `name` is 'birch'" in caplog.text, (
        "the site is told too"
    )
    assert not list(thief.state.glob("*/agreement.json"))
