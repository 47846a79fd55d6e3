"""Whatever a site or a server sends: no crash, no hang, and the others go on.

`make fuzz` sends 10,000 of each; here it is a share of them, with the same seeds.
"""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from village import Hand, make_server, schema_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from mutations import mutated
from rich.console import Console

from fedekd.errors import FedekdError
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.codes import StatusCode, limited
from fedekd.flower.protocol.messages import Reply
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.server.progress import FederationProgress
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.server_app import UNREADABLE
from fedekd.flower.site.handlers import answer
from fedekd.report.federation import print_report
from fedekd.runs.federation_report import read_report

COUNT = int(os.environ.get("FEDEKD_FUZZ", "150"))
BAD = 1001  # birch's node
HANG = 60.0  # seconds: a busy machine is slow, and what hangs hangs for ever


class Canned(Hand):
    """Every site answers as it did before; what birch says is changed."""

    def __init__(self, sites) -> None:
        super().__init__(sites)
        self.kept: dict[tuple[int, str, int], Payload] = {}
        self.random: Random | None = None

    def send(self, node, kind, payload) -> None:
        key = (node, kind, int(payload.words.get("visit", -1)))
        if key not in self.kept:
            self.kept[key] = answer(self.sites[node], kind, payload)
        reply = self.kept[key]
        if node == BAD and self.random is not None:
            try:
                reply = wire.from_records(mutated(wire.to_records(reply), self.random))
            except FedekdError:
                reply = UNREADABLE
        self.waiting.append((node, reply))


@pytest.fixture
def place(tmp_path, digits):
    sites = write_sites(tmp_path, digits, alone="plain", longest=HANG)
    return schema_of(digits), sites, make_server(tmp_path, rounds=1, epochs=1, weighting="samples", deadline=HANG)


def moment(rounds: Rounds):
    """What a visit changes, to go back to."""
    return copy.deepcopy((rounds.progress.state(), rounds.held, rounds.answers, rounds.apart, rounds.combiner.state()))


def back_to(rounds: Rounds, kept) -> None:
    state, rounds.held, rounds.answers, rounds.apart, combiner = copy.deepcopy(kept)
    rounds.progress = FederationProgress.restored(state)
    rounds.combiner.restore(combiner)
    rounds.away.clear()


@pytest.mark.parametrize(("method", "share"), [("fedekd", 0.7), ("fedproto", 0.1), ("fedgh", 0.1), ("scaffold", 0.1)])
def test_no_site_stops_the_others(place, method: str, share: float) -> None:
    """Also where a method's own server half works on what sites send that is no model."""
    schema, sites, server = place
    leave = ("proxy", "private", "prototypes", "control")
    sites, server = [replace(site, leave=leave) for site in sites], replace(server, method=method, rounds=2)
    post = Canned(sites)
    rounds = Rounds(server, schema, post, 3)
    moments = [moment(rounds)]
    for _ in rounds.visits:
        rounds.step()
        moments.append(moment(rounds))
    assert rounds.progress.counted == [["alder", "birch", "cedar"]] * len(rounds.visits)
    for seed in range(int(share * COUNT)):
        number = seed % len(rounds.visits)
        post.random = Random(seed)
        back_to(rounds, moments[number])
        with limited(HANG):
            rounds.step()
        counted = rounds.progress.counted[-1]
        assert {"alder", "cedar"} <= set(counted), seed
        assert all(torch.isfinite(t).all() for tree in rounds.answers.values() for t in tree.values()), seed
        if rounds.visits[number].last:
            text = json.dumps(rounds.report() | {"complete": True}, allow_nan=False)
            (server.state / "report.json").write_text(text)
            report = read_report(server.state)
            print_report(Console(file=io.StringIO()), report)
            assert "\x1b" not in text


def test_no_server_stops_a_site(place) -> None:
    """Only a code leaves a site, and it is one that was foreseen."""
    schema, sites, server = place
    asked: dict[tuple[str, int], Payload] = {}
    folders: dict[tuple[str, int], Path] = {}
    site = sites[0]

    class Listening(Hand):
        def send(self, node, kind, payload) -> None:
            if node == 1000:
                key = (kind, int(payload.words.get("visit", -1)))
                asked[key], folders[key] = payload, site.state.with_name(f"before {len(asked)}")
                if site.state.exists():
                    shutil.copytree(site.state, folders[key])
            super().send(node, kind, payload)

    Rounds(server, schema, Listening(sites), 3).run()
    assert [kind for kind, _ in asked] == ["join", "visit", "visit", "end"]
    own = replace(site, state=site.state.with_name("own"))
    for seed in range(COUNT):
        key = Random(seed).choice([*asked])
        shutil.rmtree(own.state, ignore_errors=True)
        if folders[key].exists():
            shutil.copytree(folders[key], own.state)
        records = mutated(wire.to_records(asked[key]), Random(seed))
        try:
            payload = wire.from_records(records)
        except FedekdError:
            continue
        start = time.monotonic()
        reply = answer(own, key[0], payload)
        assert time.monotonic() - start < HANG, seed
        assert Reply.parse(reply).code not in (StatusCode.FAULT, StatusCode.UNREADABLE), (seed, key)
        if reply.words["code"]:
            version = {"fedekd", "protocol"} if reply.words["code"] == StatusCode.VERSION else set()
            assert set(reply.words) == {"code", "name"} | version
            assert reply.models == {}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("code", float("inf")),
        ("code", float("nan")),
        ("code", "0"),
        ("code", 77),
        ("privacy", json.dumps({"epsilon": 10**400, "delta": 0.1, "clip": 1, "guarantee": "x"})),
        ("delta", 10**400),
        ("n", 10**400),
    ],
)
def test_what_does_not_fit_is_named(word, value) -> None:
    reply = Reply.parse(Payload({"code": 0, "name": "birch", word: value}))
    assert reply.faults[0].startswith(f"{word} is ")
    assert word not in reply.numbers
    assert reply.code == (StatusCode.UNREADABLE if word == "code" else StatusCode.DONE)
    assert reply.name == "birch"
