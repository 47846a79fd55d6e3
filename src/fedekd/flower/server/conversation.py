"""The server's conversations with all sites at once: letting them join, visiting them, telling them the end.

Each says who is to be asked now, what becomes of an answer and whether all is said; ``converse`` carries it over a
``Transport`` and always ends.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Any, Protocol

from fedekd.errors import FedekdError
from fedekd.flower.protocol import versions
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.messages import Reply
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.server.progress import Roster

log = logging.getLogger("fedekd.server")
PAUSE = 0.2  # seconds between two looks for answers
LOST = 3  # answers that may be lost in one visit
PARTING = 20.0  # seconds for all sites to hear that the federation is complete


class TooFew(FedekdError):
    """Not enough sites for now; the run can be tried again and goes on after the last complete visit."""


class Transport(Protocol):
    """Carries payloads to nodes, and their answers back."""

    def online(self) -> set[int]: ...
    def admitted(self) -> Mapping[int, str]: ...  # whose keys are let in, online or not: the names of the keys
    def send(self, node: int, kind: str, payload: Payload) -> None: ...
    def receive(self) -> list[tuple[int, Payload | None]]: ...  # None: this one will not be answered
    def forget(self) -> None: ...  # answers to what was sent before are of no more use
    def wait(self, seconds: float) -> None: ...


class Conversation(Protocol):
    """One round of questions: who is to be asked now, what becomes of an answer, whether all is said."""

    def due(self, online: set[int]) -> Iterable[tuple[int, str, Payload]]: ...
    def take(self, node: int, reply: Reply | None) -> None: ...
    def done(self) -> bool: ...


def converse(transport: Transport, conversation: Conversation, seconds: float) -> bool:
    """Ask and listen until all is said; False if the time was up before."""
    until = time.monotonic() + seconds
    transport.forget()
    while True:
        for node, kind, payload in list(conversation.due(transport.online())):
            transport.send(node, kind, payload)
        for node, answer in transport.receive():
            conversation.take(node, Reply.parse(answer) if answer else None)
        if conversation.done():
            return True
        if time.monotonic() > until:
            return False
        transport.wait(PAUSE)


class JoinRequests:
    """Asks every node that is there and not yet known. ``expected``: how many sites to wait for, 0 for none; those that
    cannot join count among them once ``least`` have. One that cannot join is asked again when it has been restarted.

    ``keys()``: by node, the name of its key, which is the site's. A site that calls itself otherwise is turned away,
    and whoever has that name keeps it.
    """

    def __init__(
        self,
        roster: Roster,
        away: set[int],
        payload: Payload,
        expected: int,
        keys: Callable[[], Mapping[int, str]],
        least: int = 0,
    ) -> None:
        self.roster, self.away, self.payload, self.expected, self.keys = roster, away, payload, expected, keys
        self.least, self.told = least, False
        self.known: Mapping[int, str] = {}
        self.asked: set[int] = set()
        self.names: dict[int, str] = {}

    def due(self, online: set[int]) -> Iterable[tuple[int, str, Payload]]:
        gone = self.away - online  # being restarted: perhaps its administrator has mended what was wrong
        self.away -= gone
        self.asked -= gone
        new = sorted(online - set(self.roster.nodes.values()) - self.away - self.asked)
        if not set(new) <= set(self.known):
            self.known = self.keys()
        for node in new:
            if node in self.known:  # else its key was let go in this moment
                self.asked.add(node)
                yield node, "join", Payload({**self.payload.words, "name": self.known[node]}, self.payload.models)

    def take(self, node: int, reply: Reply | None) -> None:
        if reply is None:
            self.asked.discard(node)
            return
        name = self.known[node]
        done = reply.code == StatusCode.DONE
        if reply.code == StatusCode.VERSION or (done and not versions.OLDEST <= reply.protocol <= versions.PROTOCOL):
            self.away.add(node)
            log.warning("%s", versions.site_problem(name, reply.version, reply.protocol))
        elif reply.code == StatusCode.DONE and reply.name != name:
            self.away.add(node)
            says = f"calls itself {reply.name!r}" if reply.name else "gives no name"
            log.warning("turned away: the site with the key %s.pub %s; its name is that of its key", name, says)
        elif reply.code == StatusCode.DONE:
            self.names[node] = name
            if self.expected:
                log.info("%s is ready; %d of %d sites are here", name, self._there(), self.expected)
        else:
            self.away.add(node)
            log.warning("%s cannot join: %s", name, reply.problem)

    def done(self) -> bool:
        if not self.asked <= set(self.names) | self.away or self._there() < self.expected:
            return False
        missing = self.least - len(self.roster.nodes) - len(self.names)
        if missing > 0 and not self.told:
            self.told = True
            log.info("waiting for %d more; a site that could not join is asked again when it is restarted", missing)
        return missing <= 0

    def _there(self) -> int:
        return len(self.roster.nodes) + len(self.names) + len(self.away)

    def absent(self, admitted: Mapping[int, str]) -> list[str]:
        """Whose keys are let in, and who have not been there to be asked."""
        there = {*self.roster.nodes.values(), *self.asked, *self.away}
        return sorted(name for node, name in admitted.items() if node not in there)

    def close(self, admitted: Container[int]) -> None:
        """Enter all that agreed, at once: numbers go by name, not by who was quickest.

        One that is there and says nothing is not waited for again.
        """
        for node in self.asked - set(self.names) - self.away:
            self.away.add(node)
            log.warning("%s does not answer; it is asked again after a restart", self.known[node])
        for node, reason in self.roster.admit(self.names, admitted).items():
            self.away.add(node)
            log.warning("turned away: %s", reason)
        for node in self.names:
            if (name := self.roster.name(node)) is not None:
                log.info("%s has joined", name)


class VisitRequests:
    """Asks the sites ``wanted``, and waits for those of them that answered when they were last asked (``current``).

    ``payload(name, whole)`` is what one of them is sent; ``whole`` where it has lost what a difference is made to.
    ``away`` are the nodes that could not join: one that is not there now was restarted, and is no longer among them.
    """

    kind = "visit"

    def __init__(
        self,
        roster: Roster,
        away: set[int],
        wanted: Collection[str],
        current: Collection[str],
        payload: Callable[[str, bool], Payload],
        failed: Callable[[str, str], None],
    ) -> None:
        self.roster, self.away, self.payload, self.failed = roster, away, payload, failed
        self.wanted = set(wanted)
        self.expected = set(current) & self.wanted
        self.behind: set[str] = set()
        self.asked: set[str] = set()
        self.gone: set[str] = set()
        self.lost: Counter[str] = Counter()
        self.replies: dict[str, Reply] = {}
        self.bytes_up = self.bytes_down = 0

    def due(self, online: set[int]) -> Iterable[tuple[int, str, Payload]]:
        self.away &= online
        first = not self.asked
        for name, node in sorted(self.roster.nodes.items()):
            if node not in online or name not in self.wanted or name in self.asked | self.gone | set(self.replies):
                continue
            if name not in self.expected and not first:
                continue  # it was away when the visit began, and at the one before: its turn is the next
            self.expected.add(name)
            self.asked.add(name)
            payload = self.payload(name, name in self.behind)
            self.bytes_down += payload.size
            yield node, self.kind, Payload({**payload.words, "number": self.roster.numbers[name]}, payload.models)

    def take(self, node: int, reply: Reply | None) -> None:
        name = self.roster.name(node)
        if name is None or name in self.replies:
            return
        if reply is None:
            self.asked.discard(name)
            self.lost[name] += 1
            if self.lost[name] == LOST:
                self._fails(name, "its app crashes, or its connection breaks off again and again")
            return
        self.bytes_up += reply.size
        code = reply.code
        if code == StatusCode.DONE:
            self.replies[name] = reply
            if reply.faults:
                log.warning("some of what %s says does not fit and is left out: %s", name, "; ".join(reply.faults))
        elif code == StatusCode.BEHIND and name not in self.behind:
            self.behind.add(name)
            self.asked.discard(name)
        else:
            self._fails(name, reply.problem)
            if code == StatusCode.UNKNOWN:
                self.roster.forget(name)

    def _fails(self, name: str, reason: str) -> None:
        self.gone.add(name)
        self.failed(name, reason)

    def done(self) -> bool:
        return bool(self.asked or self.gone) and not self.late

    @property
    def late(self) -> list[str]:
        return sorted(self.expected - set(self.replies) - self.gone)


class MaskingRequests(VisitRequests):
    """A stage of secure aggregation, beside the visit itself. With ``enough`` answers, whoever is not there is not
    waited for."""

    kind = "masking"

    def __init__(self, *given: Any, enough: int | None = None) -> None:
        super().__init__(*given)
        self.enough, self.online = enough, set[int]()

    def due(self, online: set[int]) -> Iterable[tuple[int, str, Payload]]:
        self.online = set(online)
        return super().due(online)

    def done(self) -> bool:
        there = {name for name, node in self.roster.nodes.items() if node in self.online}
        enough = self.enough is not None and len(self.replies) >= self.enough and not there & set(self.late)
        return enough or super().done()


class LateVisits(VisitRequests):
    """The last visit, for sites that were away then: each is asked when it comes, and its answer kept at once.

    ``waiting``: also for those that are not there yet.
    """

    def __init__(self, *given: Any, keep: Callable[[str, Reply], None], waiting: bool, **more: Any) -> None:
        super().__init__(*given, **more)
        self.keep, self.waiting = keep, waiting

    def take(self, node: int, reply: Reply | None) -> None:
        before = set(self.replies)
        super().take(node, reply)
        for name in set(self.replies) - before:
            self.keep(name, self.replies[name])

    def done(self) -> bool:
        return not (self.late if self.waiting else self.asked - set(self.replies) - self.gone)


class EndNotices:
    """Tells sites that the federation is complete. Who does not hear it stays until it gives up."""

    def __init__(self, nodes: Iterable[int], payload: Payload) -> None:
        self.nodes, self.payload = set(nodes), payload
        self.told: set[int] = set()
        self.heard: set[int] = set()

    def due(self, online: set[int]) -> Iterable[tuple[int, str, Payload]]:
        self.nodes &= online
        for node in sorted(self.nodes - self.told):
            self.told.add(node)
            yield node, "end", self.payload

    def take(self, node: int, reply: Reply | None) -> None:
        self.heard.add(node)

    def done(self) -> bool:
        return self.nodes <= self.heard
