"""Where not all sites take part in every round: who is asked, for what, and what one gets that comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_equality import place
from village import Hand, federate, schema_of, state_of

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.engines.schedule import participants
from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.settings import read_server
from fedekd.flower.site import handlers

NAMES = ("alder", "birch", "cedar", "elm")


class Listening(Hand):
    """Keeps the payloads that sites are sent."""

    def __init__(self, sites, spoil=None):
        super().__init__(sites, spoil)
        self.payloads = []

    def send(self, node, kind, payload):
        self.payloads += [(self.sites[node].name, payload)] if kind == "visit" else []
        super().send(node, kind, payload)


@pytest.mark.parametrize("compression", ["none", "int8"])
def test_who_is_asked_for_what(tmp_path, digits, compression):
    given = {"rounds": 4, "epochs": 1, "participation": 0.5, "compression": compression}
    server, sites = place(tmp_path, digits, "fedekd", sites=4, **given)
    post = Listening(sites)
    _, report = federate(server, schema_of(digits), sites, post)
    drawn = [{NAMES[k] for k in participants(0, round, 4, 0.5)} for round in range(4)]
    assert report["counted"] == [*map(sorted, drawn), sorted(NAMES)]
    assert report["refused"] == []
    newest = 0
    for number in range(5):
        asked = {name: payload for name, payload in post.payloads if payload.words["visit"] == number}
        here = (drawn[number - 1] if number else set()) | (drawn[number] if number < 4 else set())
        assert set(asked) == (here if number < 4 else set(NAMES))
        for name, payload in asked.items():
            rounds = [r for r in (number - 1, number) if 0 <= r < 4 and name in drawn[r]]
            assert payload.words["rounds"] == " ".join(map(str, rounds))
            assert set(payload.models) == ({"proxy"} if number and rounds else set())
            if payload.models and number > 1:
                there = name in drawn[number - 1] | drawn[number - 2]
                newest += not there
                assert payload.models["proxy"].how == (compression if there else "none")
    assert newest, "one was away for a round and came back"


def test_one_that_is_not_drawn_is_not_waited_for(tmp_path, digits, caplog):
    server, sites = place(tmp_path, digits, "fedavg", sites=4, rounds=4, epochs=1, participation=0.5, deadline=0.5)
    post = Hand(sites)
    rounds = Rounds(server, schema_of(digits), post, 4)
    rounds.gather()
    for visit in rounds.visits[:-1]:
        here = {NAMES[k] for r in visit.rounds for k in participants(0, r, 4, 0.5)}
        post.asleep = set(NAMES) - here
        rounds.visit(visit)
    post.asleep = set()
    rounds.visit(rounds.visits[-1])
    assert "no answer" not in caplog.text
    assert all(site["answered"] for site in rounds.report()["sites"])


def test_a_round_is_drawn_once_though_a_site_joins(tmp_path, digits):
    server, sites = place(tmp_path, digits, "fedavg", sites=4, rounds=4, epochs=1, participation=0.5)
    post = Hand(sites)
    post.asleep = {"elm"}
    rounds = Rounds(server, schema_of(digits), post, 3)
    rounds.step()
    first = rounds.progress.drawn[0]
    assert first == participants(0, 0, 3, 0.5)
    post.asleep = set()
    rounds.step()
    assert rounds.progress.drawn == {0: first, 1: participants(0, 1, 4, 0.5)}


def test_a_site_that_comes_late_takes_part_though_answers_are_for_each_site_apart(tmp_path, digits):
    server, sites = place(tmp_path, digits, "pfedhr", rounds=3, epochs=1, deadline=0.5)
    post = Hand(sites)
    post.asleep = {"cedar"}
    rounds = Rounds(server, schema_of(digits), post, 2)
    for _ in rounds.visits:
        rounds.step()
        post.asleep = set()
    assert rounds.progress.refused == []
    assert rounds.progress.counted == [["alder", "birch"], *[["alder", "birch", "cedar"]] * 2]


def test_a_lost_state_is_made_good(tmp_path, digits):
    """A site that says it is behind gets everything, whole, whatever the server thinks it has."""
    server, sites = place(tmp_path, digits, "toys:Twice", sites=4, rounds=4, epochs=1, participation=0.75,
                          compression="int8")  # fmt: skip
    post, lost = Listening(sites), []

    def spoil(name, kind, reply):
        if kind == "visit" and reply.words["code"] == 0 and not lost and len(post.payloads) > 4:
            lost.append(name)
            return Payload({"code": int(StatusCode.BEHIND), "name": name})
        return reply

    post.spoil = spoil
    _, report = federate(server, schema_of(digits), sites, post)
    assert report["complete"]
    again = [payload for name, payload in post.payloads if name == lost[0] and payload.words["visit"] == 1]
    assert [{packed.how for packed in payload.models.values()} for payload in again][-1] == {"none"}
    assert set(again[-1].models) == {"private", "control"}


@pytest.mark.parametrize("rounds", ["0 1 2", "7", "x", "-1"])
def test_rounds_that_a_visit_does_not_have(tmp_path, digits, rounds):
    server, sites = place(tmp_path, digits, "fedavg", participation=0.5, min_sites=1, epochs=1)
    post = Hand(sites)
    made = Rounds(server, schema_of(digits), post, 3)
    made.gather()
    words = {"federation": made.progress.federation, "visit": 0, "number": 0, "rounds": rounds}
    assert handlers.answer(sites[0], "visit", Payload(words)).words["code"] == StatusCode.REFUSED


def test_a_site_that_takes_no_part_keeps_its_models_and_is_asked_how_it_does(tmp_path, digits):
    server, sites = place(
        tmp_path, digits, "toys:Personal", sites=4, rounds=1, epochs=1, participation=0.25, min_sites=1
    )
    _, report = federate(server, schema_of(digits), sites)
    (only,) = report["counted"][0]
    assert all("value" in site for site in report["sites"])
    start = [state_of(site)["client"]["models"]["private"] for site in sites if site.name != only]
    assert all(torch.equal(w, start[0][name]) for one in start[1:] for name, w in one.items())


def test_too_few_are_drawn(tmp_path, digits):
    server, sites = place(tmp_path, digits, "fedavg", participation=0.3, min_sites=2)
    with pytest.raises(FedekdError, match=r"participation 0\.3 of 3 sites draws 1, fewer than `min_sites` 2; raise"):
        federate(server, schema_of(digits), sites)


@pytest.mark.parametrize("value", [0, -0.5, 1.5])
def test_a_share_that_is_none(tmp_path, digits, value):
    from fedekd.flower.settings import ServerSettings
    from fedekd.flower.toml_files import toml_text

    needed = {"address": "a:1", "ca": "c", "certificate": "c", "key": "k", "nodes": "n", "state": "s"}
    (tmp_path / "server.toml").write_text(toml_text(ServerSettings, "A file.", {**needed, "participation": value}))
    with pytest.raises(FedekdError, match="participation must be above 0 and at most 1"):
        read_server(tmp_path / "server.toml")
    server, sites = place(tmp_path, digits, "fedavg")
    terms = Rounds(server, schema_of(digits), Hand(sites), 3).terms
    text = replace(terms, participation=value).text()
    with pytest.raises(FedekdError, match="participation is"):
        type(terms).parse(text)
