"""Masks and sums; what does not go with them; and whatever else a site or a server may say of them."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from masked_village import place, secure
from mutations import mutated
from village import NAMES, Hand

from fedekd import methods
from fedekd.errors import FedekdError
from fedekd.flower.protocol import masking, wire
from fedekd.flower.protocol.codes import StatusCode, limited
from fedekd.flower.protocol.messages import Reply
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.server_app import UNREADABLE
from fedekd.flower.settings import ServerSettings, read_server
from fedekd.flower.setup.check import check_method
from fedekd.flower.site import handlers
from fedekd.flower.toml_files import toml_text

COUNT = int(os.environ.get("FEDEKD_FUZZ", "150"))


# --- the sums themselves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [(), ("birch",), ("birch", "elm")])
def test_what_is_unmasked_is_the_sum_to_the_bit(gone) -> None:
    generator, occasion = np.random.default_rng(0), masking.Occasion("f" * 16, 3, "a" * 16)
    names, size = [*NAMES, "fir"], 1000
    secret = {name: generator.bytes(32) for name in names}
    seeds = {name: generator.bytes(32) for name in names}
    keys = {name: masking.SignedKeys(masking.public_half(secret[name]), b"", b"") for name in names}
    plain = {
        name: masking.quantised({"w": torch.from_numpy(generator.normal(0, 8, size))}, None, 16.0, 5)[0]
        for name in names
    }
    total, expected, stay = np.zeros(size, np.uint32), np.zeros(size, np.uint32), [n for n in names if n not in gone]
    for name in stay:
        total += plain[name] + masking.own_mask(seeds[name], size)
        for other in names:
            if other != name:
                total += masking.pair_mask(secret[name], name, keys[other].mask, other, occasion, "given", size)
        expected += plain[name]
    found = masking.unmask(total, occasion, keys, {n: seeds[n] for n in stay}, {n: secret[n] for n in gone}, "given")
    assert (found == expected).all()
    signed = np.stack([plain[name].view(np.int32).astype(np.int64) for name in stay])
    mean = masking.mean_of(found, len(stay), 16.0, 5)
    assert (mean == signed.sum(0) * (16.0 / masking.levels(5) / len(stay))).all()
    with pytest.raises(FedekdError, match="masked its own otherwise than agreed"):
        masking.mean_of(total, len(stay), 16.0, 5)
    if gone:
        with pytest.raises(FedekdError, match="is not the key of birch"):
            masking.unmask(total, occasion, keys, seeds, {"birch": secret["cedar"]}, "given")


def test_numbers_come_back_within_half_a_step_and_are_cut_off_at_the_limit() -> None:
    step = {"w": torch.linspace(-20, 20, 4001), "count": torch.tensor(7)}
    whole, cut = masking.quantised(step, None, 16.0, 3)
    back = masking.as_message(masking.mean_of(whole, 1, 16.0, 3), {**step, "count": torch.tensor(9)}, None)
    torch.testing.assert_close(back["w"], step["w"].clamp(-16, 16), rtol=0, atol=1e-6)
    assert cut == 800
    assert int(back["count"]) == 9


def test_shares_are_put_together_by_as_many_as_it_takes() -> None:
    secret = bytes(range(32))
    shares = masking.shared_out(secret, 3, 5)
    assert {len(share) for share in shares} == {masking.SHARE}
    assert masking.put_together(shares[1:4]) == secret
    for wrong in (shares[:2], [shares[0], shares[1], bytes(masking.SHARE)]):
        with pytest.raises(FedekdError, match="do not belong together"):
            masking.put_together(wrong)


# --- refusals -------------------------------------------------------------------------------------------------------

SERVER = {name: name for name in ("ca", "certificate", "key", "nodes", "state")} | {"address": "a.b:8000"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"combine": "median"}, 'needs combine = "mean", got "median"'),
        ({"weighting": "samples"}, 'needs weighting = "uniform", got "samples"'),
        ({"compression": "int8"}, 'needs compression = "none", got "int8"'),
        ({"min_sites": 2}, "needs min_sites of at least 3, got 2"),
        ({"mask_threshold": 0.4}, "mask_threshold must be at least 0.5 and below 1, got 0.4"),
        ({"mask_limit": 0.0}, "mask_limit must be from 1e-6 to 1e6, got 0"),
    ],
)
def test_what_does_not_go_with_it_is_refused_in_a_line(tmp_path, change, message) -> None:
    file = tmp_path / "server.toml"
    file.write_text(toml_text(ServerSettings, "test", {**SERVER, "aggregation": "secure", "min_sites": 3, **change}))
    with pytest.raises(FedekdError, match=message) as error:
        read_server(file)
    assert "\n" not in str(error.value)
    if "min_sites" not in change:
        usual = Terms.usual()
        with pytest.raises(FedekdError, match=message.split(" must")[0]):
            Terms.parse(replace(usual, aggregation="secure", **change).text())


def test_methods_that_need_more_than_a_sum_are_refused() -> None:
    needing = {"feddf", "fedgh", "fedproto", "pfedhr"}
    for name, method in methods.known().items():
        if name.split("-")[0] not in needing:
            masking.refuse(method, name, 2)
            continue
        with pytest.raises(FedekdError, match='and with aggregation = "secure" the server sees only a sum; ') as error:
            masking.refuse(method, name, 2)
        assert "\n" not in str(error.value)


def test_a_method_is_refused_before_any_training_at_both_ends(tmp_path, digits, caplog) -> None:
    server, schema, sites = place(tmp_path, digits, method="fedproto")
    post = Hand(sites)
    with pytest.raises(FedekdError, match="fedproto combines single uploads in a way of its own"):
        secure(server, schema, post)
    assert post.sent == []
    words = {"federation": "0" * 16, "terms": Terms.of(server).text(), "schema": schema.text()}
    site = replace(sites[0], leave=("proxy", "private", "prototypes"))
    with pytest.raises(FedekdError, match=r"server\.toml: fedproto combines single uploads in a way of its own"):
        check_method(server, "server.toml")
    reply = handlers.answer(site, "join", Payload(words))
    assert reply.words["code"] == StatusCode.REFUSED
    assert "fedproto combines single uploads in a way of its own" in caplog.text


def test_a_site_without_the_others_keys_does_not_join(tmp_path, digits, caplog) -> None:
    server, schema, sites = place(tmp_path, digits)
    words = {"federation": "0" * 16, "terms": Terms.of(server).text(), "schema": schema.text()}
    reply = handlers.answer(replace(sites[0], peers=None), "join", Payload(words))
    assert reply.words["code"] == StatusCode.REFUSED
    assert "NAME.pub as `peers`" in caplog.text
    assert "aggregation" not in Terms.usual().text()


# --- whatever is said -----------------------------------------------------------------------------------------------


def test_no_site_stops_the_server_without_words(tmp_path, digits) -> None:
    """What birch says in any stage is changed at random: it is left out, or the visit fails in a line."""
    server, schema, sites = place(tmp_path, digits, rounds=1)
    done, lines = 0, []
    for seed in range(max(5, COUNT // 12)):
        random = Random(seed)

        def spoil(name, kind, reply, random=random):
            if name != "birch" or kind == "join":
                return reply
            try:
                return wire.from_records(mutated(wire.to_records(reply), random))
            except FedekdError:
                return UNREADABLE

        for site in sites:
            (site.state / "unmasked.json").unlink(missing_ok=True)
        rounds = secure(replace(server, state=tmp_path / f"server {seed}"), schema, Hand(sites, spoil))
        rounds.gather()
        with limited(60.0):
            try:
                rounds.visit(rounds.visits[0])
            except FedekdError as error:
                lines.append(str(error))
                continue
        assert {"alder", "cedar", "elm"} <= set(rounds.progress.counted[0]), seed
        done += 1
    assert done
    assert not any("\n" in line for line in lines)


def test_no_server_stops_a_site_with_any_stage(tmp_path, digits) -> None:
    server, schema, sites = place(tmp_path, digits, rounds=1)
    site, asked, folders = sites[0], {}, {}

    class Listening(Hand):
        def send(self, node, kind, payload) -> None:
            stage = str(payload.words.get("stage", kind))
            if node == 1000 and stage not in ("join", "end") and stage not in asked:
                asked[stage], folders[stage] = (kind, payload), tmp_path / f"before {stage}"
                shutil.copytree(site.state, folders[stage])
            super().send(node, kind, payload)

    secure(server, schema, Listening(sites)).run()
    assert [*asked] == ["keys", "shares", "visit", "confirm", "reveal"]
    own = replace(site, state=tmp_path / "own")
    for seed in range(COUNT // 2):
        stage = Random(seed).choice([*asked])
        shutil.rmtree(own.state, ignore_errors=True)
        shutil.copytree(folders[stage], own.state)
        kind, payload = asked[stage]
        try:
            request = wire.from_records(mutated(wire.to_records(payload), Random(seed)))
        except FedekdError:
            continue
        reply = handlers.answer(own, kind, request)
        code = Reply.parse(reply).code
        assert code not in (StatusCode.FAULT, StatusCode.UNREADABLE), (seed, stage)
        if code != StatusCode.DONE:
            assert set(reply.words) == {"code", "name"}
            assert reply.models == {}
