"""What is sent besides models: known before anybody trains, checked at both ends, and let out by its name."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_equality import place

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from village import TINY, Hand, federate, make_server, nowhere, schema_of, state_of

from fedekd import methods
from fedekd.engines.job import Job
from fedekd.errors import FedekdError
from fedekd.flower.protocol import layouts, uploads
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.rows import of_server
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.visits import called
from fedekd.flower.protocol.wire import Packed, Payload
from fedekd.flower.server.conversation import TooFew
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.site import trainer
from fedekd.methods import Exchange
from fedekd.parts import Head
from tiny import BRIEF


def job(dataset, method, **given):
    terms = Terms.of(make_server(nowhere, method=method, **given))
    factories = (terms.factory(role) for role in ("private", "proxy"))
    return Job(of_server(schema_of(dataset), 0), methods.get(method), 0, terms.training(), *factories)


def test_a_layout_is_what_is_sent(tmp_path, digits):
    server, sites = place(tmp_path, digits, "toys:Prototypes")
    found = layouts.layouts(job(digits, "toys:Prototypes"))
    assert {name: (tuple(t.shape), t.dtype) for name, t in found["prototypes"].items()} == {
        "mean": ((10, 12), torch.float32),
        "n": ((10,), torch.int64),
    }
    post = Hand(sites)
    federate(server, schema_of(digits), sites, post)
    sent = [reply.models["prototypes"] for _, _, reply in post.sent if reply.models]
    assert len(sent) == 6
    for packed in sent:
        assert {name: array.shape for name, array in packed.arrays.items()} == {"mean": (10, 12), "n": (10,)}


def test_nothing_is_trained_to_find_a_layout(digits):
    """A learning rate at which training would diverge at once, and more epochs than anybody has time for."""
    assert layouts.layouts(job(digits, "toys:Twice", lr=1e30, epochs=100_000))["control"]
    assert layouts.layouts(job(digits, "toys:Gradients", epochs=100_000))["gradient"]
    assert layouts.layouts(job(digits, "fedavg")) == {}


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("toys:Rows", "sends what the method calls 'targets' in a shape that depends on a client's number of rows"),
        ("toys:Hasty", "makes 'second' from an answer that comes in the same message .*put a Remember step between"),
    ],
)
def test_what_cannot_be_sent_is_said_in_a_line(tmp_path, digits, method, reason):
    with pytest.raises(FedekdError, match=reason) as raised:
        Rounds(make_server(tmp_path, method=method), schema_of(digits), Hand([]), 0)
    assert "\n" not in str(raised.value)


def changed(reply: Payload, change) -> Payload:
    packed = reply.models["prototypes"]
    return Payload(reply.words, {"prototypes": Packed(packed.how, change(dict(packed.arrays)), packed.scales)})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: {**a, "mean": np.full_like(a["mean"], np.nan)}, "mean has NaN"),
        (lambda a: {**a, "mean": a["mean"][:, :3].copy()}, "mean has shape (10, 3), not (10, 12)"),
        (lambda a: {**a, "n": a["n"].astype(np.float32)}, "n is float32, not int64"),
        (lambda a: {"mean": a["mean"]}, "no tensor 'n'"),
        (lambda a: {**a, "rows": a["mean"]}, "'rows' that is unknown"),
        (lambda a: {**a, "mean": 1e4 * a["mean"]}, None),
    ],
)
def test_the_server_checks_what_is_no_model(tmp_path, digits, change, reason):
    """Its norm alone says nothing: what is no model may rightly be of any size."""
    server, sites = place(tmp_path, digits, "toys:Prototypes", rounds=1)
    post = Hand(sites, lambda name, kind, reply: changed(reply, change) if reply.models and name == "birch" else reply)
    _, report = federate(server, schema_of(digits), sites, post)
    assert [reason in r["reason"] for r in report["refused"]] == ([True] if reason else [])
    assert report["counted"][0] == (["alder", "cedar"] if reason else ["alder", "birch", "cedar"])


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"mean": np.full((10, 12), np.inf, np.float32)}, "has NaN or infinite"),
        ({f"n{k}": np.zeros(1, np.float32) for k in range(10_001)}, "too many names"),
        ({"m" * 301: np.zeros(1, np.float32)}, "too long"),
        ({"mean": np.zeros((300, 300), np.float32)}, "0.4 MB, more than `largest`"),
        ({"mean": np.zeros((100, 100), np.float32)}, None),
    ],
)
def test_a_site_bounds_an_answer_of_which_it_knows_nothing(arrays, reason):
    found = uploads.opened_freely(Packed("none", arrays), largest=2e5)
    assert reason in found if reason else isinstance(found, dict)
    assert isinstance(uploads.opened_freely(Packed("int8", arrays), largest=2e5), str)


def test_a_bad_answer_changes_nothing_at_the_site(tmp_path, digits, caplog):
    server, sites = place(tmp_path, digits, "toys:Twice")
    rounds = Rounds(replace(server, deadline=0.2), schema_of(digits), Hand(sites), 3)
    rounds.step()
    before = state_of(sites[0])["client"]["models"]["private"]
    good = rounds.answers["control"]
    rounds.answers["control"] = {name: t * float("nan") for name, t in good.items()}
    with pytest.raises(TooFew):
        rounds.visit(rounds.visits[1])
    assert "the server's answer for what the method calls 'control' cannot be used" in caplog.text
    after = state_of(sites[0])["client"]["models"]["private"]
    assert all(torch.equal(w, after[name]) for name, w in before.items()), "not even the model that came with it"
    rounds.answers["control"] = good
    rounds.visit(rounds.visits[1])


@pytest.mark.parametrize("leave", [("proxy",), ("private",), ("control",)])
def test_a_site_says_what_may_leave_by_its_name(tmp_path, digits, caplog, leave):
    server, sites = place(tmp_path, digits, "toys:Twice", deadline=0.2)
    sites = [replace(site, leave=leave) for site in sites]
    post = Hand(sites)
    with pytest.raises(TooFew):
        federate(server, schema_of(digits), sites, post)
    kept = "the private model" if "control" in leave else "what the method calls 'control'"
    assert f"sends {kept}, which this site keeps; add" in caplog.text
    assert all(not reply.models for _, _, reply in post.sent)


def test_what_is_exchanged_in_words():
    assert called(Exchange("private")) == "the private model"
    assert called(Exchange("private", part=Head())) == "a part of the private model"
    assert called(Exchange("logits", send=lambda batch: {})) == "what the method calls 'logits'"


def test_a_site_whose_model_makes_something_else_does_not_join(tmp_path, digits, caplog):
    """The server tells what it expects; features of another width are no neighbours of the others'."""
    server, sites = place(tmp_path, digits, "toys:Prototypes")
    sites[1] = replace(sites[1], private="fedekd.models:proxy", trusts=(*TINY.values(), "toys:Prototypes"))
    with caplog.at_level(logging.ERROR):
        _, report = federate(server, schema_of(digits), sites)
    assert [site["name"] for site in report["sites"]] == ["alder", "cedar"]
    assert "looks otherwise here" in caplog.text


def test_an_upload_that_turns_out_otherwise_does_not_leave(tmp_path, digits, monkeypatch):
    server, sites = place(tmp_path, digits, "toys:Prototypes")
    post = Hand(sites)
    rounds = Rounds(replace(server, deadline=0.2), schema_of(digits), post, 3)
    rounds.gather()
    own = trainer.Client.upload
    monkeypatch.setattr(
        trainer.Client, "upload", lambda self, step, round: {**own(self, step, round), "x": self.data.x[:3]}
    )
    with pytest.raises(TooFew):
        rounds.visit(rounds.visits[0])
    assert {reply.words["code"] for _, kind, reply in post.sent if kind == "visit"} == {StatusCode.TRAINING}
    assert all(not reply.models for _, _, reply in post.sent)


OPINIONS = ["second-opinion", "second-opinion-near", "second-opinion-taught"]


@pytest.mark.parametrize("compression", ["fp16", "int8"])
@pytest.mark.parametrize("method", ["toys:Body", "toys:Into", "toys:Twice", "toys:EachAsList", "toys:Made", *OPINIONS])
def test_what_can_be_packed_is_packed_and_the_rest_is_sent_as_it_is(tmp_path, digits, method, compression):
    given = {"rounds": 3, "epochs": 1, "compression": compression, "parameters": BRIEF.get(method, {})}
    server, sites = place(tmp_path, digits, method, **given)
    post = Hand(sites)
    rounds, report = federate(server, schema_of(digits), sites, post)
    assert report["complete"]
    assert report["refused"] == []
    hows = {(name, packed.how) for _, _, reply in post.sent for name, packed in reply.models.items()}
    expected = {
        "toys:Body": {("private", compression)},
        "toys:Into": {("private", "none")},
        "toys:Twice": {("private", compression), ("control", "none")},
        "toys:EachAsList": {("private", "none")},
        "toys:Made": {("half", "none")},
        **{name: {("proxy", compression)} for name in OPINIONS},
    }[method]
    assert hows == expected
    for site in sites if method != "toys:EachAsList" else ():
        for name, held in state_of(site)["held"].items():
            assert all(torch.equal(t, held[key]) for key, t in rounds.held[name].items()), (site.name, name)


@pytest.mark.parametrize("method", ["toys:Twice", "toys:Each", "toys:Prototypes"])
@pytest.mark.parametrize("compression", ["none", "int8"])
def test_one_that_was_away_gets_every_newest_answer(tmp_path, digits, method, compression):
    server, sites = place(tmp_path, digits, method, rounds=4, epochs=1, deadline=0.2, compression=compression)
    post = Hand(sites)
    rounds = Rounds(server, schema_of(digits), post, 3)
    rounds.gather()
    for visit in rounds.visits:
        post.asleep = {"birch"} if visit.number in (1, 2) else set()
        rounds.visit(visit)
    assert [("birch" in names) for names in rounds.report()["counted"]] == [True, False, False, True, True]
    assert rounds.report()["refused"] == []
    received = state_of(sites[1])["client"]["received"]
    for name, answer in rounds.answers.items():
        assert all(torch.equal(t, received[name][key]) for key, t in answer.items() if key in received.get(name, {}))


def test_a_server_that_goes_on_knows_all_answers(tmp_path, digits):
    """It stops after the first visit; another process goes on and ends as if nothing had been."""
    count = []

    def spoil(name, kind, reply):
        count.append(kind)
        return Payload({"code": 4, "name": name}) if count.count("visit") > 3 else reply

    ends = []
    for folder, post in ((tmp_path / "whole", Hand), (tmp_path / "broken", lambda sites: Hand(sites, spoil))):
        server, sites = place(folder, digits, "toys:Twice", epochs=1)
        try:
            federate(server, schema_of(digits), sites, post(sites))
        except TooFew:
            federate(server, schema_of(digits), sites)
        ends.append([state_of(site)["client"]["models"]["private"] for site in sites])
    assert count.count("visit") == 6
    for one, other in zip(*ends, strict=True):
        assert all(torch.equal(w, other[name]) for name, w in one.items())
