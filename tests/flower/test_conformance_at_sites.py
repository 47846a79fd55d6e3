"""Sites keep the contract of the engines: the same numbers, or the same line that refuses a method; with [dp] too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

import village

import hostile
from conforming import DONE, MANY, REFUSED, alike, called, job, outcome, refusal
from fedekd.errors import FedekdError
from fedekd.exchange import exchanges
from fedekd.flower.server.conversation import TooFew
from fedekd.methods import Exchange
from hostile import Probe


def at_sites(folder, method, caplog, sites=3, **given):
    """What each site ends with, and the simulation of the same rows; or the line that refused it at a site."""
    dataset, more = MANY.dataset, {}
    if method.public or getattr(method, "where", "") == "refine" or getattr(method, "split", "") == "public":
        np.savez(folder / "public.npz", x=dataset.x[:12], y=dataset.y[:12])
        more["public"] = folder / "public.npz"
    name, schema = f"hostile:{type(method).__name__}", village.schema_of(dataset)
    server = village.make_server(folder, method=name, parameters=vars(method), batch_size=8, **more, **given)
    leave = tuple(exchanges(method, server.rounds))
    trusts = (*village.TINY.values(), name)
    own = village.write_sites(folder, dataset, sites, leave=leave, trusts=trusts, **more)

    def deployed(_):
        with caplog.at_level("ERROR", "fedekd.site"):
            try:
                _, report = village.federate(server, schema, own)
            except (FedekdError, TooFew) as error:
                raise FedekdError(_first_failure(caplog) or str(error)) from None
        if report["refused"] and (line := _first_failure(caplog)):
            raise FedekdError(line)
        values = {site["name"]: site["value"] for site in report["sites"]}
        return [{**village.state_of(site)["client"], "value": values[site.name]} for site in own]

    def simulated(_):
        engine = village.simulate(server, schema, own)
        return [{**client.state(), "value": client.score()} for client in engine.clients]

    return outcome(deployed, []), outcome(simulated, [])


def _first_failure(caplog):
    lines = [record.getMessage() for record in caplog.records if record.name == "fedekd.site"]
    return lines[0] if lines else None


def kept_at_sites(pair, refused=None):
    deployed, simulated = pair
    if isinstance(deployed, str) or isinstance(simulated, str):
        assert isinstance(simulated, str), deployed
        assert simulated in deployed, f"{simulated!r} and {deployed!r}"
        assert refused is not None, simulated
        assert refused in simulated
    else:
        assert refused is None, "nobody has refused it"
        for ours, theirs in zip(deployed, simulated, strict=True):
            alike(ours, theirs)


AT_SITES = [
    Probe(what, where, summed="gradients" in what, wide="features" in what)
    for what, where in [
        ("outputs", "remember a split"),
        ("features", "train"),
        ("weights of a role at home", "train"),
        ("received", "copy"),
        ("received by name", "predict"),
        ("memory", "send"),
        ("gradients", "send a split"),
        ("uniform", "remember a split"),
        ("rows", "train"),
        ("counts", "send"),
        ("steps", "personal train"),
        ("gradient", "train"),
        ("apply", "predict"),
        ("lr", "copy"),
        ("y", "refine"),
        ("teachers", "refine"),
        ("outputs of another", "train"),
        ("weights of another", "predict"),
        ("received of a role at home", "remember"),
        ("memory that is not there", "send"),
        ("apply", "send a split"),
        ("features of another", "train"),
        ("memory", "refine"),
        ("gradients of another", "copy"),
    ]
]


@pytest.mark.parametrize("probe", AT_SITES, ids=called)
def test_what_a_step_reads_at_a_site(tmp_path, caplog, probe):
    kept_at_sites(at_sites(tmp_path, probe, caplog), refusal(probe.what, probe.where, probe))


@pytest.mark.parametrize("method", [m for m in DONE if not isinstance(m, hostile.Changing)], ids=str)
def test_what_a_method_does_at_sites(tmp_path, caplog, method):
    kept_at_sites(at_sites(tmp_path, method, caplog, rounds=3))


@pytest.mark.parametrize("method", [hostile.Seldom(), hostile.Into(), hostile.Each(True), hostile.Refined()], ids=str)
def test_half_of_the_sites_in_each_round(tmp_path, caplog, method):
    kept_at_sites(at_sites(tmp_path, method, caplog, sites=4, rounds=5, participation=0.5))


UNUSABLE = (hostile.AnswerWide, hostile.AnswerUnknown)  # a site looks at an answer before its model does


@pytest.mark.parametrize(("method", "words"), REFUSED, ids=lambda v: type(v).__name__)
def test_what_no_site_does(tmp_path, caplog, method, words):
    deployed, simulated = at_sites(tmp_path, method, caplog)
    if isinstance(method, UNUSABLE):
        assert "the server's answer for the private model cannot be used" in deployed
        assert words in simulated
    else:
        kept_at_sites((deployed, simulated), words)


# --- with differential privacy -------------------------------------------------------------------------------


def with_dp(folder, method, **training):
    """A client with all rows in every batch, no noise and a clip that nothing reaches; and a plain one."""
    pytest.importorskip("opacus", reason="pip install 'fedekd[dp]'")
    from fedekd.engines.client import Client
    from fedekd.flower.settings import Privacy
    from fedekd.flower.site.privacy import PrivateClient

    one = replace(MANY, clients=MANY.clients[:1], names=MANY.names[:1])
    settings = {"batch_size": 500, "optimizer": "sgd", "lr": 0.1, "rounds": 1, "epochs": 3, **training}
    alone, dp = job(method, one, **settings), Privacy(epsilon=float("inf"), delta=1e-3, clip=1e9)

    def private(_):
        client = PrivateClient(alone, 0, dp, folder / "site" / "federation")
        client.budget.noise = 0.0
        return played(client)

    def plain(_):
        return played(Client(alone, 0, 0))

    def played(client):
        uploads = {}
        for step in method.steps(0):
            if isinstance(step, Exchange):
                uploads[step.name] = client.upload(step, 0)
            else:
                client.perform(step, 0)
        return {"uploads": uploads, "models": {role: client.weights(role) for role in client.models}}

    return outcome(private, []), outcome(plain, [])


@pytest.mark.parametrize("method", [hostile.Toy(), hostile.Heads(), hostile.Trusting(), hostile.Copies()], ids=str)
def test_without_noise_and_clip_dp_is_plain_training(tmp_path, method):
    private, plain = with_dp(tmp_path, method)
    if isinstance(private, str):
        assert "leave [dp] out" in private
        assert "\n" not in private
        assert isinstance(method, hostile.Copies), private
    else:
        alike(private, plain)


DP_REFUSES = [
    (hostile.Settings(), "reads the gradients"),
    (hostile.Seldom(), "reads the gradients"),
    (hostile.Each(False, True), "sends what the method calls 'table'"),
    (hostile.Into(), "leave [dp] out"),
    (hostile.VectorLoss(), "take its mean"),
    (Probe("outputs of another", "train"), "leave [dp] out"),
    (Probe("memory that is not there", "train"), "[dp]"),
]


@pytest.mark.parametrize(("method", "words"), DP_REFUSES, ids=lambda v: type(v).__name__)
def test_what_dp_refuses_is_one_line(tmp_path, method, words):
    private, _ = with_dp(tmp_path, method)
    assert isinstance(private, str)
    assert words in private
    assert "\n" not in private
