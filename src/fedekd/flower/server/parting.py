"""Telling the sites that the federation is complete. Who does not hear it stays until it gives up; nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable

from fedekd.flower.protocol.wire import Letter
from fedekd.flower.server.roster import Roster

SECONDS = 20.0  # for all of them to hear it


class Parting:
    def __init__(self, roster: Roster, letter: Letter) -> None:
        self.nodes, self.letter = set(roster.nodes.values()), letter
        self.told: set[int] = set()
        self.heard: set[int] = set()

    def due(self, online: set[int]) -> Iterable[tuple[int, str, Letter]]:
        self.nodes &= online
        for node in sorted(self.nodes - self.told):
            self.told.add(node)
            yield node, "end", self.letter

    def take(self, node: int, reply: Letter | None) -> None:
        self.heard.add(node)

    def done(self) -> bool:
        return self.nodes <= self.heard
