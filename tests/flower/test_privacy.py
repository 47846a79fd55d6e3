"""DP-SGD on what leaves: one row moves the sum by no more than the clip, no teacher leaks through, no failure tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from village import Hand, federate, make_server, schema_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")
pytest.importorskip("opacus", reason="pip install 'fedekd[dp]'")

from dp_client import BARE, DP, client, equal, sent, trains
from opacus.grad_sample import GradSampleModule

from fedekd.engines.client import Client
from fedekd.errors import FedekdError
from fedekd.flower.protocol.rows import of_site
from fedekd.flower.server.conversation import TooFew
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.settings import Privacy
from fedekd.flower.site import dp_sgd
from fedekd.methods.base import Exchange, Train
from fedekd.methods.second_opinion import SecondOpinion


def test_the_private_model_does_not_leak_through_the_proxy(tmp_path, digits):
    """With labels as teacher, another private model gives the same proxy to the bit; else it shows."""
    found = {}
    for teacher in ("labels", "private"):
        pair = [client(tmp_path / teacher / "a", digits, dp=replace(DP, teacher=teacher)) for _ in range(2)]
        with torch.no_grad():
            for w in pair[1].models["private"].parameters():
                w.mul_(3.0)
        found[teacher] = equal(*map(sent, pair))
        assert ("end to end" in pair[0].privacy["guarantee"]) == (teacher == "labels")
    assert found == {"labels": True, "private": False}


def test_noise_and_draws_are_the_sites_secret(tmp_path, digits):
    """The same folder repeats a lost visit to the bit; another site with all the same settings draws other noise."""
    here, again = client(tmp_path / "a", digits), client(tmp_path / "a", digits)
    there = client(tmp_path / "elsewhere" / "b", digits)
    first = sent(here)
    assert equal(first, sent(again))
    assert not equal(first, sent(there))
    assert (tmp_path / "a" / "secret").stat().st_mode & 0o077 == 0


def test_weights_decay_beside_the_noise(tmp_path, digits):
    given = {"rounds": 1, "epochs": 1, "batch_size": 200, "optimizer": "sgd"}
    plain, decayed = (client(tmp_path / "a", digits, weight_decay=decay, **given) for decay in (0.0, 0.5))
    start, ours, theirs = plain.weights("proxy"), sent(decayed), sent(plain)
    assert all(torch.allclose(ours[n], theirs[n] - 1e-2 * 0.5 * w, atol=1e-6) for n, w in start.items())


def test_no_part_of_the_seed_can_be_left_out(tmp_path, digits, monkeypatch):
    one = client(tmp_path / "a", digits, rounds=1, epochs=1, batch_size=200)
    start, found = one.weights("proxy"), []
    for byte in (None, 0, 7, 8, 31):
        seed = bytes(k == byte for k in range(32))
        one.models["proxy"].load_state_dict(start)
        one.train_with_noise(trains(one), 0, seed)
        found.append(one.weights("proxy"))
    assert not any(equal(a, b) for k, a in enumerate(found) for b in found[:k])


def test_dropout_is_repeated_too(tmp_path, digits):
    """The same noise over other gradients would tell the difference between them in the clear."""

    def proxy(shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, outputs))

    before = torch.get_rng_state()
    first = sent(client(tmp_path / "a", digits, proxy=proxy))
    assert torch.equal(before, torch.get_rng_state()), "nobody else's chance is disturbed"
    torch.rand(1)
    assert equal(first, sent(client(tmp_path / "a", digits, proxy=proxy)))


def test_rows_are_drawn_as_the_accounting_assumes(tmp_path, digits, monkeypatch):
    """Each row on its own, in as many steps as are paid for, also in those that draw nobody."""
    sizes, draws = [], []
    take, uniform = dp_sgd.NoisyOptimizer.take, dp_sgd.KeyedRandom.uniform

    def counted(self, of_rows, rest):
        sizes.append(len(of_rows[0]))
        take(self, of_rows, rest)

    def seen(self, *shape):
        found = uniform(self, *shape)
        draws.append(found)
        return found

    monkeypatch.setattr(dp_sgd.NoisyOptimizer, "take", counted)
    monkeypatch.setattr(dp_sgd.KeyedRandom, "uniform", seen)
    one = client(tmp_path / "a", digits, batch_size=2, epochs=3)
    rows = len(one.rows["train"])
    for round in range(2):
        sent(one, round)
    ((rate, steps), *others) = one.budget.ledger["spent"].values()
    assert rate == 2 / rows
    assert len(sizes) == one.budget.planned == steps * (1 + len(others)) == 2 * 3 * -(-rows // 2)
    lots = np.array([d for d in draws if d.shape == (rows,)]) < rate
    assert lots.sum(1).tolist() == sizes
    assert 0 in sizes
    assert np.mean(sizes) == pytest.approx(2, abs=4 * (2 / len(sizes)) ** 0.5)
    assert np.var(sizes) == pytest.approx(2, rel=0.3), "not batches of one size"


@pytest.mark.parametrize("data", ["digits", "diabetes"])
def test_one_row_moves_the_sum_by_no_more_than_the_clip(tmp_path, request, data):
    """One step of plain descent on all rows without noise, with and without a row that is far from all others."""
    n, dataset = 40, request.getfixturevalue(data)
    extreme = replace(dataset, x=dataset.x.copy())
    schema = schema_of(dataset)
    probe = client(tmp_path / "probe" / "a", extreme, rows=np.arange(n))
    row = int(probe.job.federation.clients[0].train[0])
    extreme.x[row] = 255
    moved = []
    for name, rows in (("with", np.arange(n)), ("without", np.arange(1, n))):
        one = client(
            tmp_path / name / name, extreme, dp=BARE, rows=rows, schema=schema,
            rounds=1, epochs=1, batch_size=64, lr=1.0, optimizer="sgd",
        )  # fmt: skip
        one.budget.noise = 0.0
        start = {k: w.clone() for k, w in one.message("proxy").items()}
        end = sent(one)
        count = len(rows)  # every row is drawn, and the sum is divided by the number expected
        moved.append(torch.cat([((start[k] - end[k]) * count).flatten() for k in start]))
    assert float((moved[0] - moved[1]).norm()) <= DP.clip * (1 + 1e-4)
    assert float((moved[0] - moved[1]).norm()) > 0.5 * DP.clip, "the row was really there"


@pytest.mark.parametrize("data", ["digits", "diabetes"])
def test_opacus_itself_finds_the_same_clipped_sum(tmp_path, request, data):
    """Gradients row by row from Opacus's own hooks on the same model, clipped one by one and added up."""
    dataset = request.getfixturevalue(data)
    settings = {"rounds": 1, "epochs": 1, "batch_size": 64, "lr": 1.0, "optimizer": "sgd"}
    one = client(tmp_path / "a", dataset, dp=BARE, rows=np.arange(30), **settings)
    one.budget.noise = 0.0
    proxy = one.job.proxy(dataset.x.shape[1:], dataset.outputs)
    proxy.load_state_dict(one.message("proxy"))
    start = one.weights("proxy")
    hooked, rows = GradSampleModule(proxy, loss_reduction="sum"), one.rows["train"]
    output = one.task.read(hooked(one.data.scale.inputs(one.data.x[rows])))
    one.task.loss(output, one.data.y[rows]).sum().backward()
    flat = torch.cat([w.grad_sample.flatten(1) for w in hooked.parameters()], 1)
    assert (flat.norm(dim=1) > DP.clip).any()
    assert data == "digits" or (flat.norm(dim=1) < DP.clip).any()
    expected = (flat * (DP.clip / flat.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0) / len(rows)
    end = sent(one)
    found = torch.cat([(start[name] - end[name]).flatten() for name, _ in proxy.named_parameters()])
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("data", ["digits", "diabetes"])
@pytest.mark.parametrize(
    "method", ["second-opinion", "second-opinion-near", ("second-opinion-taught", {"passes": 1})], ids=str
)
def test_what_a_client_makes_for_its_own_answers_costs_nothing(tmp_path, request, data, method):
    """Second opinion's head, weights and pupil see rows without noise, after the proxy came back, and stay."""
    one = client(tmp_path / "a", request.getfixturevalue(data), method, rounds=1)
    before = sent(one)
    spent = dict(one.budget.ledger["spent"])
    for step in one.method.steps(0):
        if not isinstance(step, Exchange) and step != trains(one):
            one.perform(step, 0)
    assert np.isfinite(one.measure().value)
    assert dict(one.budget.ledger["spent"]) == spent
    assert equal(before, one.message("proxy"))


def test_the_pupil_learns_from_the_opinions_that_were_weighed(tmp_path, digits, monkeypatch):
    """Those are of a proxy that does not know the client's class counts, which noise protects."""
    seen, opinions = [], SecondOpinion.opinions

    def noted(self, batch):
        seen.append(batch.counts)
        return opinions(self, batch)

    monkeypatch.setattr(SecondOpinion, "opinions", noted)
    one = client(tmp_path / "a", digits, ("second-opinion-taught", {"passes": 1}), rounds=1)
    for step in one.method.steps(0):
        if not isinstance(step, Exchange):
            one.perform(step, 0)
    assert len(seen) > 1
    assert not torch.equal(seen[0], one.counts)
    assert all(torch.equal(counts, seen[0]) for counts in seen)


@pytest.mark.parametrize("method", ["fedavg", ("fedprox", {"mu": 5.0}), ("feddyn", {"a": 5.0})])
@pytest.mark.parametrize("data", ["digits", "diabetes"])
def test_without_noise_and_clip_it_is_plain_training(tmp_path, request, data, method):
    """Full batches: per-sample gradients, added up, are the gradient that the ordinary client takes."""
    dataset, rows = request.getfixturevalue(data), np.arange(16)
    settings = {"rounds": 1, "epochs": 3, "batch_size": 16, "lr": 0.02, "optimizer": "sgd"}
    one = client(tmp_path / "a", dataset, method, replace(BARE, clip=1e9), rows, **settings)
    one.budget.noise = 0.0
    plain = Client(one.job, 0, 0)
    for each in (one, plain):
        for w in each.memory.get("gradient", {}).values():
            w.fill_(0.1)
    plain.train(trains(one), 0)
    ours = sent(one)
    assert all(torch.allclose(ours[k], w, atol=1e-5) for k, w in plain.message("private").items())


def test_terms_that_no_row_enters_are_not_clipped(tmp_path, digits):
    """FedProx pulls towards the received model with its whole strength, however short the rows' gradients are cut."""
    one = client(
        tmp_path / "a", digits, ("fedprox", {"mu": 0.5}), replace(BARE, clip=1e-9),
        rounds=1, epochs=1, batch_size=500, lr=1.0, optimizer="sgd",
    )  # fmt: skip
    one.budget.noise = 0.0
    for w in one.received["private"].values():
        w.add_(1.0)
    start, end = one.weights("private"), sent(one)
    assert all(torch.allclose(end[k], start[k] + 0.5, atol=1e-5) for k in start)


def test_joint_training_is_refused(tmp_path, digits):
    with pytest.raises(FedekdError, match="trains private and proxy in one step"):
        client(tmp_path / "a", digits, "fml")


def test_buffers_are_refused(tmp_path, digits):
    def proxy(shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, outputs))

    with pytest.raises(FedekdError, match="has buffers"):
        client(tmp_path / "a", digits, proxy=proxy)


@pytest.mark.parametrize("what", ["rows", "weights"])
def test_noise_is_not_used_again_for_other_inputs(tmp_path, digits, what):
    """Two results with the same noise would show the difference of what they were made from in the clear."""
    other = replace(digits, x=digits.x + 1) if what == "rows" else digits
    pair = [client(tmp_path / "a", dataset, "fedprox") for dataset in (digits, other)]
    if what == "weights":
        for w in pair[1].received["private"].values():
            w.add_(0.01)
    step = trains(pair[0])
    assert pair[0].noise_key(step, 0) == pair[0].noise_key(step, 0) != pair[1].noise_key(step, 0)


def test_a_model_without_gradients_row_by_row_is_refused_before_the_first_visit(tmp_path, digits):
    class Branching(nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.head = nn.Linear(64, outputs)

        def forward(self, x):
            out = self.head(x.flatten(1))
            return out if out.sum() > 0 else 2 * out

    client(tmp_path / "good", digits).try_out()
    with pytest.raises(FedekdError, match="the proxy model has no gradient row by row"):
        client(tmp_path / "bad", digits, proxy=lambda shape, outputs: Branching(outputs)).try_out()


def test_a_delta_that_protects_no_one_is_refused(tmp_path, digits):
    with pytest.raises(FedekdError, match="protects no one"):
        client(tmp_path / "a", digits, dp=replace(DP, delta=0.05))


def test_a_federation_with_privacy_ends_with_the_spent_budget_in_its_report(tmp_path, digits):
    sites = write_sites(tmp_path, digits, dp=Privacy(epsilon=20.0, delta=1e-3, clip=1.0))
    sites[0] = replace(sites[0], dp=None)
    server = make_server(tmp_path, epochs=1, batch_size=200)
    _, report = federate(server, schema_of(digits), sites)
    assert report["complete"]
    assert set(report["privacy"]) == {"birch", "cedar"}
    assert all(0 < spent["epsilon"] <= 20.0 for spent in report["privacy"].values())
    again = replace(server, state=tmp_path / "new", deadline=0.1, min_sites=3)
    with pytest.raises(TooFew):
        federate(again, schema_of(digits), sites, Hand(sites))


def test_a_row_beyond_all_measure_shows_nowhere(tmp_path, diabetes):
    """It makes what stays at home diverge, and its own gradient infinite; the server sees a site like any other."""
    schema, server = schema_of(diabetes), make_server(tmp_path, epochs=2, batch_size=100)
    for dp in (Privacy(epsilon=20.0, delta=1e-3), None):
        sites = write_sites(tmp_path / str(dp is None), diabetes, dp=dp)
        rows = dict(np.load(sites[1].data))
        row = of_site(schema.load(sites[1].data), schema, "birch", server.seed, 1).clients[0].train[0]
        rows["x"][row] = 1e30
        np.savez(sites[1].data, **rows)
        _, report = federate(replace(server, state=tmp_path / f"server {dp is None}"), schema, sites)
        assert report["complete"]
        assert all(("birch" in names) == (dp is not None) for names in report["counted"])


def test_a_proxy_that_breaks_on_one_row_learns_nothing_of_it(tmp_path, digits):
    """A server may send any proxy: whether the private model survives it must not show."""
    one = client(tmp_path / "a", digits)
    before = one.weights("private")
    with torch.no_grad():
        for w in one.models["proxy"].parameters():
            w.fill_(1e30)
    step = next(s for s in one.method.steps(0) if isinstance(s, Train) and s.roles == ("private",))
    with pytest.raises(FedekdError, match="diverged"):
        Client.train(one, step, 0)
    one.models["private"].load_state_dict(before)
    one.train(step, 0)
    assert equal(before, one.weights("private"))


@pytest.mark.parametrize("first", [Privacy(epsilon=20.0, delta=1e-3), None])
def test_privacy_does_not_begin_or_end_in_the_middle(tmp_path, digits, first):
    """A report must not call models private that left before there was noise."""
    sites = write_sites(tmp_path, digits, dp=first)
    post = Hand(sites)
    rounds = Rounds(make_server(tmp_path, batch_size=100, deadline=0.2), schema_of(digits), post, 3)
    rounds.step()
    other = None if first else Privacy(epsilon=20.0, delta=1e-3)
    post.sites = {node: replace(site, dp=other) for node, site in post.sites.items()}
    with pytest.raises(TooFew, match="0 of at least 2"):
        rounds.visit(rounds.visits[1])
    post.sites = {node: replace(site, dp=first) for node, site in post.sites.items()}
    rounds.visit(rounds.visits[1])
