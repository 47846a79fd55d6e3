"""The server keeps going: bad uploads, missing sites, lost answers and its own death cost no finished visit."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from village import Hand, federate, make_server, schema_of, simulate, state_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from rich.console import Console

from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.wire import Packed, Payload
from fedekd.flower.server.conversation import TooFew
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.settings import VISITS_DONE
from fedekd.report.federation import print_report
from fedekd.runs.federation_report import read_report


@pytest.fixture
def place(tmp_path, digits):
    """A schema and three sites; ``server(...)`` makes settings."""
    return schema_of(digits), write_sites(tmp_path, digits), lambda **given: make_server(tmp_path, epochs=1, **given)


def altered(reply: Payload, change) -> Payload:
    ((role, packed),) = reply.models.items()
    return Payload(reply.words, {role: Packed(packed.how, change(dict(packed.arrays)), packed.scales)})


def with_nan(arrays):
    first = next(iter(arrays))
    return {**arrays, first: np.full_like(arrays[first], np.nan)}


def with_a_wrong_shape(arrays):
    first = next(iter(arrays))
    return {**arrays, first: arrays[first][..., :-1].copy()}


def far_too_large(arrays):
    return {name: 1e4 * array for name, array in arrays.items()}


def turned_round(arrays):
    return {name: -4.9 * array for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_nan, "NaN or infinite"),
        (with_a_wrong_shape, "has shape"),
        (far_too_large, "is far from"),
        (turned_round, "points away from the global model"),
        (lambda arrays: {**arrays, "private": np.zeros(3, np.float32)}, "'private' that is unknown"),
    ],
)
def test_a_bad_upload_is_refused_and_the_round_goes_on(place, change, reason):
    schema, sites, server = place

    def spoil(name, kind, reply):
        return altered(reply, change) if name == "birch" and reply.models else reply

    _, report = federate(server(), schema, sites, Hand(sites, spoil))
    assert report["complete"]
    assert report["counted"][:2] == [["alder", "cedar"]] * 2
    assert {r["site"] for r in report["refused"]} == {"birch"}
    assert all(reason in r["reason"] for r in report["refused"])
    assert report["counted"][-1] == ["alder", "birch", "cedar"], "its numbers are still its own"


def test_two_sites_with_one_far_too_large(place):
    """Nobody can be outvoted; the model that both were given tells who is wrong."""
    schema, sites, server = place

    def spoil(name, kind, reply):
        return altered(reply, far_too_large) if name == "birch" and reply.models else reply

    _, report = federate(server(min_sites=1), schema, sites[:2], Hand(sites[:2], spoil))
    assert report["counted"][:2] == [["alder"]] * 2
    assert all("2 sites and the global model" in r["reason"] for r in report["refused"])


@pytest.mark.parametrize(
    "words",
    [
        {"privacy": "[" * 100_000},
        {"privacy": '{"epsilon": "[red]"}'},
        {"privacy": '{"epsilon": 1, "delta": NaN, "clip": 1, "guarantee": "the sent models, end to end"}'},
        {"privacy": '{"epsilon": 1, "delta": 0.1, "clip": 1, "guarantee": "everything, I promise"}'},
        {"metric": "[bold]\x1b[2J"},
        {"delta": float("nan"), "value": float("inf"), "local": "0.5"},
        {"state": "[red]", "p": 7.0, "gain": "much"},
        {"state": 3, "p": float("nan")},
        {"n": -5},
        {"n": 2.5},
        {f"word {k}": k for k in range(5000)},
    ],
)
def test_what_a_site_says_of_itself_does_no_harm(place, words):
    """It neither ends the run nor reaches the report, and the report can be printed."""
    schema, sites, server = place

    def spoil(name, kind, reply):
        return replace(reply, words={**reply.words, **words}) if name == "birch" and kind == "visit" else reply

    settings = server(rounds=1, weighting="samples")
    _, report = federate(settings, schema, sites, Hand(sites, spoil))
    assert report["complete"]
    assert report["privacy"] is None
    (birch,) = (site for site in report["sites"] if site["name"] == "birch")
    assert not [word for word, value in words.items() if word in birch and birch[word] == value]
    print_report(Console(file=io.StringIO()), read_report(settings.state))


def test_a_name_cannot_write_into_the_log(place, caplog):
    schema, sites, server = place
    bad = "birch\nvisit 9 of 9: all is well\x1b[2J"

    def spoil(name, kind, reply):
        return Payload({"code": 1, "name": bad}) if name == "birch" else reply

    federate(server(rounds=1), schema, sites, Hand(sites, spoil))
    assert "birch cannot join" in caplog.text
    assert "all is well" not in caplog.text


def test_a_node_that_says_nothing_when_asked_to_join_costs_one_deadline(place, caplog):
    schema, sites, server = place

    class Silent(Hand):
        def receive(self):
            return [(node, reply) for node, reply in super().receive() if self.sites[node].name != "cedar"]

    _, report = federate(server(rounds=4, deadline=1.0), schema, sites, Silent(sites))
    assert report["complete"]
    assert [r.message for r in caplog.records if "waited" in r.message] == ["waited 1 s for sites to join"]
    assert "cedar does not answer" in caplog.text


def test_sites_that_the_first_visit_does_without_are_named(place, caplog):
    schema, sites, server = place
    post = Hand(sites)
    post.asleep = {"cedar"}
    federate(server(rounds=1, deadline=0.5), schema, sites, post)
    assert [r.message for r in caplog.records if "waited" in r.message] == [
        "waited 0.5 s for sites to join; not connected: cedar"
    ]


def test_what_is_refused_changes_no_other_site(tmp_path, digits, place):
    """Two sites with a third that only sends rubbish are a federation of two."""
    schema, sites, server = place
    post = Hand(
        sites, lambda name, kind, reply: altered(reply, with_nan) if name == "cedar" and reply.models else reply
    )
    rounds, _ = federate(server(), schema, sites, post)
    pair = [replace(site, state=tmp_path / "pair" / site.name) for site in sites[:2]]
    other, _ = federate(server(state=tmp_path / "pair" / "server"), schema, pair)
    for name, weights in rounds.held["proxy"].items():
        assert torch.equal(weights, other.held["proxy"][name])


@pytest.mark.parametrize("compression", ["none", "int8"])
def test_a_missing_site_blocks_nobody_and_catches_up(place, compression):
    schema, sites, server = place
    post = Hand(sites)
    rounds = Rounds(server(rounds=4, deadline=0.2, compression=compression), schema, post, 3)
    for visit in rounds.visits:
        if visit.number == 0:
            rounds.gather()
        post.asleep = {"birch"} if visit.number in (1, 2) else set()
        rounds.visit(visit)
    report = rounds.report()
    assert [("birch" in names) for names in report["counted"]] == [True, False, False, True, True]
    birch = next(site for site in report["sites"] if site["name"] == "birch")
    assert birch["value"] == pytest.approx(birch["local"] + birch["delta"])
    held = state_of(next(s for s in sites if s.name == "birch"))["held"]["proxy"]
    assert all(torch.equal(held[k], w) for k, w in rounds.held["proxy"].items()), "it holds the newest global model"


def test_a_site_that_is_gone_for_good_costs_one_deadline(place, caplog):
    schema, sites, server = place
    post = Hand(sites)
    rounds = Rounds(server(rounds=4, deadline=0.2), schema, post, 3)
    rounds.step()
    post.asleep = {"cedar"}
    for visit in rounds.visits[1:]:
        rounds.visit(visit)
    assert [r.message for r in caplog.records if "no answer" in r.message] == [
        "visit 2 of 5: no answer within 0.2 s from cedar"
    ]


def test_too_few_stop_the_run_and_it_goes_on_later(place):
    """Every answer of the second visit fails; a new server process goes on and ends as if nothing had been."""
    schema, sites, server = place
    count = []

    def spoil(name, kind, reply):
        if kind == "visit":
            count.append(name)
        return Payload({"code": 4, "name": name}) if len(count) > 3 else reply

    done = server().state / VISITS_DONE
    for _ in range(2):
        with pytest.raises(TooFew, match="visit 2 of 3 failed: 0 of at least 2 sites"):
            federate(server(method="feddyn"), schema, sites, Hand(sites, spoil))
        assert done.read_text() == "1\n", "a visit that failed is no progress"
    _, report = federate(server(method="feddyn"), schema, sites)
    assert report["complete"]
    assert done.read_text() == "3\n"
    engine = simulate(server(method="feddyn"), schema, sites)
    for client, site in zip(engine.clients, sites, strict=True):
        ours = state_of(site)["client"]["models"]["private"]
        assert all(torch.allclose(ours[k], w, atol=1e-5) for k, w in client.models["private"].state_dict().items())


def test_no_site_at_all_is_an_error_in_time(place):
    schema, sites, server = place
    post = Hand(sites)
    post.asleep = {site.name for site in sites}
    with pytest.raises(TooFew, match=r"0 of at least 2 sites joined within 0\.1 s"):
        federate(server(deadline=0.1), schema, sites, post)


def test_too_few_at_the_start_are_waited_for_until_one_is_mended_and_restarted(place, caplog):
    """An administrator needs minutes to accept terms: the server must not give up before the deadline."""
    schema, sites, server = place

    class Mended(Hand):
        """Birch and cedar refuse once, then go away and come back."""

        waits = 0

        def wait(self, seconds):
            self.waits += 1
            self.asleep = {"birch", "cedar"} if self.waits == 3 else set()

    def refuse(name, kind, reply):
        refused = kind == "join" and name != "alder" and post.waits < 3
        return Payload({"code": int(StatusCode.REFUSED), "name": name}) if refused else reply

    post = Mended(sites, refuse)
    with caplog.at_level("INFO"):
        _, report = federate(server(rounds=1), schema, sites, post)
    assert report["counted"] == [["alder", "birch", "cedar"]] * 2
    assert caplog.text.count("waiting for 1 more; a site that could not join is asked again when it is restarted") == 1


def test_other_settings_do_not_go_on_with_an_old_federation(place):
    schema, sites, server = place
    federate(server(rounds=1), schema, sites)
    with pytest.raises(FedekdError, match=r"began with other settings: rounds was 1, is 2; bring them back"):
        federate(server(rounds=2), schema, sites)
    other = replace(schema, labels=schema.labels[::-1])
    with pytest.raises(
        FedekdError, match=r"other settings: lr was 0\.003, is 0\.5; the schema has other labels; bring"
    ):
        federate(server(rounds=1, lr=0.5), other, sites)


def test_a_finished_federation_is_not_run_again(place):
    schema, sites, server = place
    _, report = federate(server(rounds=1), schema, sites)
    post = Hand(sites)
    _, again = federate(server(rounds=1), schema, sites, post)
    assert again == report
    assert {kind for _, kind, _ in post.sent} == {"end"}


def test_the_servers_state_survives_being_spoilt(place):
    schema, sites, server = place
    rounds, report = federate(server(), schema, sites)
    rounds.saved.newest.write_bytes(b"spoilt")
    _, again = federate(server(), schema, sites)
    assert again["sites"] == report["sites"], "the last visit was asked for once more, and answered from the disk"


def test_two_nodes_cannot_have_one_name(place):
    schema, sites, server = place
    twin = replace(sites[0], state=sites[0].state.with_name("twin"))
    _, report = federate(server(rounds=1), schema, sites, Hand([*sites, twin]))
    assert [site["name"] for site in report["sites"]] == ["alder", "birch", "cedar"]
    assert not twin.state.exists() or not list(twin.state.glob("*/state.pt"))


def begun(place, **settings):
    """A federation after its first visit, and birch once more, with another key and an empty disk."""
    schema, sites, server = place
    post = Hand(sites)
    rounds = Rounds(server(rounds=3, deadline=0.2, **settings), schema, post, 3)
    rounds.step()
    post.sites[2001] = replace(sites[1], state=sites[1].state.with_name("new"))
    return rounds, post


@pytest.mark.parametrize("compression", ["none", "int8"])
def test_a_new_key_has_the_name_and_number_of_the_one_it_replaces(place, compression):
    rounds, post = begun(place, compression=compression)
    numbers = dict(rounds.progress.roster.numbers)
    post.revoked = {1001}
    for _ in rounds.visits[1:]:
        rounds.step()
    report = rounds.report()
    assert report["counted"] == [["alder", "birch", "cedar"]] * 4
    assert report["refused"] == []
    assert rounds.progress.roster.numbers == numbers
    assert rounds.progress.roster.nodes["birch"] == 2001
    codes = {reply.words["code"] for name, _, reply in post.sent if name == "birch"}
    assert codes == {0}, "it got all that it lacked, at once"
    held = state_of(post.sites[2001])["held"]["proxy"]
    assert all(torch.equal(held[k], w) for k, w in rounds.held["proxy"].items())


def test_a_name_stays_with_a_key_that_is_only_offline(place, caplog):
    rounds, post = begun(place)
    post.asleep = {1001}
    rounds.step()
    assert rounds.progress.roster.nodes["birch"] == 1001
    assert "turned away: the name 'birch' belongs to another key" in caplog.text
    post.revoked, post.asleep = {1001}, {2001}
    rounds.gather()
    assert rounds.progress.roster.nodes["birch"] == 1001, "and nobody wants it yet"
    post.asleep = set()
    rounds.step()
    assert rounds.progress.roster.nodes["birch"] == 2001
    assert [("birch" in names) for names in rounds.report()["counted"]] == [True, False, True]


def test_a_name_that_is_free_goes_to_one_key(place):
    rounds, post = begun(place)
    post.sites[2002] = replace(post.sites[2001], state=post.sites[2001].state.with_name("newer"))
    post.revoked = {1001}
    rounds.gather()
    assert rounds.progress.roster.nodes == {"alder": 1000, "birch": 2001, "cedar": 1002}


def test_a_site_with_corrupt_data_stays_out_and_only_a_code_says_so(place):
    schema, sites, server = place
    with open(sites[2].data, "wb") as file:
        file.write(b"PK not really")
    post = Hand(sites)
    _, report = federate(server(), schema, sites, post)
    assert report["complete"]
    assert [site["name"] for site in report["sites"]] == ["alder", "birch"]
    (reply,) = [payload for name, _, payload in post.sent if name == "cedar"]
    assert reply.words == {"code": 5, "name": "cedar"}
    assert reply.models == {}


class Weighing(Hand):
    """Counts the bytes of the models alone: tiny as these are, the layout beside them would count for much."""

    up = down = 0

    def send(self, node, kind, payload):
        super().send(node, kind, payload)
        self.down += weight(payload)
        self.up += weight(self.sent[-1][2])


def weight(payload: Payload) -> int:
    return sum(a.nbytes for packed in payload.models.values() for a in packed.arrays.values())


@pytest.mark.parametrize(("compression", "factor"), [("fp16", 2), ("int8", 4)])
def test_packing_saves_bytes_and_costs_little(tmp_path, digits, compression, factor):
    schema, found = schema_of(digits), {}
    for how in ("none", compression):
        sites = write_sites(tmp_path / how, digits)
        server = make_server(tmp_path / how, epochs=1, rounds=3, compression=how)
        post = Weighing(sites)
        rounds, report = federate(server, schema, sites, post)
        assert report["compression"] == how
        assert (report["bytes_up"] > post.up, report["bytes_down"] > post.down) == (True, True)
        found[how] = rounds.held["proxy"], post
    assert found["none"][1].up > 0.8 * factor * found[compression][1].up
    assert found["none"][1].down > 0.8 * factor * found[compression][1].down
    for name, weights in found["none"][0].items():
        assert torch.allclose(weights, found[compression][0][name], atol=0.02)


def test_the_report_is_on_disk(place):
    schema, sites, server = place
    settings = server(rounds=1)
    _, report = federate(settings, schema, sites)
    assert json.loads((settings.state / "report.json").read_text()) == report


def test_a_model_too_large_for_the_server_is_said_before_anything_is_sent(place):
    schema, sites, server = place
    with pytest.raises(FedekdError, match="more than `largest`"):
        Rounds(replace(server(), largest=1e-3), schema, Hand(sites), 3)


def test_a_site_mended_and_restarted_within_a_visit_joins_in_the_next(place):
    schema, sites, server = place
    rows = Path(sites[2].data)
    good = rows.read_bytes()
    rows.write_bytes(b"PK no archive")

    class Restarting(Hand):
        """In the second visit, before anybody has answered, the third site goes and comes back."""

        looks = 0

        def receive(self):
            second = sum(kind == "visit" for _, kind, _ in self.sent) == 4
            self.looks += second
            if second and self.looks <= 2:
                rows.write_bytes(good)
                self.asleep = {"cedar"} if self.looks == 1 else set()
                return []
            return super().receive()

    _, report = federate(server(rounds=3), schema, sites, Restarting(sites))
    assert [len(counted) for counted in report["counted"]] == [2, 2, 3, 3]


def test_a_site_that_lost_its_state_joins_again_even_if_all_are_needed(place):
    schema, sites, server = place
    settings = server(rounds=2, min_sites=3)

    def lose(name, kind, reply):
        if kind == "visit" and name == "cedar" and not lost:
            lost.append(name)
            shutil.rmtree(sites[2].state)
        return reply

    lost: list[str] = []
    with pytest.raises(TooFew):
        federate(settings, schema, sites, Hand(sites, lose))
    _, report = federate(settings, schema, sites)
    assert report["complete"]
    assert report["counted"] == [["alder", "birch", "cedar"]] * 3


def test_a_site_that_crashes_again_and_again_is_not_asked_for_ever(place):
    schema, sites, server = place
    post = Hand(sites, lambda name, kind, reply: None if (name, kind) == ("cedar", "visit") else reply)
    _, report = federate(server(rounds=1), schema, sites, post)
    assert report["counted"] == [["alder", "birch"]] * 2
    assert [r["site"] for r in report["refused"]] == ["cedar"] * 2
    assert "crashes" in report["refused"][0]["reason"]
    assert [kind for name, kind, _ in post.sent if name == "cedar"] == ["join", *["visit"] * 6, "end"]


def test_the_sites_are_told_the_end_and_the_report_tells_who_was_away(place):
    schema, sites, server = place

    def away_at_the_end(name, kind, reply):
        if name == "cedar" and kind == "visit" and "value" in reply.words:
            post.asleep = {"cedar"}
            return None
        return reply

    post = Hand(sites, away_at_the_end)
    settings = replace(server(rounds=1), deadline=1.0)
    _, report = federate(settings, schema, sites, post)
    assert [site["answered"] for site in report["sites"]] == [True, True, False]
    assert [len(list(site.state.glob("*/ended"))) for site in sites] == [1, 1, 0]
    text = io.StringIO()
    print_report(Console(file=text, width=100), read_report(settings.state))
    assert text.getvalue().count("no answer") == 5
