"""DP-SGD on what leaves: the budget holds, one row moves the sum by no more than the clip, no teacher leaks through."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from village import Hand, federate, make_server, schema_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")
pytest.importorskip("opacus", reason="pip install 'fedekd[dp]'")

from opacus.accountants import RDPAccountant

from fedekd import methods
from fedekd.engines.client import Client
from fedekd.engines.job import Job, Training
from fedekd.errors import FedekdError
from fedekd.flower.post import TooFew
from fedekd.flower.privacy import PrivateClient
from fedekd.flower.site_data import of_site
from fedekd.flower.site_file import Privacy
from fedekd.methods.base import Train
from tiny import tiny_private, tiny_proxy

DP = Privacy(epsilon=8.0, delta=1e-3, clip=0.5)
BARE = replace(DP, epsilon=float("inf"))  # for tests that take the noise away


def client(folder, dataset, method="fedekd", dp=DP, rows=None, proxy=tiny_proxy, **training):
    schema = schema_of(dataset)
    federation = of_site(schema.fit(dataset), schema, "site", 0, 0)
    if rows is not None:
        (split,) = federation.clients
        federation = replace(federation, clients=(replace(split, train=split.train[rows]),))
    settings = Training(**{"rounds": 2, "epochs": 2, "batch_size": 16, "lr": 1e-2, **training})
    job = Job(federation, methods.get(method), 0, settings, tiny_private, proxy)
    return PrivateClient(job, 0, dp, folder)


def sent(one, round=0):
    """The model that would be sent after a round's training."""
    for step in one.method.steps(round):
        if isinstance(step, Train) and one.shared & set(step.roles):
            one.train(step, round)
    return {k: w.clone() for k, w in one.message(*one.shared).items()}


def equal(a, b):
    return all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("method", ["fedekd", "fedavg", "fedprox", "feddyn", "fedtype"])
def test_the_budget_is_kept_and_used(tmp_path, digits, method):
    one = client(tmp_path / "a", digits, method)
    for round in range(2):
        for step in one.method.steps(round):
            if isinstance(step, Train):
                one.train(step, round)
            elif not hasattr(step, "role"):
                one.remember(step, round)
    independent = RDPAccountant()
    for _ in range(one.planned):
        independent.step(noise_multiplier=one.noise, sample_rate=16 / len(one.rows["train"]))
    spent = one.privacy["epsilon"]
    assert spent == pytest.approx(independent.get_epsilon(1e-3))
    assert 0.95 * DP.epsilon < spent <= DP.epsilon
    with pytest.raises(FedekdError, match="budget is spent"):
        sent(one)


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


def test_one_row_moves_the_sum_by_no_more_than_the_clip(tmp_path, digits):
    """One step of plain descent on all rows without noise, with and without a row that is far from all others."""
    n = 40
    extreme = replace(digits, x=digits.x.copy())
    probe = client(tmp_path / "probe" / "a", extreme, rows=np.arange(n))
    row = int(probe.job.federation.clients[0].train[0])
    extreme.x[row] = 255
    moved = []
    for name, rows in (("with", np.arange(n)), ("without", np.arange(1, n))):
        one = client(
            tmp_path / name / name, extreme, dp=BARE, rows=rows,
            rounds=1, epochs=1, batch_size=64, lr=1.0, optimizer="sgd",
        )  # fmt: skip
        one.noise = 0.0
        start = {k: w.clone() for k, w in one.message("proxy").items()}
        end = sent(one)
        count = len(rows)  # every row is drawn, and the sum is divided by the number expected
        moved.append(torch.cat([((start[k] - end[k]) * count).flatten() for k in start]))
    assert float((moved[0] - moved[1]).norm()) <= DP.clip * (1 + 1e-4)
    assert float((moved[0] - moved[1]).norm()) > 0.5 * DP.clip, "the row was really there"


def test_without_noise_and_clip_it_is_plain_training(tmp_path, digits):
    """One full batch: per-sample gradients, added up, are the gradient that the ordinary client takes."""
    rows = np.arange(16)
    settings = {"rounds": 1, "epochs": 1, "batch_size": 16, "lr": 0.1, "optimizer": "sgd"}
    one = client(tmp_path / "a", digits, "fedavg", replace(BARE, clip=1e9), rows, **settings)
    one.noise = 0.0
    plain = Client(one.job, 0, 0)
    plain.train(plain.method.steps(0)[0], 0)
    ours = sent(one)
    assert all(torch.allclose(ours[k], w, atol=1e-6) for k, w in plain.message("private").items())


def test_joint_training_is_refused(tmp_path, digits):
    with pytest.raises(FedekdError, match="trains private and proxy in one step"):
        client(tmp_path / "a", digits, "fml")


def test_buffers_are_refused(tmp_path, digits):
    def proxy(shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, outputs))

    with pytest.raises(FedekdError, match="has buffers"):
        client(tmp_path / "a", digits, proxy=proxy)


def test_a_budget_is_spent_once(tmp_path, digits):
    sent(client(tmp_path / "first", digits))
    client(tmp_path / "first", digits)
    with pytest.raises(FedekdError, match="budget was spent in federation first"):
        client(tmp_path / "second", digits)


def budget(one):
    return one.privacy["epsilon"]


def test_what_is_repeated_is_spent_once_and_what_is_not_is_spent_again(tmp_path, digits):
    """The ledger outlives the process, and counts whatever the models on disk say."""
    first = client(tmp_path / "a", digits)
    sent(first)
    again = client(tmp_path / "a", digits)
    assert budget(again) == budget(first) > 0
    sent(again)
    assert budget(again) == budget(first), "the same visit, done again after a kill"

    forked = client(tmp_path / "a", digits)
    with torch.no_grad():
        for w in forked.models["proxy"].parameters():
            w.add_(0.01)  # a server that asks for the visit again with another model
    sent(forked)
    assert budget(forked) > budget(first)
    with torch.no_grad():
        next(forked.models["proxy"].parameters()).add_(0.01)
    with pytest.raises(FedekdError, match="budget is spent"):
        sent(forked)
    assert len(client(tmp_path / "a", digits).ledger["spent"]) == 2


def test_the_budget_is_spent_before_the_noise_is_drawn(tmp_path, digits, monkeypatch):
    """A process that dies while it trains has spent, since nobody knows what became of its result."""
    one = client(tmp_path / "a", digits)
    monkeypatch.setattr(one, "_train_privately", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        sent(one)
    assert budget(client(tmp_path / "a", digits)) > 0


@pytest.mark.parametrize("what", ["rows", "anchor"])
def test_noise_is_not_used_again_for_other_inputs(tmp_path, digits, what):
    """Two results with the same noise would show the difference of what they were made from in the clear."""
    other = replace(digits, x=digits.x + 1) if what == "rows" else digits
    pair = [client(tmp_path / "a", dataset, "fedprox") for dataset in (digits, other)]
    if what == "anchor":
        for w in pair[1].received["private"].values():
            w.add_(0.01)
    step = next(s for s in pair[0].method.steps(0) if isinstance(s, Train))
    assert pair[0]._seed(step, 0) == pair[0]._seed(step, 0) != pair[1]._seed(step, 0)


def test_a_delta_that_protects_no_one_is_refused(tmp_path, digits):
    with pytest.raises(FedekdError, match="protects no one"):
        client(tmp_path / "a", digits, dp=replace(DP, delta=0.05))


def test_an_impossible_budget_is_said(tmp_path, digits):
    with pytest.raises(FedekdError, match="raise epsilon"):
        client(tmp_path / "a", digits, dp=replace(DP, epsilon=1e-6)).noise  # noqa: B018


def test_a_federation_with_privacy_ends_with_the_spent_budget_in_its_report(tmp_path, digits):
    sites = write_sites(tmp_path, digits, dp=Privacy(epsilon=20.0, delta=1e-3, clip=1.0))
    sites[0] = replace(sites[0], dp=None)
    server = make_server(tmp_path, epochs=1)
    _, report = federate(server, schema_of(digits), sites)
    assert report["complete"]
    assert set(report["privacy"]) == {"birch", "cedar"}
    assert all(0 < spent["epsilon"] <= 20.0 for spent in report["privacy"].values())
    again = replace(server, state=tmp_path / "new", deadline=0.1, min_sites=3)
    with pytest.raises(TooFew):
        federate(again, schema_of(digits), sites, Hand(sites))
