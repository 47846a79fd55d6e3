"""A server that wants one site's upload out of secure aggregation, and does not get it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from masked_village import Asking, Watching, masking_words, place, secure
from village import NAMES, Hand, state_of

from fedekd.errors import FedekdError
from fedekd.flower.protocol import masking, wire
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.wire import Packed, Payload
from fedekd.flower.saved_state import SavedState
from fedekd.flower.secure_settings import LEAST_MASKED
from fedekd.flower.server.conversation import TooFew
from fedekd.flower.setup.keys import read_node_key
from fedekd.flower.site import handlers


class Tampering(Hand):
    """``change(name, stage, payload)`` is what a site is sent in place of what the honest server would send."""

    def __init__(self, sites, change) -> None:
        super().__init__(sites)
        self.change = change

    def send(self, node, kind, payload) -> None:
        super().send(node, kind, self.change(self.sites[node].name, str(payload.words.get("stage", kind)), payload))


def with_words(payload: Payload, **words) -> Payload:
    return Payload({**payload.words, **words}, payload.models)


def dead(answer: Packed) -> Packed:
    """A model on which nothing can be learned: no hidden unit ever answers."""
    return Packed("none", {name: np.full_like(array, -1e3) for name, array in answer.arrays.items()})


# --- one upload without its masks -----------------------------------------------------------------------------------


def test_a_kept_upload_leaves_masked_or_not_at_all(tmp_path, digits, caplog) -> None:
    """Asked once more, now as one that sends nothing in this visit: what is kept must not leave as it is."""
    asking = Asking(tmp_path, digits, "confirm")
    asked = asking.last["visit"]
    bare = {name: word for name, word in asked.words.items() if name not in ("attempt", "masking")}
    for words in ({**bare, "rounds": ""}, {**asked.words, "rounds": ""}, bare):
        reply = handlers.answer(asking.sites[0], "visit", Payload(words, asked.models))
        assert (reply.words["code"], reply.models) == (StatusCode.REFUSED, {})
    again = handlers.answer(asking.sites[0], "visit", asked)
    assert again.models["proxy"].how == "masked"
    assert "asked for other rounds of visit 0 before" in caplog.text


def test_no_two_uploads_under_one_mask(tmp_path, digits, caplog) -> None:
    """Their difference would show. A site whose state is not what it was gives no second one."""
    asking = Asking(tmp_path, digits, "confirm")
    (file,) = asking.sites[0].state.glob("*/state.pt")
    saved = SavedState(file.parent)
    visit, state = saved.load()
    state["reply"]["models"]["proxy"]["arrays"]["head.bias"] += 0.5
    saved.save(visit, state)
    code, text = asking.ask("visit", caplog)
    assert (code, "has masked another upload with these keys" in text) == (StatusCode.REFUSED, True)


def test_masks_are_new_in_each_visit_and_each_attempt(tmp_path, digits) -> None:
    """The first attempt fails after the uploads: the same upload is masked again, with other masks."""
    server, schema, sites = place(tmp_path, digits, rounds=1)
    uploads = []
    for _ in range(2):
        post = Watching(sites, lambda name, at, visit: at == "confirm")
        with pytest.raises(TooFew):
            secure(server, schema, post).run()
        uploads.append(post.uploads()["alder"])
    assert (uploads[0] == uploads[1]).mean() < 0.01


def test_a_site_that_masks_joins_no_federation_without_masks(tmp_path, digits, caplog) -> None:
    server, schema, sites = place(tmp_path, digits)
    plain = Terms.of(replace(server, aggregation="plain"))
    words = {"federation": "0" * 16, "terms": plain.text(), "schema": schema.text()}
    assert handlers.answer(sites[0], "join", Payload(words)).words["code"] == StatusCode.REFUSED
    assert "a site with `peers` sends only masked uploads" in caplog.text
    words["federation"], without = "1" * 16, replace(sites[0], peers=None)
    assert handlers.answer(without, "join", Payload(words)).words["code"] == StatusCode.DONE


# --- one upload alone in the sum ------------------------------------------------------------------------------------


def test_a_server_that_hands_the_others_a_dead_model_gets_no_sum(tmp_path, digits) -> None:
    """Else their changes would be 0, and the sum would be the change of the one that was handed the right model."""
    server, schema, sites = place(tmp_path, digits, method="fedavg")

    def change(name, stage, payload):
        if stage != "visit" or name == "alder" or not payload.models:
            return payload
        return Payload(payload.words, {name: dead(answer) for name, answer in payload.models.items()})

    rounds = secure(server, schema, Tampering(sites, change))
    with pytest.raises(FedekdError, match="the sum is not one of uploads"):
        rounds.run()
    assert rounds.progress.done == 0
    changes = {}
    for site in sites:
        state = state_of(site)
        sent = wire.from_state(state["reply"]).models["private"].arrays
        changes[site.name] = max(float((torch.from_numpy(a) - state["held"]["private"][n]).abs().max())
                                 for n, a in sent.items() if n != "head.bias")  # fmt: skip
    assert changes.pop("alder") > 1e-3, "the attack would have worked"
    assert max(changes.values()) < 1e-6


def test_a_server_that_offers_the_others_another_rate_gets_no_sum(tmp_path, digits) -> None:
    server, schema, sites = place(tmp_path, digits, rounds=1)

    def change(name, stage, payload):
        if stage != "join" or name == "alder":
            return payload
        terms = json.loads(str(payload.words["terms"])) | {"lr": 1e-30}
        return with_words(payload, terms=Terms.parse(json.dumps(terms)).text())

    with pytest.raises(FedekdError, match="the sum is not one of uploads"):
        secure(server, schema, Tampering(sites, change)).run()


def test_no_sums_of_one_visit_show_one_upload() -> None:
    """Whatever attempts a server begins with whichever sites: each site unmasks one sum of a visit, and a sum takes
    more than half of its sites. Two sums that differ in one site would take more sites than there are, and no other
    combination of such sums is one site's upload either."""
    for count in range(3, 30):
        larger, smaller = (max(LEAST_MASKED, masking.threshold(0.5, n)) for n in (count, count - 1))
        assert larger + smaller > count
    random = np.random.default_rng(0)
    for _ in range(300):
        count, sums = int(random.integers(6, 16)), []
        left = [int(site) for site in random.permutation(count)]  # sites that have not unmasked a sum yet
        while left:
            members = {*random.choice(count, int(random.integers(3, count + 1)), replace=False).tolist()}
            unmasking = [site for site in left if site in members]
            needed = max(LEAST_MASKED, masking.threshold(0.5, len(members)))
            if len(unmasking) >= needed:
                sums.append([float(site in members) for site in range(count)])
                left = [site for site in left if site not in unmasking[:needed]]
            elif random.random() < 0.2:
                break
        for one in np.eye(count) if sums else ():
            found, *_ = np.linalg.lstsq(np.array(sums).T, one, rcond=None)
            assert np.abs(np.array(sums).T @ found - one).max() > 1e-6


# --- both secrets of one site ---------------------------------------------------------------------------------------


def test_a_server_that_names_other_survivors_to_each_half_is_told_nothing(tmp_path, digits, caplog) -> None:
    """It wants the seed of elm from those who are told that its upload came, and its mask key from the others."""
    asking = Asking(tmp_path, digits, "confirm")
    lists = {name: NAMES if name in ("alder", "birch") else NAMES[:3] for name in NAMES}
    signed = {}
    for site in asking.sites[:3]:
        named = json.dumps(dict.fromkeys(lists[site.name], ""))
        reply = handlers.answer(site, "masking", with_words(asking.last["confirm"], masking=named))
        signed |= masking_words(reply)
    for site in asking.sites[:3]:
        reply = handlers.answer(site, "masking", with_words(asking.last["confirm"], stage="reveal",
                                                            masking=json.dumps(signed)))  # fmt: skip
        assert reply.words["code"] == StatusCode.REFUSED
        assert "masking" not in reply.words
    assert "2 of the 4 sites are too few; it takes 3" in caplog.text


def test_a_server_that_names_other_masking_sites_to_one_is_told_nothing(tmp_path, digits, caplog) -> None:
    """alder is told that elm does not mask, the others that it does."""

    def change(name, stage, payload):
        if (name, stage) != ("alder", "visit") or "masking" not in payload.words:
            return payload
        sealed = {other: content for other, content in masking_words(payload).items() if other != "elm"}
        return with_words(payload, masking=json.dumps(sealed))

    server, schema, sites = place(tmp_path, digits, rounds=1)
    post = Tampering(sites, change)
    post.spoil = lambda name, kind, reply: None if (name, kind) == ("elm", "visit") else reply
    with pytest.raises(TooFew, match="2 of 4 sites confirmed whose uploads came, and secure aggregation takes 3"):
        secure(server, schema, post).run()
    assert "alder has not signed whose uploads came" in caplog.text


def test_a_server_that_passes_other_keys_to_one_is_told_nothing(tmp_path, digits, caplog) -> None:
    """alder is told of three sites, the others of four, and all of them that the same three uploads came."""
    asking = Asking(tmp_path, digits, "shares")
    keys = masking_words(asking.last["shares"])
    sealed = {}
    for site in asking.sites:
        told = {name: key for name, key in keys.items() if (site.name, name) != ("alder", "elm")}
        reply = handlers.answer(site, "masking", with_words(asking.last["shares"], masking=json.dumps(told)))
        sealed[site.name] = masking_words(reply)
    signed, three = {}, asking.sites[:3]
    visit = {name: word for name, word in asking.last["shares"].words.items() if name != "stage"}
    for number, site in enumerate(three):
        own = {one: given[site.name] for one, given in sealed.items() if site.name in given}
        if site.name == "alder":
            del own["elm"]
        reply = handlers.answer(site, "visit", Payload({**visit, "number": number, "masking": json.dumps(own)}))
        assert reply.models["proxy"].how == "masked"
    named = json.dumps(dict.fromkeys(NAMES[:3], ""))
    for site in three:
        words = with_words(asking.last["shares"], stage="confirm", masking=named)
        signed |= masking_words(handlers.answer(site, "masking", words))
    for site in three:
        words = with_words(asking.last["shares"], stage="reveal", masking=json.dumps(signed))
        reply = handlers.answer(site, "masking", words)
        assert (reply.words["code"], "masking" in reply.words) == (StatusCode.REFUSED, False)


# --- stages once more -----------------------------------------------------------------------------------------------


def test_stages_of_an_earlier_visit_or_attempt_are_not_answered_again(tmp_path, digits, caplog) -> None:
    asking = Asking(tmp_path, digits, "reveal", rounds=2, visit=1)
    before = asking.first
    for stage in ("shares", "confirm", "reveal"):
        reply = handlers.answer(asking.sites[0], "masking", before[stage])
        assert (reply.words["code"], "masking" in reply.words) == (StatusCode.REFUSED, False), stage
    assert handlers.answer(asking.sites[0], "masking", before["keys"]).words["code"] == StatusCode.REFUSED
    reply = handlers.answer(asking.sites[0], "visit", before["visit"])
    assert (reply.words["code"], reply.models) == (StatusCode.REFUSED, {})
    assert "does so once" in caplog.text
    assert asking.ask("reveal", caplog)[0] == StatusCode.DONE, "the visit that it is at goes on"


def test_a_signature_of_another_attempt_counts_for_nothing(tmp_path, digits, caplog) -> None:
    asking = Asking(tmp_path, digits, "reveal")
    kept = json.loads(next(asking.sites[0].state.glob("*/masks.json")).read_text())
    told = {name: (bytes.fromhex(mask), bytes.fromhex(seal)) for name, (mask, seal) in kept["keys"].items()}
    federation = str(asking.last["keys"].words["federation"])
    for occasion in (masking.Occasion(federation, 0, "0" * 16), masking.Occasion(federation, 1, kept["attempt"])):
        text = masking.survivors_text(occasion, told, NAMES, NAMES)
        signed = {site.name: masking.sign(read_node_key(site.key), text).hex() for site in asking.sites}
        assert asking.ask("reveal", caplog, masking=json.dumps(signed))[0] == StatusCode.REFUSED


@pytest.mark.parametrize(
    ("name", "content"),
    [(name, text) for name in ("unmasked.json", "*/masks.json") for text in (b"", b'{"visit": 0', b"[]")]
    + [("*/masks.json", b"{}")],
)
def test_a_damaged_memory_of_what_was_revealed_is_no_empty_one(tmp_path, digits, caplog, name, content) -> None:
    asking = Asking(tmp_path, digits, "reveal", rounds=2)
    site = asking.sites[0]
    asking.ask("reveal", caplog)
    next(site.state.glob(name)).write_bytes(content)
    asked = with_words(asking.last["keys"], visit=1, attempt="1" * 16)
    reply = handlers.answer(site, "masking", asked)
    assert (reply.words["code"], "masking" in reply.words) == (StatusCode.REFUSED, False)
    assert "is damaged" in caplog.text
