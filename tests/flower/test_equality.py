"""Sites that are visited one by one end with the private models of the simulation, for every method and both tasks."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from village import Hand, federate, make_server, schema_of, simulate, state_of, write_sites

from fedekd import methods
from fedekd.flower import wire

TRAINED = [name for name, method in methods.known().items() if method.roles]


def same_as_simulated(tmp_path, dataset, atol=1e-5, **given):
    schema, server = schema_of(dataset), make_server(tmp_path, **given)
    sites = write_sites(tmp_path, dataset)
    post = Hand(sites)
    _, report = federate(server, schema, sites, post)
    engine = simulate(server, schema, sites)
    assert report["complete"]
    by_name = {site["name"]: site for site in report["sites"]}
    for client in engine.clients:
        site = next(s for s in sites if s.name == client.name)
        ours = state_of(site)["client"]["models"]["private"]
        for name, weights in client.models["private"].state_dict().items():
            assert torch.allclose(ours[name], weights, atol=atol, rtol=0), (client.name, name)
        assert by_name[client.name]["value"] == pytest.approx(client.score(), abs=1e-6)
        assert by_name[client.name]["n"] == len(client.rows["train"])
    layouts = sum(len(wire._layouts(reply)) for _, kind, reply in post.sent if kind == "visit")
    return report, engine, layouts


@pytest.mark.parametrize("name", TRAINED)
def test_classification(tmp_path, digits, name):
    report, engine, layouts = same_as_simulated(tmp_path, digits, method=name)
    sent = engine.door.bytes_up
    assert sent <= report["bytes_up"] - layouts <= sent + 3 * 3 * 200, (
        "nothing but the model, its layout and a few words"
    )


@pytest.mark.parametrize("name", [n for n in TRAINED if "regression" in methods.get(n).tasks and "-" not in n])
def test_regression(tmp_path, diabetes, name):
    same_as_simulated(tmp_path, diabetes, method=name, batch_size=8)


def test_the_baseline_is_local_training(tmp_path, digits):
    report, *_ = same_as_simulated(tmp_path, digits, method="fedekd", rounds=3)
    schema, sites = schema_of(digits), write_sites(tmp_path / "again", digits)
    alone = simulate(make_server(tmp_path, method="local", rounds=3), schema, sites)
    for site, client in zip(report["sites"], alone.clients, strict=True):
        assert site["local"] == pytest.approx(client.score(), abs=1e-6)
        assert site["delta"] == pytest.approx(site["value"] - site["local"])


def test_weighted_by_samples(tmp_path, digits):
    same_as_simulated(tmp_path, digits, method="fedavg", weighting="samples")


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
