"""The server sees only the sum of what sites send, and the federation goes as it would have gone without that."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from masked_village import Asking, Watching, alike, masking_words, place, secure
from village import NAMES, Hand, federate, state_of

from fedekd import methods
from fedekd.flower.protocol import masking
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.server.conversation import TooFew
from fedekd.flower.server.secure_rounds import make_rounds
from fedekd.flower.setup.keys import read_node_key
from fedekd.flower.site import handlers

# --- a federation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "sent"),
    [
        *(("fedekd", "proxy"), ("fedavg", "private"), ("fedmd", "logits"), ("fedadam", "private")),
        *(("fedavgm", "private"), ("feddyn", "private"), ("pfedme", "private"), ("scaffold", "control")),
    ],
)
def test_it_ends_as_the_plain_one_within_rounding(tmp_path, digits, method, sent) -> None:
    """Of models the changes are summed, and of what else is sent the numbers themselves. The server's half of some does
    more with their mean than hand it out, and SCAFFOLD's counts those who took part."""
    more = {"method": method}
    if methods.get(method).public:
        more["public"] = tmp_path / "public.npz"
        np.savez(more["public"], x=digits.x[:20], y=digits.y[:20])
    server, schema, sites = place(tmp_path / "secure", digits, **more)
    rounds = secure(server, schema, Hand(sites))
    report = rounds.run()
    plain, _, others = place(tmp_path / "plain", digits, aggregation="plain", **more)
    apart, _ = federate(plain, schema, others)
    assert report["complete"]
    assert report["refused"] == []
    assert report["counted"] == [sorted(NAMES)] * len(rounds.visits)
    alike(rounds.answers[sent], apart.answers[sent], 2e-5)
    for one, other in zip(sites, others, strict=True):
        ours, theirs = (state_of(site)["client"]["models"] for site in (one, other))
        for role in ours:
            alike(ours[role], theirs[role], 2e-5)


def test_some_sites_in_each_round_one_that_comes_late_and_a_server_that_starts_again(tmp_path, digits) -> None:
    """All that send have been given the same by then, however they came by it; else their masks would not cancel."""
    kept = {}
    for how in ("secure", "plain"):
        given = {"aggregation": how, "participation": 0.75, "rounds": 4}
        server, schema, sites = place(tmp_path / how, digits, **given)
        post = Hand(sites)
        post.asleep.add("cedar")
        for number in range(4):
            rounds = make_rounds(server, schema, post, 3)
            rounds._continue()
            rounds.progress.drawn.clear()
            rounds.gather()
            drawn = rounds.progress.drawn
            drawn |= {round: sorted({0, 1, 2, 3} - {(round + 1) % 3}) for round in range(4)}
            if number < 2:
                drawn |= {round: [0, 1, 2] for round in range(4)}
            rounds.visit(rounds.visits[number])
            if number == 1:
                post.asleep.clear()
        kept[how] = rounds.answers["proxy"]
        assert [len(names) for names in rounds.progress.counted] == [3] * 4
    alike(kept["secure"], kept["plain"], 2e-5)


def test_the_server_is_given_nothing_that_is_not_masked(tmp_path, digits) -> None:
    """The first uploads of two equal federations: unlike each other, and as even as chance is."""
    runs = []
    for folder in ("one", "other"):
        server, schema, sites = place(tmp_path / folder, digits, rounds=1)
        post = Watching(sites)
        rounds = secure(server, schema, post)
        start = {name: tensor.clone() for name, tensor in rounds.held["proxy"].items()}
        rounds.gather()
        rounds.visit(rounds.visits[0])
        runs.append(post.uploads())
        assert {stage for _, stage, reply in post.stages if reply.models} == {"visit"}
        allowed = {"code", "name", "masking", "fedekd", "protocol"}
        assert all(set(reply.words) <= allowed for _, _, reply in post.stages)
    plain = {
        site.name: masking.quantised(
            {n: t.clone() for n, t in state_of(site)["reply"]["models"]["proxy"]["arrays"].items()}, start, 16.0, 4
        )[0]
        for site in sites
    }
    total = np.zeros_like(plain["elm"])
    for name in NAMES:
        one, other = runs[0][name], runs[1][name]
        for a, b in ((one, other), (other, plain[name]), (one, plain[name]), (other - plain[name], one - plain[name])):
            assert (a == b).mean() < 0.01
        counts = np.bincount(other.view(np.uint8), minlength=256)
        expected = 4 * len(other) / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * (2 * 255) ** 0.5
        total += plain[name]
    mean = masking.mean_of(total, 4, 16.0, 4)
    alike(masking.as_message(mean, start, start), rounds.answers["proxy"], 0)


@pytest.mark.parametrize(
    ("stage", "counts"),
    [("keys", False), ("shares", False), ("visit", False), ("confirm", True), ("reveal", True)],
)
def test_a_site_that_drops_out_is_recovered_from(tmp_path, digits, stage, counts) -> None:
    """At any moment; once its upload has come it is in the sum all the same."""
    server, schema, sites = place(tmp_path, digits)
    post = Watching(sites, lambda name, at, visit: (name, at, visit) == ("birch", stage, 1))
    rounds = secure(server, schema, post)
    report = rounds.run()
    assert report["complete"]
    assert ("birch" in report["counted"][1]) == counts
    kept = {site.name: state_of(site)["held"]["proxy"] for site in sites if site.name != "birch"}
    for held in kept.values():
        alike({n: held[n] for n in rounds.answers["proxy"]}, rounds.answers["proxy"], 0)
    biggest = max(float(t.abs().max()) for t in rounds.answers["proxy"].values())
    assert biggest < 10  # a mask left in the sum would be far larger


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("visit", "2 of 4 sites gave a masked upload, and secure aggregation takes 3"),
        ("confirm", "2 of 4 sites confirmed whose uploads came, and secure aggregation takes 3"),
        ("reveal", "2 of 4 sites stayed to unmask the sum, and secure aggregation takes 3"),
    ],
)
def test_below_the_threshold_it_fails_in_words_and_can_go_on(tmp_path, digits, stage, words) -> None:
    server, schema, sites = place(tmp_path, digits, rounds=1)
    post = Watching(sites, lambda name, at, visit: name in ("birch", "elm") and at == stage)
    with pytest.raises(TooFew, match=words) as error:
        secure(server, schema, post).run()
    assert "\n" not in str(error.value)
    report = secure(server, schema, Hand(sites)).run()
    assert report["complete"]
    assert report["counted"] == [sorted(NAMES)] * 2


def test_a_server_that_is_killed_before_the_sum_is_used_goes_on(tmp_path, digits, monkeypatch) -> None:
    """The sites have revealed what they will reveal: the same sum is unmasked again, and no other."""
    server, schema, sites = place(tmp_path, digits, rounds=1)
    monkeypatch.setattr(masking, "mean_of", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        secure(server, schema, Hand(sites)).run()
    monkeypatch.undo()
    post = Hand(sites)
    post.asleep.add("cedar")
    rounds = secure(server, schema, post)
    rounds._continue()
    rounds.step()
    assert rounds.progress.counted == [sorted(NAMES)]
    (server.state / "masked" / "state.pt").unlink()
    (server.state / "masked" / "state.previous.pt").unlink(missing_ok=True)
    rounds.progress.done = -1
    with pytest.raises(TooFew, match="0 of 4 sites agreed on masks, and secure aggregation takes 3"):
        rounds.visit(rounds.visits[0])


# --- what a site does not do ----------------------------------------------------------------------------------------


def test_a_site_checks_whose_keys_it_masks_with(tmp_path, digits, caplog) -> None:
    asking = Asking(tmp_path, digits, "shares")
    honest = masking_words(asking.last["shares"])
    swapped = {**honest, "birch": honest["cedar"]}
    code, text = asking.ask("shares", caplog, masking=json.dumps(swapped))
    assert (code, "passes on as that of birch is not its own" in text) == (StatusCode.REFUSED, True)
    strange = {**honest, "oak": honest["cedar"]}
    code, text = asking.ask("shares", caplog, masking=json.dumps(strange))
    assert (code, "has no oak.pub" in text) == (StatusCode.REFUSED, True)
    few = {name: honest[name] for name in ("alder", "birch")}
    code, text = asking.ask("shares", caplog, masking=json.dumps(few))
    assert (code, "2 sites are too few to hide an upload among" in text) == (StatusCode.REFUSED, True)
    code, text = asking.ask("shares", caplog, attempt="0" * 16)
    assert (code, "without those before it" in text) == (StatusCode.REFUSED, True)
    assert asking.ask("shares", caplog)[0] == StatusCode.DONE


def test_a_site_sends_nothing_unmasked(tmp_path, digits, caplog) -> None:
    asking = Asking(tmp_path, digits, "visit")
    asked = asking.last["visit"]
    plain = {name: word for name, word in asked.words.items() if name not in ("attempt", "masking")}
    reply = handlers.answer(asking.sites[0], "visit", Payload(plain, asked.models))
    assert (reply.words["code"], reply.models) == (StatusCode.REFUSED, {})
    sealed = masking_words(asked)
    changed = {**sealed, "birch": sealed["birch"][:-2] + "00"}
    code, text = asking.ask("visit", caplog, masking=json.dumps(changed))
    assert (code, "the shares of birch cannot be opened here" in text) == (StatusCode.REFUSED, True)
    code, text = asking.ask("visit", caplog, masking=json.dumps({"birch": sealed["birch"]}))
    assert (code, "2 of the 4 sites are too few; it takes 3" in text) == (StatusCode.REFUSED, True)


def test_a_site_reveals_one_thing_of_each_site_once(tmp_path, digits, caplog) -> None:
    asking = Asking(tmp_path, digits, "reveal")
    survivors = masking_words(asking.last["confirm"])
    three = json.dumps(dict.fromkeys(("alder", "birch", "cedar"), ""))
    code, text = asking.ask("confirm", caplog, masking=three)
    assert (code, "named others whose uploads count before" in text) == (StatusCode.REFUSED, True)
    signatures = masking_words(asking.last["reveal"])
    forged = json.dumps({**signatures, "birch": signatures["cedar"], "elm": "00"} | {"cedar": signatures["elm"]})
    code, text = asking.ask("reveal", caplog, masking=forged)
    assert (code, "1 of the 4 sites are too few" in text) == (StatusCode.REFUSED, True)
    assert sorted(survivors) == sorted(NAMES)
    kept = json.loads(next(asking.sites[0].state.glob("*/masks.json")).read_text())
    told = {name: (bytes.fromhex(mask), bytes.fromhex(seal)) for name, (mask, seal) in kept["keys"].items()}
    occasion = masking.Occasion(str(asking.last["keys"].words["federation"]), 0, kept["attempt"])
    for keys, wanted in (({**told, "elm": told["birch"]}, StatusCode.REFUSED), (told, StatusCode.DONE)):
        text = masking.survivors_text(occasion, keys, NAMES, NAMES)
        signed = {site.name: masking.sign(read_node_key(site.key), text).hex() for site in asking.sites}
        assert asking.ask("reveal", caplog, masking=json.dumps(signed))[0] == wanted, "others were told of other keys"
    assert asking.ask("reveal", caplog)[0] == StatusCode.DONE
    code, text = asking.ask("keys", caplog, attempt="0" * 16)
    assert (code, "does so once" in text) == (StatusCode.REFUSED, True)


def test_a_site_masks_for_one_federation_of_the_same_terms(tmp_path, digits, caplog) -> None:
    """A second one with a site less would show what that site sent in the first."""
    server, schema, sites = place(tmp_path, digits, rounds=1)
    assert secure(server, schema, Hand(sites)).run()["complete"]
    again = replace(server, state=tmp_path / "again")
    with pytest.raises(TooFew, match="0 of 3 sites agreed on masks"):
        secure(again, schema, Hand(sites[:3])).run()
    assert "the server must set another `seed`" in caplog.text
