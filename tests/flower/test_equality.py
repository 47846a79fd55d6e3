"""Sites that are visited one by one end with the clients of the simulation, for every method and both tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

import toys
from village import TINY, Hand, federate, make_server, parts, schema_of, simulate, state_of, write_sites

from fedekd import methods
from fedekd.errors import FedekdError
from fedekd.exchange import exchanges
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.visits import visits
from fedekd.flower.site import alone
from fedekd.runs.choosing import best_on_validation, option
from fedekd.runs.history import History
from fedekd.runs.plan import SMOOTH
from fedekd.runs.transfer import comparison
from fedekd.verdicts import judge
from tiny import BRIEF

TRAINED = [name for name, method in methods.known().items() if method.roles]
TOYS = [f"toys:{toy.__name__}" for toy in toys.TOYS]


@pytest.fixture
def short_menu(monkeypatch):
    """Sites train alone only what depends on the method: plain Local and its twin."""
    monkeypatch.setattr(alone, "SMOOTH", ())


def place(tmp_path, dataset, method, sites=3, alone="plain", **given):
    """A server, and sites that trust its method and let out all that it sends; public rows where it needs them."""
    made, more = methods.get(method), {}
    if made.public:
        file = tmp_path / "public.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        last = parts(dataset, 4)[-1]
        np.savez(file, x=last.x[:20], y=last.y[:20])
        more["public"] = file
    server = make_server(tmp_path, method=method, **more, **given)
    leave = tuple(exchanges(made, server.rounds))
    trusts = (*TINY.values(), method)
    return server, write_sites(tmp_path, dataset, sites, leave=leave, trusts=trusts, alone=alone, **more)


def same_as_simulated(tmp_path, dataset, method, atol=1e-5, alone="menu", **given):
    more = {"parameters": BRIEF.get(method, {}), "alone": alone, "batch_size": 32, **given}
    schema, (server, sites) = schema_of(dataset), place(tmp_path, dataset, method, **more)
    post = Hand(sites)
    _, report = federate(server, schema, sites, post)
    engine = simulate(server, schema, sites)
    assert report["complete"]
    assert report["refused"] == []
    by_name = {site["name"]: site for site in report["sites"]}
    for client in engine.clients:
        site = next(s for s in sites if s.name == client.name)
        ours, theirs = state_of(site)["client"], client.state()
        for what in ("models", "memory", "received", "round"):
            alike(ours[what], theirs[what], atol, f"{client.name} {what}")
        assert by_name[client.name]["value"] == pytest.approx(client.score(), abs=1e-6)
        assert by_name[client.name]["n"] == len(client.rows["train"])
    if alone == "menu":
        alone_as_simulated(server, schema, sites)
    layouts = sum(len(wire.layouts_text(reply)) for _, kind, reply in post.sent if kind == "visit")
    return report, engine, layouts


def alone_as_simulated(server, schema, sites):
    """What sites train alone, in every round, is what the whole federation's twin gives where all take part."""
    twin = f"{server.method}@alone"
    menus = {site.name: {one["label"]: one for one in own_report(site)["menu"]} for site in sites}
    if not exchanges(methods.get(server.method, **server.parameters), server.rounds):
        assert not any(twin in menu for menu in menus.values())
        return
    for client in simulate(replace(server, method=twin, participation=1.0), schema, sites).clients:
        assert menus[client.name][twin]["last"] == pytest.approx(client.score(), abs=1e-6), client.name


def own_report(site):
    (path,) = site.state.glob("*/report.json")
    return json.loads(path.read_text())


def alike(ours, theirs, atol, where):
    if isinstance(theirs, torch.Tensor):
        assert torch.allclose(ours.double(), theirs.double(), atol=atol, rtol=0), where
    elif isinstance(theirs, Mapping):
        assert set(ours) == set(theirs), where
        for key in theirs:
            alike(ours[key], theirs[key], atol, f"{where} {key}")
    elif isinstance(theirs, (list, tuple)):
        for k, one in enumerate(theirs):
            alike(ours[k], one, atol, f"{where} {k}")
    else:
        assert ours == theirs, where


@pytest.mark.usefixtures("short_menu")
@pytest.mark.parametrize("name", [*[n for n in TRAINED if "classification" in methods.get(n).tasks], *TOYS])
def test_classification(tmp_path, digits, name):
    report, engine, layouts = same_as_simulated(tmp_path, digits, method=name)
    sent, count = engine.door.bytes_up, len(visits(engine.method, 2))
    assert sent <= report["bytes_up"] - layouts <= sent + 3 * count * 250, (
        "nothing but what is exchanged, its layout and a few words"
    )


@pytest.mark.usefixtures("short_menu")
@pytest.mark.parametrize(
    "name", [n for n in [*TRAINED, *TOYS] if "regression" in methods.get(n).tasks and "-" not in n]
)
def test_regression(tmp_path, diabetes, name):
    same_as_simulated(tmp_path, diabetes, method=name, batch_size=16)


@pytest.mark.usefixtures("short_menu")
@pytest.mark.parametrize("name", ["fedekd", "feddyn", "fedtype", *TOYS])
def test_half_of_the_sites_in_each_round(tmp_path, digits, name):
    """Four sites, two of them in a round: one that comes back begins with the newest answers."""
    alone = "plain" if name in TOYS else "menu"
    given = {"method": name, "rounds": 5, "participation": 0.5, "sites": 4, "alone": alone}
    report, engine, _ = same_as_simulated(tmp_path, digits, **given)
    sending = [visit for visit in visits(engine.method, 5) if visit.sends]
    assert [len(names) for names in report["counted"]] == [2] * len(sending) + [4], "all tell how they did"
    assert len({tuple(names) for names in report["counted"]}) > 2


@pytest.mark.usefixtures("short_menu")
@pytest.mark.parametrize("combine", ["median", "trimmed", "krum"])
@pytest.mark.parametrize("name", ["fedekd", "fedavgm", "scaffold"])
def test_robust_combination(tmp_path, digits, name, combine):
    """One mechanism: to the bit."""
    given = {"method": name, "combine": combine, "min_sites": 3, "sites": 4}
    report, *_ = same_as_simulated(tmp_path, digits, atol=0, **given)
    assert report["combine"] == combine


def test_a_method_that_takes_no_mean_is_refused_before_the_sites_train(tmp_path, digits):
    server, sites = place(tmp_path, digits, "fedproto", combine="median", min_sites=3)
    with pytest.raises(FedekdError, match=r"how it combines 'prototypes'.*takes no mean"):
        federate(server, schema_of(digits), sites)
    assert not server.state.exists()


@pytest.mark.usefixtures("short_menu")
def test_the_baseline_is_local_training(tmp_path, digits):
    report, *_ = same_as_simulated(tmp_path, digits, method="fedekd", rounds=3)
    schema, sites = schema_of(digits), write_sites(tmp_path / "again", digits)
    alone = simulate(make_server(tmp_path, method="local", rounds=3, batch_size=32), schema, sites)
    for site, client in zip(report["sites"], alone.clients, strict=True):
        assert site["local"] == pytest.approx(client.score(), abs=1e-6)
        assert site["delta"] == pytest.approx(site["value"] - site["local"])


@pytest.mark.parametrize(("data", "method"), [("digits", "fedekd"), ("diabetes", "fedekd"), ("digits", "scaffold")])
def test_what_a_site_does_alone_is_what_a_simulation_says_of_it(request, tmp_path, data, method):
    """Chosen rounds, validation losses, the best alone and the verdict: as `--alone menu` has them of all clients."""
    dataset, rounds = request.getfixturevalue(data), 4
    schema, (server, sites) = (
        schema_of(dataset),
        place(tmp_path, dataset, method, alone="menu", rounds=rounds, batch_size=8),
    )
    federate(server, schema, sites)
    menu = ["local", *SMOOTH, f"{method}@alone"]
    records = {label: record(server, schema, sites, label) for label in [*menu, method]}
    for position, client in enumerate(records[method]["clients"]):
        own = own_report(next(site for site in sites if site.name == client["id"]))
        options = [option(records[label], position) for label in menu]
        assert [one["label"] for one in own["menu"]] == menu
        for one, other in zip(own["menu"], options, strict=True):
            assert one["round"] == other.round
            assert (one["value"], one["val_loss"]) == pytest.approx((other.value, other.val_loss), abs=1e-5)
            assert one["last"] == pytest.approx(records[one["label"]]["clients"][position]["value"], abs=1e-5)
        best = best_on_validation(options, client["n_val"], client["metric"] == "accuracy")
        joined = option(records[method], position)
        (verdict,) = judge([comparison([joined], [best], client["metric"])])
        value, local, twin = (records[label]["clients"][position]["value"] for label in (method, "local", menu[-1]))
        assert (own["alone"]["label"], own["alone"]["round"]) == (best.label, best.round)
        assert own["joined"]["round"] == joined.round
        assert own["joined"]["value"] == pytest.approx(joined.value, abs=1e-5)
        parts = (own["delta"], own["recipe"], own["federation"], own["gain"])
        assert parts == pytest.approx((value - local, twin - local, value - twin, joined.value - best.value), abs=1e-5)
        assert own["delta"] == pytest.approx(own["recipe"] + own["federation"])
        told = own["verdict"]
        assert (told["state"], told["rows_needed"]) == (verdict.state, verdict.rows_needed)
        for name in ("low", "high", "p", "margin", "detectable", "rows"):
            assert told[name] == pytest.approx(getattr(verdict, name), abs=1e-5), name


def record(server, schema, sites, method):
    """A run of the simulation, as far as its clients go."""
    engine, history = simulate(replace(server, method=method), schema, sites, rounds=0), History.fresh(1)
    for round in range(server.rounds):
        engine.round()
        history.add(round + 1, engine.measure(), engine.job.training)
    clients = [
        {"id": c.name, "metric": c.task.metric, "n_val": len(c.rows["val"]), "n_test": len(c.rows["test"]), **row}
        for c, row in zip(engine.clients, history.clients(0, engine.job), strict=True)
    ]
    return {
        "label": method, "metric": clients[0]["metric"], "params": {"rounds": server.rounds}, "clients": clients
    }  # fmt: skip


@pytest.mark.usefixtures("short_menu")
def test_all_that_training_can_be_given_reaches_the_sites(tmp_path, digits):
    given = {"weight_decay": 0.1, "lr_schedule": "cosine", "augment": "flip-crop"}
    _, engine, _ = same_as_simulated(tmp_path, digits, method="fedekd", rounds=3, **given)
    assert {name: getattr(engine.job.training, name) for name in given} == given
    _, plain, _ = same_as_simulated(tmp_path / "plain", digits, method="fedekd", rounds=3)
    ours, theirs = (one.clients[0].weights("private") for one in (engine, plain))
    assert not any(torch.equal(ours[n], theirs[n]) for n in ours)


@pytest.mark.usefixtures("short_menu")
def test_weighted_by_samples(tmp_path, digits):
    same_as_simulated(tmp_path, digits, method="fedavg", weighting="samples", epochs=2)


def test_a_lost_answer_is_asked_for_again_and_changes_nothing(tmp_path, digits):
    schema, server = schema_of(digits), make_server(tmp_path, method="feddyn")
    sites = write_sites(tmp_path, digits)
    lost = []

    def spoil(name, kind, reply):
        if kind == "visit" and len(lost) < 4:
            lost.append(name)
            return None
        return reply

    post = Hand(sites, spoil)
    _, report = federate(server, schema, sites, post)
    assert report["complete"]
    assert len(lost) == 4
    engine = simulate(server, schema, sites)
    for client, site in zip(engine.clients, sites, strict=True):
        ours = state_of(site)["client"]["models"]["private"]
        assert all(torch.allclose(ours[k], w, atol=1e-5) for k, w in client.models["private"].state_dict().items())
