"""A village whose sites know each other's keys, and whose server sees only sums."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from village import Hand, make_server, schema_of, write_sites

from fedekd.flower.protocol.wire import Payload
from fedekd.flower.server.secure_rounds import SecureRounds
from fedekd.flower.setup.keys import make_node_key
from fedekd.flower.site import handlers

SECURE = {"aggregation": "secure", "min_sites": 3, "rounds": 2, "epochs": 1, "deadline": 1.0}


def place(folder, dataset, count=4, **given):
    """Sites that know each other's keys, and a server that knows them too."""
    peers = folder / "peers"
    peers.mkdir(parents=True)
    more = {"public": given["public"]} if "public" in given else {}
    leave = ("proxy", "private", "logits", "control")
    known = peers if given.get("aggregation", "secure") == "secure" else None
    sites = write_sites(folder, dataset, count, alone="plain", peers=known, leave=leave, **more)
    for number, site in enumerate(sites):
        public = make_node_key(folder / f"{site.name}.key")
        public.rename(peers / f"{site.name}.pub")
        sites[number] = replace(site, key=folder / f"{site.name}.key")
    return make_server(folder, nodes=peers, **{**SECURE, **given}), schema_of(dataset), sites


def secure(server, schema, post):
    return SecureRounds(server, schema, post, len(post.sites))


class Watching(Hand):
    """Remembers what the server is given; ``lost(name, kind, stage)`` says what it is not given."""

    def __init__(self, sites, lost=lambda name, kind, stage: False) -> None:
        super().__init__(sites)
        self.lost = lost
        self.stages: list[tuple[str, str, Payload]] = []

    def send(self, node, kind, payload) -> None:
        stage = str(payload.words.get("stage", kind))
        name = self.sites[node].name
        if self.lost(name, stage, int(payload.words.get("visit", -1))):
            self.asleep.add(name)
            return
        super().send(node, kind, payload)
        self.stages.append((name, stage, self.sent[-1][2]))

    def uploads(self, number=0) -> dict[str, np.ndarray]:
        found: dict[str, list[np.ndarray]] = {}
        for name, stage, reply in self.stages:
            if stage == "visit" and reply.models:
                found.setdefault(name, []).append(reply.models["proxy"].arrays["masked"])
        return {name: uploads[number] for name, uploads in found.items()}


def alike(one, other, atol) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=atol)


class Asking:
    """A server that asks one site, after an honest visit up to a stage."""

    def __init__(self, folder, dataset, until: str, rounds=1, visit=0) -> None:
        """``until``: a stage of ``visit``, which alder has not been asked for then."""
        server, schema, self.sites = place(folder, dataset, rounds=rounds)
        self.first: dict[str, Payload] = {}
        self.last: dict[str, Payload] = {}
        """By stage: what alder was sent at first, and last."""
        asking = self

        class Until(Hand):
            def send(self, node, kind, payload) -> None:
                stage = str(payload.words.get("stage", kind))
                if self.sites[node].name == "alder":
                    asking.first.setdefault(stage, payload)
                    asking.last[stage] = payload
                if stage == until and payload.words["visit"] == visit:
                    raise KeyboardInterrupt
                super().send(node, kind, payload)

        with pytest.raises(KeyboardInterrupt):
            secure(server, schema, Until(self.sites)).run()

    def ask(self, stage: str, caplog, **words) -> tuple[int, str]:
        kind = stage if stage == "visit" else "masking"
        caplog.clear()
        before = self.last.get(stage, self.last["keys"])
        request = Payload({**before.words, "stage": stage, **words}, before.models)
        reply = handlers.answer(self.sites[0], kind, request)
        assert reply.words["code"] or "masking" in reply.words
        return int(reply.words["code"]), caplog.text


def masking_words(request: Payload) -> dict[str, str]:
    return json.loads(str(request.words["masking"]))
