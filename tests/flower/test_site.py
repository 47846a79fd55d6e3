"""A site decides what runs there and what leaves it, and a killed visit is done again to the same bit."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from village import Hand, federate, local_of, make_server, schema_of, state_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.server.conversation import TooFew
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.settings import SHARED, Privacy, read_site
from fedekd.flower.site.audit import read_audit
from fedekd.flower.site.handlers import answer
from fedekd.methods import Exchange, Method, Train
from fedekd.runs import saved_models

FEDERATION = "0123456789abcdef"


@pytest.fixture
def schema(digits):
    return schema_of(digits)


def payload(server, schema, **words):
    return Payload({"federation": FEDERATION, "terms": Terms.of(server).text(), "schema": schema.text(), **words})


def visit(number=0, **words):
    return Payload({"federation": FEDERATION, "visit": number, "number": 0, **words})


def code(reply):
    return StatusCode(reply.words["code"])


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "feddyn"])
def test_the_private_model_stays_unless_the_site_lets_it_go(tmp_path, digits, schema, method):
    (site,) = write_sites(tmp_path, digits, leave=("proxy",))[:1]
    server = make_server(tmp_path, method=method)
    assert code(answer(site, "join", payload(server, schema))) == StatusCode.REFUSED
    assert code(answer(site, "visit", visit())) == StatusCode.UNKNOWN
    sites = write_sites(tmp_path / "all", digits, leave=("proxy",))
    post = Hand(sites)
    with pytest.raises(TooFew):
        federate(replace(server, deadline=0.1), schema, sites, post)
    assert all(reply.models == {} for _, _, reply in post.sent)


class Headed(Method):
    """Sends a model of a role that fedekd's own methods do not have"""

    roles = ("private", "head")

    def steps(self, round):
        private = Train(("private",), lambda batch: batch.supervised("private"))
        return private, Train(("head",), lambda batch: batch.supervised("head")), Exchange("head")


def test_a_role_of_a_methods_own_naming_can_be_let_go(tmp_path, digits, schema):
    file, own = tmp_path / "site.toml", "test_site:Headed"
    file.write_text('name = "a"\nserver = "a:1"\nca = "c"\nkey = "k"\nstate = "s"\ndata = "digits"\nleave = ["head"]')
    server, given = make_server(tmp_path, method=own, proxy=None), {"trusts": ("tiny:tiny_private", own)}
    keeps, *_ = write_sites(tmp_path / "keeps", digits, **given)
    assert code(answer(keeps, "join", payload(server, schema))) == StatusCode.REFUSED
    sites = write_sites(tmp_path / "all", digits, leave=read_site(file).leave, **given)
    post = Hand(sites)
    assert federate(server, schema, sites, post)[1]["complete"]
    assert {role for _, _, reply in post.sent for role in reply.models} == {"head"}


def test_code_of_the_servers_choice_is_not_imported(tmp_path, digits, schema):
    (site,) = write_sites(tmp_path, digits, trusts=("tiny:tiny_private", "tiny:tiny_proxy"))[:1]
    for given in (
        {"proxy": "antigravity:fly"},
        {"proxy": "antigravity"},  # no attribute, and imported all the same if it came so far
        {"private": "antigravity"},
        {"method": "antigravity:Method"},
        {"private": "os:abort"},
        {"proxy": ["antigravity:fly"]},
    ):
        assert code(answer(site, "join", payload(make_server(tmp_path, **given), schema))) == StatusCode.REFUSED
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("name", ["../../etc", "", "0123", "0123456789ABCDEF", 5])
def test_a_federation_cannot_choose_its_folder(tmp_path, digits, schema, name):
    (site,) = write_sites(tmp_path, digits)[:1]
    assert code(answer(site, "join", payload(make_server(tmp_path), schema, federation=name))) == StatusCode.REFUSED
    assert not [path for path in site.state.iterdir() if path.is_dir()]


def test_terms_cannot_change_in_the_middle(tmp_path, digits, schema):
    (site,) = write_sites(tmp_path, digits)[:1]
    assert code(answer(site, "join", payload(make_server(tmp_path), schema))) == StatusCode.DONE
    assert code(answer(site, "join", payload(make_server(tmp_path), schema))) == StatusCode.DONE
    assert code(answer(site, "join", payload(make_server(tmp_path, rounds=9), schema))) == StatusCode.REFUSED


@pytest.mark.parametrize(
    "given",
    [
        {"epochs": 10**9}, {"rounds": 0}, {"batch_size": True}, {"lr": float("inf")}, {"lr": float("nan")},
        {"seed": "0"}, {"optimizer": "lbfgs"}, {"weighting": "mine"}, {"parameters": []}, {"method": 5},
        {"weight_decay": -1.0}, {"weight_decay": "0.1"}, {"lr_schedule": "linear"}, {"augment": "mixup"},
    ],
)  # fmt: skip
def test_absurd_terms_are_refused(tmp_path, digits, schema, given):
    (site,) = write_sites(tmp_path, digits)[:1]
    assert code(answer(site, "join", payload(make_server(tmp_path, **given), schema))) == StatusCode.REFUSED
    assert not [path for path in site.state.iterdir() if path.is_dir()]


def test_images_are_not_augmented_with_privacy(tmp_path, digits, schema, caplog):
    (site,) = write_sites(tmp_path, digits, dp=Privacy(epsilon=8.0, delta=1e-3))[:1]
    assert code(answer(site, "join", payload(make_server(tmp_path, augment="flip-crop"), schema))) == StatusCode.REFUSED
    assert "images flipped and cropped, which is not done with [dp]; leave one of them out" in caplog.text


def test_work_without_end_is_broken_off(tmp_path, digits, schema):
    """A hundred thousand epochs are within the terms; the site's own limit ends them, and nothing is kept."""
    (site,) = write_sites(tmp_path, digits, longest=1.0)[:1]
    assert code(answer(site, "join", payload(make_server(tmp_path, epochs=100_000), schema))) == StatusCode.DONE
    assert code(answer(site, "visit", visit())) == StatusCode.TRAINING
    assert not list(site.state.glob("*/state.pt"))


def with_one(arrays, value):
    first = next(iter(arrays))
    changed = arrays[first].copy()
    changed.flat[0] = value
    return {**arrays, first: changed}


@pytest.mark.parametrize(
    ("role", "change"),
    [
        ("private", lambda packed: replace(packed, arrays=with_one(packed.arrays, np.nan))),
        ("private", lambda packed: replace(packed, arrays={k: a[:1] for k, a in packed.arrays.items()})),
        ("private", lambda packed: replace(packed, arrays=dict(list(packed.arrays.items())[1:]))),
        ("private", lambda packed: replace(packed, how="pickle")),
        ("proxy", lambda packed: packed),
    ],
)
def test_a_broken_global_model_does_not_touch_the_sites_own(tmp_path, digits, schema, role, change):
    """In the last visit of FedAvg nothing trains, so that nothing else would notice."""
    (site,) = write_sites(tmp_path, digits)[:1]
    answer(site, "join", payload(make_server(tmp_path, method="fedavg", rounds=1, epochs=1), schema))
    good = answer(site, "visit", visit()).models["private"]
    before = state_of(site)
    reply = answer(site, "visit", replace(visit(1), models={role: change(good)}))
    assert code(reply) == StatusCode.MODEL
    assert reply.models == {}
    after = state_of(site)
    assert all(
        torch.equal(w, after["client"]["models"]["private"][k])
        for k, w in before["client"]["models"]["private"].items()
    )
    assert code(answer(site, "visit", replace(visit(1), models={"private": good}))) == StatusCode.DONE


def test_a_visit_that_was_left_out_is_not_done_after_a_later_one(tmp_path, digits, schema):
    """Else a server could have one visit done twice, with two models to compare."""
    (site,) = write_sites(tmp_path, digits)[:1]
    answer(site, "join", payload(make_server(tmp_path, rounds=4, epochs=1), schema))
    for number in (0, 2):
        assert code(answer(site, "visit", visit(number))) == StatusCode.DONE
    assert code(answer(site, "visit", visit(1))) == StatusCode.STATE
    assert code(answer(site, "visit", visit(0))) == StatusCode.DONE, "kept, and given once more"


def test_a_full_disk_is_a_code_and_the_last_state_stays(tmp_path, digits, schema, monkeypatch):
    (site,) = write_sites(tmp_path, digits)[:1]
    answer(site, "join", payload(make_server(tmp_path, epochs=1), schema))
    kept = answer(site, "visit", visit(0))
    folder = site.state / FEDERATION
    versions = {name: (folder / name).read_bytes() for name in ("state.pt",)}

    def full(fd):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert code(answer(site, "visit", visit(1))) == StatusCode.STATE
    assert {name: (folder / name).read_bytes() for name in versions} == versions
    assert answer(site, "visit", visit(0)).words == kept.words
    assert code(answer(site, "visit", visit(1))) == StatusCode.DONE


@pytest.mark.parametrize("words", [{"visit": 99}, {"visit": -1}, {"visit": "x"}, {"number": None}, {}])
def test_nonsense_is_a_code(tmp_path, digits, schema, words):
    (site,) = write_sites(tmp_path, digits)[:1]
    answer(site, "join", payload(make_server(tmp_path), schema))
    reply = answer(site, "visit", visit(**words) if words else Payload({}))
    assert code(reply) in (StatusCode.REFUSED, StatusCode.FAULT)
    assert set(reply.words) == {"code", "name"}


def test_divergence_is_a_code_and_no_text(tmp_path, digits, schema):
    (site,) = write_sites(tmp_path, digits)[:1]
    server = make_server(tmp_path, lr=1e30, optimizer="sgd", method="fedavg")
    answer(site, "join", payload(server, schema))
    reply = answer(site, "visit", visit())
    assert code(reply) == StatusCode.TRAINING
    assert reply.words == {"code": int(StatusCode.TRAINING), "name": site.name}
    assert reply.models == {}


@pytest.mark.parametrize("share", [(), ("n",), ("metric",), ("delta",), ("verdict",), SHARED])
def test_only_what_a_site_shares_leaves_it(tmp_path, digits, schema, share):
    sites = write_sites(tmp_path, digits, share=share)
    post = Hand(sites)
    _, report = federate(make_server(tmp_path, rounds=1, epochs=1), schema, sites, post)
    allowed = {"code", "name", "fedekd", "protocol"}
    allowed |= {"n"} if "n" in share else set()
    allowed |= {"metric", "local", "value"} if "metric" in share else set()
    allowed |= {"metric", "delta", "low", "high"} if "delta" in share else set()
    allowed |= {"metric", "state", "gain", "p"} if "verdict" in share else set()
    assert set().union(*(reply.words for _, _, reply in post.sent)) == allowed
    assert all(set(site) <= allowed - {"code"} | {"answered"} for site in report["sites"])
    own = next(sites[0].state.glob("*/report.json"))
    known = json.loads(own.read_text())
    assert known["low"] <= known["delta"] <= known["high"], "the site itself knows all"
    (kept,) = (one for one in saved_models.find_models(own.parent) if one.about["method"] != "local")
    assert kept.about["client"] == sites[0].name
    assert kept.about["delta"] == kept.about["value"] - kept.about["local"]


def test_a_site_logs_what_it_does(tmp_path, digits, schema, caplog):
    caplog.set_level("INFO", "fedekd.site")
    (site,) = write_sites(tmp_path, digits)[:1]
    answer(site, "join", payload(make_server(tmp_path, method="fedavg", rounds=1, epochs=1), schema))
    sent = answer(site, "visit", visit()).models["private"]
    answer(site, "visit", replace(visit(1), models={"private": sent}))
    answer(site, "end", visit())
    own = site.state / FEDERATION / "report.json"
    report = json.loads(own.read_text())
    agreed, joined, terms, *rest = caplog.messages
    assert agreed.startswith("agreed to the first schema and terms offered: ")
    assert joined == f"federation {FEDERATION}: joined for 1 round of fedavg"
    assert '"fedavg"' in terms
    numbers = (
        "alone {local:.4g}, with the federation {value:.4g}, difference {delta:+.4g} (95 %: {low:+.4g} to {high:+.4g})"
    ).format(**report)
    hashes = [entry["hash"] for entry in read_audit(site.state)]
    assert rest == [
        "visit 1 of 2 done",
        f"audit log: {hashes[1]}",
        f"accuracy on this site's test rows: {numbers}",
        "{recommendation}: {reason}".format(**report["verdict"]),
        "visit 2 of 2 done",
        "the server has not signed the result",
        f"federation {FEDERATION} is complete; see {own}",
        f"audit log: {hashes[3]}",
    ]


def test_weights_by_samples_need_a_site_that_shares_them(tmp_path, digits, schema):
    (site,) = write_sites(tmp_path, digits, share=("delta",))[:1]
    assert code(answer(site, "join", payload(make_server(tmp_path, weighting="samples"), schema))) == StatusCode.REFUSED


def test_a_given_baseline_is_used(tmp_path, digits, schema):
    sites = write_sites(tmp_path, digits)
    federate(make_server(tmp_path, rounds=1), schema, sites)
    file = tmp_path / "local.pt"
    torch.save(local_of(sites[0]), file)
    again = write_sites(tmp_path / "again", digits, local=str(file))
    _, report = federate(make_server(tmp_path / "again", rounds=1, epochs=1), schema, again)
    assert report["complete"]
    for site in again:
        kept = local_of(site)
        assert all(torch.equal(w, torch.load(file, weights_only=True)[k]) for k, w in kept.items())


def test_every_site_may_have_its_own_private_model(tmp_path, digits, schema):
    sites = write_sites(tmp_path, digits)
    sites[1] = replace(sites[1], private="fedekd.models:proxy")
    _, report = federate(make_server(tmp_path, rounds=1, epochs=1), schema, sites)
    assert report["complete"]
    shapes = [{k: w.shape for k, w in state_of(s)["client"]["models"]["private"].items()} for s in sites]
    assert shapes[0] == shapes[2] != shapes[1]


def test_sigkill_at_any_moment_of_a_visit(tmp_path, digits, schema):
    """A site's process is killed again and again during a visit; the visit, done at last, gives what a twin gives."""
    (site,) = write_sites(tmp_path, digits)[:1]
    twin = replace(site, state=tmp_path / "twin")
    server = make_server(tmp_path, epochs=30, compression="int8")
    for each in (site, twin):
        assert code(answer(each, "join", payload(server, schema))) == StatusCode.DONE
    expected = answer(twin, "visit", visit())
    for delay in (0.0, 0.05, 0.15, 0.4):
        child = os.fork()
        if child == 0:
            try:
                answer(site, "visit", visit())
            finally:
                os._exit(0)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    for _ in range(2):
        reply = answer(site, "visit", visit())
        assert reply.words == expected.words
        for name, array in expected.models["proxy"].arrays.items():
            assert np.array_equal(array, reply.models["proxy"].arrays[name])


def test_a_repeated_visit_is_answered_from_the_disk(tmp_path, digits, schema):
    sites = write_sites(tmp_path, digits)
    post = Hand(sites)
    rounds = Rounds(make_server(tmp_path, epochs=1), schema, post, 3)
    rounds.run()
    last = {name: reply for name, kind, reply in post.sent if kind == "visit"}
    before = {site.name: next(site.state.glob("*/state.pt")).read_bytes() for site in sites}
    for site in sites:
        words = {
            "federation": rounds.progress.federation,
            "visit": 2,
            "number": rounds.progress.roster.numbers[site.name],
        }
        assert answer(site, "visit", Payload(words)).words == last[site.name].words
        assert next(site.state.glob("*/state.pt")).read_bytes() == before[site.name]


def rewritten(file, change):
    rows = dict(np.load(file))
    np.savez(file, **{name: change(array) for name, array in rows.items()})


@pytest.mark.parametrize("change", [lambda a: a[::-1], lambda a: np.concatenate([a, a[:1]]), lambda a: a[1:]])
def test_rows_that_change_in_the_middle_are_noticed(tmp_path, digits, schema, change):
    """The split goes by the rows' order: the model would be tested on rows that it has learned."""
    sites = write_sites(tmp_path, digits)

    def alter(name, kind, reply):
        if (name, kind) == ("cedar", "visit") and not altered:
            altered.append(name)
            rewritten(sites[2].data, change)
        return reply

    altered: list[str] = []
    post = Hand(sites, alter)
    _, report = federate(make_server(tmp_path, epochs=1), schema, sites, post)
    assert report["counted"] == [["alder", "birch", "cedar"], ["alder", "birch"], ["alder", "birch"]]
    assert {r["reason"] for r in report["refused"]} == {StatusCode.DATA.meaning}


def test_a_site_may_join_again_with_the_same_rows_only(tmp_path, digits, schema):
    site = write_sites(tmp_path, digits)[0]
    first = payload(make_server(tmp_path), schema)
    assert [code(answer(site, "join", first)) for _ in range(2)] == [StatusCode.DONE, StatusCode.DONE]
    rewritten(site.data, lambda a: a[::-1])
    assert code(answer(site, "join", first)) == StatusCode.REFUSED
