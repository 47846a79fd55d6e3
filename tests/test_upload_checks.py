"""What the server does not believe: models of another size, of another direction, or against their own past; and that
honest sites with unlike rows are believed."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedekd.upload_checks import ROUNDS, UploadChecks, outsized

HOME = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def attacks():
    """docs/make_attacks.py, which simulates bad clients."""
    spec = importlib.util.spec_from_file_location("make_attacks", HOME / "docs" / "make_attacks.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def model(seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return {"w": scale * torch.randn(5, 4, generator=generator), "b": torch.zeros(4), "count": torch.tensor(1)}


# --- size ------------------------------------------------------------------------------------------------------------


def test_norms_far_from_the_others():
    honest = {f"site{k}": model(k) for k in range(3)}
    assert outsized(honest, model(7)) == {}
    (large,) = outsized({**honest, "large": model(9, scale=100)}, model(7)).items()
    assert large[0] == "large"
    assert "is far from" in large[1]
    assert "the median of 4 sites" in large[1]
    assert list(outsized({**honest, "zero": model(9, scale=0)}, model(7))) == ["zero"]
    assert outsized(honest, model(7, scale=1000)) == {}, "three sites need no other judge"


@pytest.mark.parametrize("scale", [0, 0.1, 10, 1e30])
def test_of_two_sites_the_global_model_tells_which_is_wrong(scale):
    ((name, reason),) = outsized({"bad": model(1, scale=scale), "good": model(2, scale=2)}, model(7)).items()
    assert name == "bad"
    assert "the median of 2 sites and the global model" in reason


@pytest.mark.parametrize("scale", [0.01, 100])
def test_two_sites_that_agree_have_learnt_much(scale):
    pair = {"a": model(1, scale=scale), "b": model(2, scale=2 * scale)}
    assert outsized(pair, model(7)) == {}


def test_one_site_is_compared_with_the_global_model():
    assert all(outsized({"a": model(1, scale=scale)}, model(7)) == {} for scale in (0.1, 1, 10))
    for scale in (0, 0.01, 100):
        assert "the global model's" in outsized({"a": model(1, scale=scale)}, model(7))["a"]


def test_a_model_that_begins_with_zeros_judges_nobody():
    zero = model(7, scale=0)
    assert outsized({"a": model(1)}, zero) == {}
    assert outsized({"a": model(1), "b": model(2)}, zero) == {}
    assert list(outsized({"a": model(1), "b": model(2, scale=100)}, zero)) == ["b"]
    assert outsized({}, model(7)) == {}


# --- direction and history -------------------------------------------------------------------------------------------


def near(held, direction, length=0.3, seed=0):
    """A model that has learnt in a direction, and something of its own."""
    own = torch.randn(300, generator=torch.Generator().manual_seed(seed))
    return {"w": held["w"] + length * (direction + 0.5 * own), "count": torch.tensor(seed)}


@pytest.fixture
def held():
    return {"w": torch.randn(300, generator=torch.Generator().manual_seed(100)), "count": torch.tensor(0)}


@pytest.fixture
def way():
    return torch.randn(300, generator=torch.Generator().manual_seed(101))


def visit(checks, messages, held, counted=None):
    found = checks.refused("proxy", messages, held, True)
    checks.remember(set(messages) - set(found) if counted is None else counted)
    return found


def sites(held, way, count, first=0):
    return {f"site{k}": near(held, way, seed=first + k) for k in range(count)}


@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize("scale", [-4.9, -1.0, -0.3])
def test_a_model_turned_round_is_refused_at_once(held, way, count, scale):
    messages = sites(held, way, count)
    messages["site0"] = {"w": scale * messages["site0"]["w"], "count": torch.tensor(0)}
    ((site, reason),) = visit(UploadChecks(), messages, held).items()
    assert site == "site0"
    assert "points away from the global model (cosine -0." in reason


def test_updates_against_the_others_are_refused_once_they_are_a_habit(held, way):
    checks = UploadChecks()
    for round in range(6):
        messages = {**sites(held, way, 4, 10 * round), "bad": near(held, -way, seed=round)}
        found = visit(checks, messages, held)
        assert list(found) == (["bad"] if round + 1 >= ROUNDS else [])
    assert "point against the other sites' (cosine -0." in found["bad"]
    assert "over its last 6" in found["bad"]


def test_a_site_that_turns_is_refused_at_once_by_its_own_past(held, way):
    """Also one of two, where nobody could say who is against whom, and where all sites learn something else."""
    ways = [way, torch.randn(300, generator=torch.Generator().manual_seed(7))]
    checks, other = UploadChecks(), UploadChecks()
    for round in range(5):
        messages = {f"site{k}": near(held, ways[k], seed=10 * round + k) for k in range(2)}
        assert visit(checks, messages, held) == {}
        assert visit(other, {**messages, "third": near(held, way, seed=round)}, held) == {}
    messages["site1"] = near(held, -ways[1])
    assert "against its own earlier ones" in visit(other, {**messages, "third": near(held, way)}, held)["site1"]
    checks.restore(other.state())
    assert list(visit(checks, messages, held)) == ["site1"]


def test_what_did_not_count_is_no_past(held, way):
    """A site that lied once and was refused is not held to its lie."""
    checks = UploadChecks()
    for round in range(4):
        visit(checks, sites(held, way, 3, 10 * round), held)
    lie = {**sites(held, way, 3, 50), "site0": near(held, -way, 3.0)}
    assert list(visit(checks, lie, held)) == ["site0"]
    assert visit(checks, sites(held, way, 3, 60), held) == {}


def test_where_the_sites_do_not_agree_nobody_is_against_them(held):
    ways = [torch.randn(300, generator=torch.Generator().manual_seed(200 + k)) for k in range(4)]
    checks = UploadChecks()
    for round in range(6):
        messages = {f"site{k}": near(held, way, seed=10 * round + k) for k, way in enumerate([*ways, -ways[0]])}
        assert visit(checks, messages, held) == {}


def test_models_that_begin_with_zeros_have_no_direction(way):
    zero = {"w": torch.zeros(300), "count": torch.tensor(0)}
    messages = {**sites(zero, way, 3), "other": near(zero, -way)}
    assert visit(UploadChecks(), messages, zero) == {}
    assert visit(UploadChecks(), {"a": zero, "b": zero, "c": zero}, zero) == {}


def test_history_is_kept_over_a_restart_and_not_by_a_visit_that_failed(held, way):
    checks = UploadChecks()
    for round in range(5):
        messages = {**sites(held, way, 4, 10 * round), "bad": near(held, -way, seed=round)}
        checks.refused("proxy", messages, held, True)
    assert checks.state() == UploadChecks().state()
    checks.remember(messages)
    again = UploadChecks()
    again.restore(checks.state())
    assert again.agreement == checks.agreement
    again.restore({})
    assert again.agreement == {}


# --- real rows -------------------------------------------------------------------------------------------------------


def trained(attacks, method, attack="none", bad=0, combine="mean", **given):
    engine = attacks.federation_of(attacks.Case(method, attack, bad, combine, True, 0), **given)
    for _ in range(engine.job.training.rounds):
        engine.round()
    return engine


@pytest.mark.parametrize("method", ["fedavg", "fedekd"])
@pytest.mark.parametrize(
    "rows",
    [
        {"alpha": 0.1},
        {"dataset": "heart"},
        {"dataset": "diabetes", "alpha": 0.1, "clients": 4},
        {"alpha": 0.1, "participation": 0.5, "lr": 0.03},
    ],
)
def test_no_honest_client_is_refused(attacks, method, rows):
    assert trained(attacks, method, **rows).refused == (0, 0)


@pytest.mark.parametrize("method", ["fedavg", "fedekd"])
def test_an_honest_client_with_a_single_class_among_five_alike_is_believed(attacks, method):
    engine = attacks.federation_of(attacks.Case(method, "none", 0, "mean", True, 0), alpha=100.0)
    federation = engine.job.federation
    first, y = federation.clients[0], federation.dataset.y
    lone = replace(first, **{part: rows[y[rows] == 0] for part, rows in vars(first).items()})
    job = replace(engine.job, federation=replace(federation, clients=(lone, *federation.clients[1:])))
    engine = attacks.AttackedFederation(job)
    engine.checks = UploadChecks()
    for _ in range(10):
        engine.round()
    assert engine.refused == (0, 0)
    ((own, *others),) = (list(by_site.values()) for by_site in engine.checks.agreement.values())
    assert sum(own) / 10 < 0.15
    assert all(sum(values) / 10 > 0.4 for values in others), "the others agree, so that it could be told apart"


@pytest.mark.parametrize("method", ["fedavg", "fedekd"])
def test_a_client_whose_rows_contradict_the_others_is_believed_at_first(attacks, method):
    """Flipped labels at very unlike clients look like honest ones; that is what robust combination is for."""
    assert trained(attacks, method, "flipped labels", 1, alpha=0.1).refused == (0, 0)


@pytest.mark.parametrize(("attack", "least"), [("reversed model", 10), ("reversed update", 7)])
@pytest.mark.parametrize("bad", [1, 2])
def test_bad_clients_are_refused_and_the_others_learn(attacks, attack, least, bad):
    engine = trained(attacks, "fedavg", attack, bad, alpha=10.0)
    assert engine.refused[0] >= least * bad
    assert engine.refused[1] == 0
    assert sum(engine.evaluate()[0][bad:]) / (6 - bad) > 0.9
