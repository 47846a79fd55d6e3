"""Writes down how far a federation is, by looking at the messages that pass between the rounds and the sites."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from fedekd import __version__
from fedekd.errors import FedekdError
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.messages import Reply
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.saved_state import write_text
from fedekd.flower.server.conversation import Transport
from fedekd.flower.server.rounds import Rounds
from fedekd.runs.federation_report import RefusedAnswer
from fedekd.runs.federation_status import STATUS, FederationStatus, SiteStatus, read_status

SOON, OFTEN = 1.0, 10.0  # seconds between two versions of the file: where something happened, and where nothing did
KEPT = 20  # answers that did not count
NO_ANSWER = "no answer: its connection broke off, or its app crashed"
STAGES = {"join": "letting sites join", "end": "telling the sites that it is over"}


class WatchedTransport:
    """A transport as it is, with a file that tells what went through it."""

    def __init__(self, transport: Transport, state: Path) -> None:
        self.transport, self.state = transport, state
        self.rounds: Rounds | None = None
        self.known: dict[int, str] = {}
        self.sites: dict[str, SiteStatus] = {}
        self.federation = ""
        self.visits: set[str] = set()  # sites that are at a visit, not at a join
        self.stage, self.began = "waiting for sites", time.time()
        self.written, self.changed = 0.0, True
        self.before: FederationStatus | None = None
        with contextlib.suppress(FedekdError):
            self.before = read_status(state)

    @contextlib.contextmanager
    def following(self, rounds: Rounds) -> Iterator[None]:
        """Tell of these rounds until they end."""
        self.rounds = rounds
        try:
            yield
        finally:
            if self.written:  # else it has not begun, and what there is stays
                self._write()

    # --- what passes ----------------------------------------------------------------------------------------

    def online(self) -> set[int]:
        found, names = self.transport.online(), self.names()
        for node, name in names.items():
            site = self._site(name)
            self.changed |= site["online"] != (node in found)
            site["online"] = node in found
        self._write(OFTEN)
        return found

    def admitted(self) -> Mapping[int, str]:
        self.known = dict(self.transport.admitted())
        return self.known

    def send(self, node: int, kind: str, payload: Payload) -> None:
        self._belong(str(payload.words.get("federation", "")))
        site, name = self._site(self._name(node)), self._name(node)
        site["asked"] = time.time()
        site["bytes_down"] += payload.size
        (self.visits.add if kind == "visit" else self.visits.discard)(name)
        self._enter(STAGES.get(kind) or f"visit {int(payload.words['visit']) + 1}")
        self.transport.send(node, kind, payload)

    def receive(self) -> list[tuple[int, Payload | None]]:
        found = self.transport.receive()
        for node, answer in found:
            self._take(self._name(node), Reply.parse(answer) if answer else None)
        self._write(SOON if self.changed else OFTEN)
        return found

    def forget(self) -> None:
        self.transport.forget()

    def wait(self, seconds: float) -> None:
        self.transport.wait(seconds)

    # --- what it means --------------------------------------------------------------------------------------

    def names(self) -> dict[int, str]:
        """A site that has not joined yet goes by the name of its key."""
        roster = self.rounds.progress.roster.nodes if self.rounds else {}
        return {**self.known, **{node: name for name, node in roster.items()}}

    def _name(self, node: int) -> str:
        return self.names().get(node, f"node {node}")

    def _belong(self, federation: str) -> None:
        """Go on counting where this is the federation that the file is about."""
        if federation == self.federation:
            return
        self.federation = federation
        if self.before and self.before["federation"] == federation:
            self.sites = self.before["sites"]

    def _site(self, name: str) -> SiteStatus:
        return self.sites.setdefault(
            name,
            SiteStatus(
                online=True, version="", asked=None, answered=None, seconds=None, answers=0, counted=0, failures=0,
                bytes_up=0, bytes_down=0, epsilon=None, error="",
            ),
        )  # fmt: skip

    def _take(self, name: str, reply: Reply | None) -> None:
        site, now, visit = self._site(name), time.time(), name in self.visits
        self.changed = True
        if reply is None or reply.code not in (StatusCode.DONE, StatusCode.BEHIND):
            site["failures"] += 1
            site["error"] = reply.problem if reply else NO_ANSWER
        if reply is None:
            return
        site["bytes_up"] += reply.size
        site["answered"], site["version"] = now, reply.version or site["version"]
        if "privacy" in reply.numbers:
            site["epsilon"] = reply.numbers["privacy"]["epsilon"]
        if reply.code == StatusCode.DONE and visit:
            site["answers"] += 1
            site["seconds"] = now - (site["asked"] or now)

    def _enter(self, stage: str) -> None:
        self.changed = True
        if stage != self.stage:
            self.stage, self.began = stage, time.time()

    # --- the file -------------------------------------------------------------------------------------------

    def _write(self, after: float = 0.0) -> None:
        if self.rounds is None or time.time() < self.written + after:
            return
        self.written, self.changed = time.time(), False
        with contextlib.suppress(FedekdError):  # a disk without room for this has other things to say
            write_text(self.state / STATUS, json.dumps(self.status(self.rounds), indent=1) + "\n")

    def status(self, rounds: Rounds) -> FederationStatus:
        progress, count = rounds.progress, len(rounds.visits)
        self._belong(progress.federation)
        for name in progress.roster.numbers:
            self._site(name)["counted"] = sum(name in names for names in progress.counted)
        for one in progress.refused:
            self._site(one["site"])["error"] = f"visit {one['visit'] + 1}: {one['reason']}"
        return FederationStatus(
            fedekd=__version__, federation=progress.federation, method=rounds.terms.method, rounds=rounds.terms.rounds,
            aggregation=rounds.terms.aggregation, visits=count, done=progress.done + 1, stage=self.stage,
            complete=progress.done + 1 == count, began=self.began, updated=time.time(),
            deadline=rounds.server.deadline, sites=self.sites,
            refused=cast("list[RefusedAnswer]", progress.refused[-KEPT:]),
        )  # fmt: skip
