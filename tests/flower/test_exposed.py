"""What noise does not protect does not leave under [dp]: it is refused in a line, and the class counts are not told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")
pytest.importorskip("opacus", reason="pip install 'fedekd[dp]'")

from dp_client import BARE, DP, client, equal, sent, trains
from village import schema_of

from fedekd.engines.client import Client
from fedekd.errors import FedekdError
from fedekd.flower.protocol.rows import of_site
from fedekd.flower.site.privacy import PrivateClient
from fedekd.methods.base import Exchange, Train


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("Prototypes", "sends what the method calls 'prototypes', which is made from rows"),
        ("Gradients", "sends what the method calls 'gradient', which is made from rows"),
        ("PublicOutputs", "sends what the method calls 'logits', which is made from rows"),
        ("TargetsKept", "sends what the method calls 'control', which is made from rows"),
        ("Made", "sends what the method calls 'half', which is made from rows"),
        ("CopyOut", "copies what has seen rows without noise into the proxy model, which is sent"),
        ("OnPublic", "trains proxy on public rows with what has seen its own without noise"),
        ("Validated", "trains private on val rows, which the budget does not cover"),
        ("OnTop", "the head model of method 'ontop' stands on the private model"),
    ],
)
@pytest.mark.parametrize("teacher", ["labels", "private"])
def test_what_is_refused(tmp_path, digits, method, reason, teacher):
    with pytest.raises(FedekdError, match=reason) as raised:
        client(tmp_path / "a", digits, f"toys:{method}", replace(DP, teacher=teacher))
    assert "\n" not in str(raised.value)
    assert "take another method, or leave [dp] out" in str(raised.value)


def test_gradients_of_a_sent_model_are_refused(tmp_path, digits, monkeypatch):
    import toys

    monkeypatch.setattr(
        toys.Counting,
        "steps",
        lambda self, round: (Train(("private",), self.loss, gradients=True), Exchange("private")),
    )
    with pytest.raises(FedekdError, match="trains private and reads the gradients, to which no noise is added"):
        client(tmp_path / "a", digits, "toys:Counting")


@pytest.mark.parametrize("method", ["Body", "Into", "Each", "Twice", "Seldom", "Unpartial", "SentAsWell", "CopyIn"])
def test_what_is_made_from_protected_models_alone_may_go(tmp_path, digits, method):
    one = client(tmp_path / "a", digits, f"toys:{method}")
    assert not one.exposure.roles & one.shared
    assert not one.exposure.reads_more(trains(one, 1 if method == "Seldom" else 0))


def all_rounds(one, rounds=2):
    """Everything that a client sends, with a server that gives each back what it sent."""
    from fedekd.engines.schedule import numbered

    found = []
    for round in range(rounds):
        for step, again in numbered(one.method.steps(round)):
            if isinstance(step, Exchange):
                upload = {name: t.clone() for name, t in one.upload(step, round).items()}
                found.append(upload)
                one.receive(step, upload)
            else:
                one.perform(step, round, again)
    return found


@pytest.mark.parametrize("method", ["Counting", "CountsSent"])
def test_class_counts_do_not_leak(tmp_path, digits, method, monkeypatch):
    """The same gradients and another distribution of labels: only the counts could tell."""
    pair = [client(tmp_path / name / "a", digits, f"toys:{method}", BARE) for name in "ab"]
    pair[1].counts = pair[1].counts.flip(0)
    monkeypatch.setattr(PrivateClient, "noise_key", lambda self, step, round, again=0: bytes([round] * 32))
    for one in pair:
        one.budget.noise = 0.1
    ours, theirs = map(all_rounds, pair)
    assert all(equal(a, b) for a, b in zip(ours, theirs, strict=True))
    rows = len(pair[0].rows["train"])
    for tree in (tree for tree in ours if "n" in tree):
        assert tree["n"].tolist() == tree["now"].tolist() == [rows // 10] * 10
    assert pair[0].counts.tolist() != [rows // 10] * 10, "what stays here may still know them"


def test_a_model_that_stays_is_trained_with_the_true_counts(tmp_path, digits, monkeypatch):
    seen = []
    one = client(tmp_path / "a", digits)
    batch = Client._batch
    monkeypatch.setattr(Client, "_batch", lambda self, *a, **k: seen.append(self.counts) or batch(self, *a, **k))
    step = next(s for s in one.method.steps(0) if isinstance(s, Train) and s.roles == ("private",))
    one.train(step, 0)
    assert seen
    assert all(torch.equal(counts, one.counts) for counts in seen)


@pytest.mark.parametrize("data", ["digits", "diabetes"])
@pytest.mark.parametrize("method", ["Featured", "Applied", "Body"])
def test_without_noise_and_clip_it_is_plain_training(tmp_path, request, data, method):
    """Features hold features, a model can be applied to other weights, and weights outside of a part stay."""
    dataset, rows = request.getfixturevalue(data), np.arange(16)
    settings = {"rounds": 1, "epochs": 3, "batch_size": 16, "lr": 0.02, "optimizer": "sgd"}
    one = client(tmp_path / "a", dataset, f"toys:{method}", replace(BARE, clip=1e9), rows, **settings)
    one.budget.noise = 0.0
    plain, step = Client(one.job, 0, 0), trains(one)
    start = one.weights("private")
    plain.train(step, 0)
    ours = sent(one)
    assert all(torch.allclose(ours[k], w, atol=1e-5) for k, w in plain.message("private").items())
    still = {name for name, w in start.items() if torch.equal(w, ours[name])}
    assert still == ({name for name in start if "head" not in name} if method == "Body" else set())


def test_steps_of_their_own_length_are_paid_for(tmp_path, digits):
    one = client(tmp_path / "a", digits, "toys:Body", epochs=3)
    batches = -(-len(one.rows["train"]) // 16)
    assert one.budget.planned == 2 * (1 + 3) * batches
    all_rounds(one)
    assert sum(steps for _, steps in one.budget.ledger["spent"].values()) == one.budget.planned
    assert 0.95 * DP.epsilon < one.budget.epsilon <= DP.epsilon


def test_two_trainings_of_a_round_do_not_share_their_noise(tmp_path, digits):
    one = client(tmp_path / "a", digits)
    assert one.noise_key(trains(one), 0, 0) != one.noise_key(trains(one), 0, 1)


def with_public(folder, dataset, method):
    schema = schema_of(dataset)
    fitted = schema.fit(dataset)
    aside = replace(fitted, x=fitted.x[:20], y=fitted.y[:20])
    plain = client(folder, dataset, method)
    job = replace(plain.job, federation=of_site(fitted, schema, "site", 0, 0, aside))
    return PrivateClient(job, 0, DP, folder)


def test_public_rows_cost_nothing(tmp_path, digits):
    """What is sent may learn from them without noise, since they are nobody's."""
    one = with_public(tmp_path / "a", digits, "toys:PublicLabels")
    own, public = (s for s in one.method.steps(0) if isinstance(s, Train) and s.roles == ("proxy",))
    before = one.weights("proxy")
    one.train(public, 0)
    assert one.budget.ledger["spent"] == {}
    assert not equal(before, one.weights("proxy"))
    one.train(own, 0)
    assert len(one.budget.ledger["spent"]) == 1


def test_what_a_client_does_before_it_answers_needs_no_noise(tmp_path, digits):
    one = client(tmp_path / "a", digits, "toys:Personal")
    before = one.weights("private")
    with one.personalised():
        assert not equal(before, one.weights("private"))
    assert equal(before, one.weights("private"))
    assert one.budget.ledger["spent"] == {}


def test_a_site_with_privacy_does_not_join_for_what_is_not_protected(tmp_path, digits, caplog):
    from test_equality import place
    from village import federate

    from fedekd.flower.server.conversation import TooFew
    from fedekd.flower.settings import Privacy

    server, sites = place(tmp_path, digits, "toys:Prototypes", deadline=0.2)
    with pytest.raises(TooFew):
        federate(server, schema_of(digits), [replace(site, dp=Privacy(epsilon=8.0, delta=1e-3)) for site in sites])
    assert "sends what the method calls 'prototypes', which is made from rows" in caplog.text
