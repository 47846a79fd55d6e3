"""Servers and sites of different versions work together, or both logs say in a line which must be updated."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from village import Hand, federate, make_server, schema_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd import __version__
from fedekd.flower.protocol import versions
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.server.conversation import TooFew
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.server.watched import WatchedTransport
from fedekd.flower.site.pins import Pins


class Changed(Hand):
    """Cedar hears the server's join with other words."""

    def __init__(self, sites, change) -> None:
        super().__init__(sites)
        self.change = change

    def send(self, node, kind, payload) -> None:
        if kind == "join" and self.sites[node].name == "cedar":
            payload = Payload(self.change(dict(payload.words)), payload.models)
        super().send(node, kind, payload)


def without(*names):
    return lambda words: {name: word for name, word in words.items() if name not in names}


def test_an_older_server_and_an_older_site_are_understood(tmp_path, digits):
    """Neither tells its version, and the server's terms lack what came later."""
    sites = write_sites(tmp_path, digits, alone="plain")
    post = Changed(sites, without("fedekd", "protocol"))
    post.spoil = lambda name, kind, reply: (
        replace(reply, words=without("fedekd", "protocol")(reply.words)) if name == "birch" else reply
    )
    server = make_server(tmp_path, epochs=1, rounds=1)
    watched = WatchedTransport(post, server.state)
    rounds = Rounds(server, schema_of(digits), watched, 3)
    with watched.following(rounds):
        report = rounds.run()
    assert all(site["answered"] for site in report["sites"])
    assert {name: one["version"] for name, one in watched.sites.items()} == {
        "alder": __version__, "birch": "", "cedar": __version__,
    }  # fmt: skip


def newer_terms(words):
    return {**words, "fedekd": "9.9.0", "terms": json.dumps({**json.loads(words["terms"]), "zeal": 3})}


@pytest.mark.parametrize(
    ("change", "site_says", "server_says"),
    [
        (
            lambda words: {**words, "fedekd": "9.9.0", "protocol": versions.PROTOCOL + 1},
            f"the server runs fedekd 9.9.0 and this site {__version__}: update fedekd at this site",
            f"cedar runs fedekd {__version__} and this server {__version__}: cedar must update its fedekd",
        ),
        (
            newer_terms,
            f"the server's terms have zeal, which fedekd {__version__} at this site does not know: update it to the "
            "server's version; the server runs fedekd 9.9.0",
            f"cedar runs fedekd {__version__} and this server {__version__}: cedar must update its fedekd",
        ),
    ],
)
def test_an_older_site_says_that_it_must_be_updated(tmp_path, digits, caplog, change, site_says, server_says):
    sites = write_sites(tmp_path, digits, alone="plain")
    _, report = federate(make_server(tmp_path, epochs=1, rounds=1), schema_of(digits), sites, Changed(sites, change))
    assert [site["name"] for site in report["sites"]] == ["alder", "birch"]
    assert site_says in caplog.text
    assert server_says in caplog.messages
    assert Pins(sites[2].state).refusals() == 0, "its administrator has nothing to accept"


def test_a_site_that_is_too_new_for_the_server_is_named(tmp_path, digits, caplog):
    sites = write_sites(tmp_path, digits)
    ahead = {"fedekd": "9.9.0", "protocol": versions.PROTOCOL + 1}
    post = Hand(sites, lambda name, kind, reply: replace(reply, words={**reply.words, **ahead}))
    with pytest.raises(TooFew):
        federate(make_server(tmp_path, deadline=1.0), schema_of(digits), sites, post)
    assert f"alder runs fedekd 9.9.0 and this server {__version__}: update fedekd at this server" in caplog.messages


def test_a_server_that_is_too_old_is_named(monkeypatch):
    monkeypatch.setattr(versions, "PROTOCOL", 3)
    monkeypatch.setattr(versions, "OLDEST", 2)
    for words, told in (({}, versions.UNTOLD), ({"fedekd": "0.1.0", "protocol": 1}, "0.1.0")):
        assert versions.server_problem(words) == (
            f"the server runs fedekd {told} and this site {__version__}: the server must update its fedekd"
        )
    assert versions.server_problem({"protocol": 2}) is None
    for nonsense in ({"fedekd": "x" * 99, "protocol": True}, {"fedekd": 7, "protocol": "2"}, {"protocol": 10**400}):
        assert versions.read(nonsense) == ("", 1)
