"""A site that was away in the last visit gets its model, its verdict and its report when it comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from village import Hand, federate, make_server, schema_of, state_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from loopback import Loopback

from fedekd.errors import FedekdError
from fedekd.flower.saved_state import SavedState
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.settings import ENDED, NO_RESULT
from fedekd.flower.site import report
from fedekd.flower.supervise.run_server import run_server
from fedekd.runs import saved_models
from fedekd.runs.federation_report import read_report


class Away(Hand):
    """Cedar is gone from the last visit on."""

    def __init__(self, sites, last: int) -> None:
        super().__init__(sites)
        self.last = last

    def send(self, node, kind, payload) -> None:
        if payload.words.get("visit") == self.last:
            self.asleep.add("cedar")
            if self.sites[node].name == "cedar":
                self.waiting.append((node, None))
                return
        super().send(node, kind, payload)


def own_report(site) -> dict | None:
    found = [*site.state.glob("*/report.json")]
    return json.loads(found[0].read_text()) if found else None


@pytest.mark.parametrize(("compression", "participation"), [("none", 1.0), ("int8", 1.0), ("none", 0.7)])
def test_a_late_site_is_finished(tmp_path, digits, compression, participation):
    schema, sites = schema_of(digits), write_sites(tmp_path, digits, alone="plain")
    given = {"rounds": 2, "epochs": 1, "deadline": 1.0, "compression": compression, "participation": participation}
    server = make_server(tmp_path, **given)
    _, report = federate(server, schema, sites, Away(sites, 2))
    assert [site["answered"] for site in report["sites"]] == [True, True, False]
    assert read_report(server.state).missing == ["cedar"]
    assert own_report(sites[2]) is None
    assert not list(sites[2].state.glob(f"*/{ENDED}")), "it has not heard the end, and waits"

    rounds = Rounds(server, schema, Hand(sites), 3)
    after = rounds.finish(60.0)
    assert after == json.loads((server.state / "report.json").read_text())
    assert [site["answered"] for site in after["sites"]] == [True, True, True]
    assert after["sites"][:2] == report["sites"][:2]
    assert after["counted"] == [*report["counted"][:-1], ["alder", "birch", "cedar"]]
    assert own_report(sites[2])["verdict"]["recommendation"]
    held = state_of(sites[2])["held"]["proxy"]
    assert participation < 1 or all(torch.equal(held[k], w) for k, w in rounds.held["proxy"].items())
    assert list(sites[2].state.glob(f"*/{ENDED}"))
    assert read_report(server.state).missing == []


def test_a_site_whose_disk_is_full_in_the_last_visit_is_told_how_to_get_its_result(
    tmp_path, digits, caplog, monkeypatch
):
    """Its report is written already; but its state is not, so the server does not count it."""
    schema, sites = schema_of(digits), write_sites(tmp_path, digits, alone="plain")
    server = make_server(tmp_path, rounds=1, epochs=1, deadline=0.5)
    save = SavedState.save

    def full(self, visit, state):
        if visit == 1 and "cedar" in str(self.folder):
            raise FedekdError("disk full")
        save(self, visit, state)

    monkeypatch.setattr(SavedState, "save", full)
    _, report = federate(server, schema, sites)
    assert [site["answered"] for site in report["sites"]] == [True, True, False]
    told = "is complete, but not here: this site's last visit failed or was missed"
    assert caplog.text.count(told) == 1
    assert "ask the server's administrator to run `fedekd server finish`" in caplog.text
    (ended,) = sites[2].state.glob(f"*/{ENDED}")
    assert ended.read_text() == NO_RESULT
    monkeypatch.undo()
    after = Rounds(server, schema, Hand(sites), 3).finish(60.0)
    assert all(site["answered"] for site in after["sites"])
    assert caplog.text.count(told) == 1
    assert ended.read_text() == ""


def test_a_disk_that_is_full_when_the_models_are_kept_is_no_failed_training(tmp_path, digits, caplog, monkeypatch):
    schema, sites = schema_of(digits), write_sites(tmp_path, digits, alone="plain")

    def full(path, content, option="--out", mode=0o666):
        if "cedar" in str(path):
            raise FedekdError(f"cannot write {path}: disk full; make room there, or choose another {option}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    monkeypatch.setattr(saved_models, "write_whole", full)
    _, report = federate(make_server(tmp_path, rounds=1, epochs=1, deadline=0.5), schema, sites)
    (refused,) = report["refused"]
    assert (refused["site"], refused["reason"]) == ("cedar", "its state cannot be read or written")
    assert "disk full; make room there, or choose another `state`" in caplog.text


def test_one_that_comes_back_before_the_end_is_not_late(tmp_path, digits):
    schema, sites = schema_of(digits), write_sites(tmp_path, digits, alone="plain")
    post = Hand(sites)
    rounds = Rounds(make_server(tmp_path, epochs=1, deadline=0.5), schema, post, 3)
    for visit in rounds.visits:
        if visit.last:
            post.asleep = {"cedar"}
        rounds.step()
    assert "cedar" not in rounds.progress.numbers
    post.asleep = set()
    report = rounds.run()
    assert all(site["answered"] for site in report["sites"])


def test_nobody_is_waited_for_for_ever(tmp_path, digits, caplog):
    schema, sites = schema_of(digits), write_sites(tmp_path, digits, alone="plain")
    server = make_server(tmp_path, rounds=1, epochs=1, deadline=0.5)
    post = Away(sites, 1)
    federate(server, schema, sites, post)
    report = Rounds(server, schema, post, 3).finish(0.2)
    assert not report["sites"][2]["answered"]
    with pytest.raises(FedekdError, match="began with other settings"):
        Rounds(make_server(tmp_path, rounds=2, epochs=1), schema, post, 3).finish(0.2)
    other = make_server(tmp_path, rounds=1, epochs=1, state=tmp_path / "other")
    with pytest.raises(FedekdError, match="not complete"):
        Rounds(other, schema, post, 3).finish(0.2)


def test_the_command_starts_a_server_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(__file__).parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{source}")
    here, said = Loopback(tmp_path, 1), list[str]()
    file = here.folder / "server" / "server.toml"

    def finish():
        return run_server(file, server_app="relay:late", client_app="nowhere:app", finish=7.0, say=said.append)

    with pytest.raises(FedekdError, match="not complete yet; go on with it"):
        finish()
    left = {"method": "fedekd", "complete": True, "sites": [{"name": "site0", "answered": False}]}
    (here.state / "report.json").write_text(json.dumps(left))
    run_server(file, say=said.append)
    assert said[-1] == f"no result yet: site0; `fedekd server finish {file}` gives them theirs when they come back"
    assert finish().missing == []
    finish()
    assert said[-1] == "every site has its result already"


class Absent(Hand):
    """Cedar does not answer in the first visit."""

    def send(self, node, kind, payload) -> None:
        if payload.words.get("visit") == 0 and self.sites[node].name == "cedar":
            self.waiting.append((node, None))
            return
        super().send(node, kind, payload)


def test_one_that_missed_a_round_is_told_so_and_not_that_joining_harmed_it(tmp_path, digits, monkeypatch):
    judged = report.judge
    monkeypatch.setattr(report, "judge", lambda pairs: [replace(one, state="harmed") for one in judged(pairs)])
    schema, sites = schema_of(digits), write_sites(tmp_path, digits, alone="plain")
    server = make_server(tmp_path, rounds=3, epochs=1, deadline=1.0)
    federate(server, schema, sites, Absent(sites))
    *present, cedar = map(own_report, sites)
    assert cedar["missed"] == 1
    assert cedar["verdict"]["state"] == cedar["verdict"]["recommendation"] == "undecided"
    assert cedar["verdict"]["reason"].endswith(
        "; it was away in 1 of 3 rounds, and alone it trained in all of them, which may be why"
    )
    for one in present:
        assert "missed" not in one
        assert one["verdict"]["state"] == "harmed"
