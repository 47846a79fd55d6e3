"""Letting sites join: each gets terms and schema, and answers with its name or with what keeps it away."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable

from fedekd.flower.protocol.codes import Code
from fedekd.flower.protocol.wire import Letter
from fedekd.flower.server.post import code_of
from fedekd.flower.server.roster import Roster
from fedekd.flower.settings import usable_name

log = logging.getLogger("fedekd.server")


class Joining:
    """Asks every node that is there and not yet known. ``expected``: how many sites to wait for, 0 for none."""

    def __init__(self, roster: Roster, away: set[int], letter: Letter, expected: int) -> None:
        self.roster, self.away, self.letter, self.expected = roster, away, letter, expected
        self.asked: set[int] = set()
        self.names: dict[int, str] = {}

    def due(self, online: set[int]) -> Iterable[tuple[int, str, Letter]]:
        self.away &= online  # one that was restarted may have been mended, and is asked again
        known = set(self.roster.nodes.values())
        for node in sorted(online - known - self.away - self.asked):
            self.asked.add(node)
            yield node, "join", self.letter

    def take(self, node: int, reply: Letter | None) -> None:
        if reply is None:
            self.asked.discard(node)
            return
        name, code = str(reply.words.get("name", "")), code_of(reply)
        if code == Code.DONE:
            self.names[node] = name
            if self.expected:
                log.info(
                    "%s is ready; %d of %d sites are here",
                    usable_name(name) or f"node {node}",
                    self._there(),
                    self.expected,
                )
        else:
            self.away.add(node)
            log.warning("%s cannot join: %s", usable_name(name) or f"node {node}", code.meaning)

    def done(self) -> bool:
        return self.asked <= set(self.names) | self.away and self._there() >= self.expected

    def _there(self) -> int:
        return len(self.roster.nodes) + len(self.names) + len(self.away)

    def close(self, admitted: Container[int]) -> None:
        """Enter all that agreed, at once: numbers go by name, not by who was quickest.

        One that is there and says nothing is not waited for again.
        """
        for node in self.asked - set(self.names) - self.away:
            self.away.add(node)
            log.warning("node %d does not answer; it is asked again after a restart", node)
        for node, reason in self.roster.admit(self.names, admitted).items():
            self.away.add(node)
            log.warning("turned away: %s", reason)
        for node in self.names:
            if (name := self.roster.name(node)) is not None:
                log.info("%s has joined", name)
