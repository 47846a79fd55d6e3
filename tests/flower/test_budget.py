"""The ledger: what is repeated is paid for once, all else anew, and nothing past the budget or beside it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")
pytest.importorskip("opacus", reason="pip install 'fedekd[dp]'")

from dp_client import DP, client, sent, trains
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from scipy.stats import norm

from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import Failed
from fedekd.flower.settings import Privacy
from fedekd.flower.site import dp_sgd
from fedekd.flower.site.dp_sgd import Budget
from fedekd.methods.base import Exchange


def spent(one):
    return one.budget.epsilon


@pytest.mark.parametrize("method", ["fedekd", "fedavg", "fedprox", "feddyn", "fedtype"])
def test_the_budget_is_kept_and_used(tmp_path, digits, method):
    one = client(tmp_path / "a", digits, method)
    for round in range(2):
        for step in one.method.steps(round):
            if not isinstance(step, Exchange):
                one.perform(step, round)
    independent = PRVAccountant()
    for _ in range(one.budget.planned):
        independent.step(noise_multiplier=one.budget.noise, sample_rate=16 / len(one.rows["train"]))
    assert spent(one) == pytest.approx(independent.get_epsilon(1e-3))
    assert 0.95 * DP.epsilon < spent(one) <= DP.epsilon
    with pytest.raises(Failed, match="budget is spent"):
        sent(one)


@pytest.mark.parametrize(("rows", "batch", "rounds", "epochs"), [(96, 16, 2, 2), (64, 64, 3, 1)])
def test_opacus_itself_takes_the_same_noise(tmp_path, digits, rows, batch, rounds, epochs):
    """Its engine, told the same budget, epochs, rows and batches, for a model of its own."""
    one = client(
        tmp_path / "a", digits, rows=slice(rows), batch_size=batch, rounds=rounds, epochs=epochs
    )  # as many rows as whole batches: Opacus would draw with 1 / (number of batches)
    module = torch.nn.Linear(3, 2)
    data = torch.utils.data.TensorDataset(torch.randn(rows, 3), torch.zeros(rows, dtype=torch.long))
    engine = PrivacyEngine(accountant="prv")
    _, optimizer, loader = engine.make_private_with_epsilon(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=batch), target_epsilon=DP.epsilon,
        target_delta=DP.delta, epochs=rounds * epochs, max_grad_norm=DP.clip,
    )  # fmt: skip
    assert one.budget.noise == optimizer.noise_multiplier
    assert one.budget.rate == loader.sample_rate
    assert one.budget.planned == rounds * epochs * len(loader)
    for round in range(rounds):
        sent(one, round)
        for _ in range(epochs * len(loader)):
            engine.accountant.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=loader.sample_rate)
        assert spent(one) == pytest.approx(engine.get_epsilon(DP.delta))


@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(8.0, 0.1, 100), (2.0, 0.05, 200)])
def test_the_budget_takes_less_noise_than_by_renyi_divergence(epsilon, rate, steps):
    dp = Privacy(epsilon=epsilon)
    noise = dp_sgd._noise(dp, rate, steps)
    other = get_noise_multiplier(
        target_epsilon=epsilon, target_delta=dp.delta, sample_rate=rate, steps=steps, accountant="rdp"
    )
    assert 0.90 * other < noise < 0.96 * other
    assert dp_sgd._epsilon(((noise, rate, steps),), dp.delta) <= epsilon
    rdp = RDPAccountant()
    rdp.history = [(noise, rate, steps)]
    assert rdp.get_epsilon(dp.delta) > epsilon


@pytest.mark.parametrize(("noise", "steps"), [(4.0, 1), (8.0, 30), (20.0, 400)])
def test_the_bound_holds_where_the_exact_loss_is_known(noise, steps):
    """Without sampling, steps of the Gaussian mechanism are one of less noise (Balle and Wang, ICML 2018)."""
    mu, delta = steps**0.5 / noise, 1e-5
    epsilon = dp_sgd._epsilon(((noise, 1.0, steps),), delta)

    def exact(eps):
        return norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * norm.cdf(-mu / 2 - eps / mu)

    assert exact(epsilon) <= delta < exact(epsilon - 0.05)


def test_the_bound_holds_where_rows_are_drawn():
    """One step on rows drawn with probability q: the divergence of the two outcomes, by quadrature, both ways."""
    noise, q, delta = 1.0, 0.2, 1e-5
    epsilon = dp_sgd._epsilon(((noise, q, 1),), delta)
    x = np.linspace(-15, 16, 400_001)
    without = norm.pdf(x, 0, noise)
    with_it = (1 - q) * without + q * norm.pdf(x, 1, noise)

    def exact(eps):
        pairs = ((with_it, without), (without, with_it))
        return max(np.trapezoid(np.maximum(a - np.exp(eps) * b, 0), x) for a, b in pairs)

    assert exact(epsilon) <= delta < exact(epsilon - 0.05)


def test_a_ledger_begun_by_renyi_divergence_goes_on(tmp_path, digits):
    one = client(tmp_path / "a", digits)
    old = get_noise_multiplier(
        target_epsilon=DP.epsilon, target_delta=DP.delta, sample_rate=one.budget.rate, steps=one.budget.planned,
        accountant="rdp",
    )  # fmt: skip
    one.folder.mkdir(exist_ok=True)
    (one.folder / "spent.json").write_text(json.dumps({"noise": old, "weak": False, "spent": {}}))
    again = client(tmp_path / "a", digits)
    for round in range(2):
        sent(again, round)
    assert again.budget.noise == old
    assert 0.8 * DP.epsilon < spent(again) < 0.99 * DP.epsilon


def test_a_budget_too_large_for_the_finer_accountant_is_kept_by_the_other():
    dp = Privacy(epsilon=200.0)
    noise = dp_sgd._noise(dp, 0.1, 3)
    assert noise == get_noise_multiplier(
        target_epsilon=200.0, target_delta=dp.delta, sample_rate=0.1, steps=3, accountant="rdp"
    )
    assert dp_sgd._epsilon(((noise, 0.1, 3),), dp.delta) <= 200


def test_a_budget_is_spent_once(tmp_path, digits):
    sent(client(tmp_path / "first", digits))
    client(tmp_path / "first", digits)
    with pytest.raises(Failed, match="budget was spent in federation first"):
        client(tmp_path / "second", digits)


def test_two_federations_at_the_same_moment_do_not_both_spend(tmp_path, digits):
    """Each looks for the other before either has spent."""
    pair = [client(tmp_path / name, digits) for name in ("first", "second")]
    sent(pair[0])
    with pytest.raises(Failed, match="budget was spent in federation first"):
        sent(pair[1])


def test_what_is_repeated_is_spent_once_and_what_is_not_is_spent_again(tmp_path, digits):
    """The ledger outlives the process, and counts whatever the models on disk say."""
    first = client(tmp_path / "a", digits)
    sent(first)
    again = client(tmp_path / "a", digits)
    assert spent(again) == spent(first) > 0
    sent(again)
    assert spent(again) == spent(first), "the same visit, done again after a kill"

    forked = client(tmp_path / "a", digits)
    with torch.no_grad():
        for w in forked.models["proxy"].parameters():
            w.add_(0.01)  # a server that asks for the visit again with another model
    sent(forked)
    assert spent(forked) > spent(first)
    with torch.no_grad():
        next(forked.models["proxy"].parameters()).add_(0.01)
    with pytest.raises(Failed, match="budget is spent"):
        sent(forked)
    assert len(client(tmp_path / "a", digits).budget.ledger["spent"]) == 2


def test_the_budget_is_spent_before_the_noise_is_drawn(tmp_path, digits, monkeypatch):
    """A process that dies while it trains has spent, since nobody knows what became of its result."""
    one = client(tmp_path / "a", digits)
    monkeypatch.setattr(one, "train_with_noise", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        sent(one)
    assert spent(client(tmp_path / "a", digits)) > 0


def test_the_ledger_does_not_tell_the_noise(tmp_path, digits):
    one = client(tmp_path / "a", digits)
    seed = one.noise_key(trains(one), 0)
    sent(one)
    assert seed.hex() not in (tmp_path / "a" / "spent.json").read_text()


def test_a_weak_guarantee_stays_weak(tmp_path, digits):
    """What was sent once under a private teacher does not become better by another setting."""
    sent(client(tmp_path / "a", digits, dp=replace(DP, teacher="private")))
    later = client(tmp_path / "a", digits)
    sent(later, round=1)
    assert "for a fixed private model only" in later.privacy["guarantee"]


def test_a_spoilt_ledger_is_no_empty_one(tmp_path, digits):
    sent(client(tmp_path / "a", digits))
    for content in ("{", "[]", json.dumps({"noise": 1.0, "weak": False})):
        (tmp_path / "a" / "spent.json").write_text(content)
        with pytest.raises(FedekdError, match="cannot read what was spent"):
            client(tmp_path / "a", digits)


def test_an_impossible_budget_is_said(tmp_path):
    with pytest.raises(FedekdError, match=r"no noise keeps 20 steps within epsilon 1e-06.*raise epsilon"):
        Budget(replace(DP, epsilon=1e-6), tmp_path / "a", 0.1, 20).noise  # noqa: B018


def test_much_noise_for_a_large_delta_is_no_negative_epsilon(tmp_path):
    budget = Budget(replace(DP, epsilon=1e-3, delta=0.05), tmp_path / "a", 0.1, 1)
    budget.noise = 1000.0
    budget.spend("key", 1, weak=False)
    assert budget.epsilon == 0
