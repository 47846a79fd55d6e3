"""One visit to all sites at once: each is asked when it is there, and asked again when an answer was lost."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from fedekd.flower.protocol.codes import Code
from fedekd.flower.protocol.wire import Letter
from fedekd.flower.server.post import code_of
from fedekd.flower.server.roster import Roster

log = logging.getLogger("fedekd.server")
LOST = 3  # answers that may be lost in one visit


class Asking:
    """Asks the sites ``wanted``, and waits for those of them that answered when they were last asked (``current``).

    ``letter(name, whole)`` is what one of them is sent; ``whole`` where it has lost what a difference is made to.
    ``away`` are the nodes that could not join: one that is not there now was restarted, and is no longer among them.
    """

    def __init__(
        self,
        roster: Roster,
        away: set[int],
        wanted: Collection[str],
        current: Collection[str],
        letter: Callable[[str, bool], Letter],
        failed: Callable[[str, str], None],
    ) -> None:
        self.roster, self.away, self.letter, self.failed = roster, away, letter, failed
        self.wanted = set(wanted)
        self.expected = set(current) & self.wanted
        self.behind: set[str] = set()
        self.asked: set[str] = set()
        self.gone: set[str] = set()
        self.lost: Counter[str] = Counter()
        self.replies: dict[str, Letter] = {}
        self.bytes_up = self.bytes_down = 0

    def due(self, online: set[int]) -> Iterable[tuple[int, str, Letter]]:
        self.away &= online
        first = not self.asked
        for name, node in sorted(self.roster.nodes.items()):
            if node not in online or name not in self.wanted or name in self.asked | self.gone | set(self.replies):
                continue
            if name not in self.expected and not first:
                continue  # it was away when the visit began, and at the one before: its turn is the next
            self.expected.add(name)
            self.asked.add(name)
            letter = self.letter(name, name in self.behind)
            self.bytes_down += letter.size
            yield node, "visit", Letter({**letter.words, "number": self.roster.numbers[name]}, letter.models)

    def take(self, node: int, reply: Letter | None) -> None:
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
        code = code_of(reply)
        if code == Code.DONE:
            self.replies[name] = reply
        elif code == Code.BEHIND and name not in self.behind:
            self.behind.add(name)
            self.asked.discard(name)
        else:
            self._fails(name, code.meaning)
            if code == Code.UNKNOWN:
                self.roster.forget(name)

    def _fails(self, name: str, reason: str) -> None:
        self.gone.add(name)
        self.failed(name, reason)

    def done(self) -> bool:
        return bool(self.asked or self.gone) and not self.late

    @property
    def late(self) -> list[str]:
        return sorted(self.expected - set(self.replies) - self.gone)
