"""The server's half: visit after visit to all sites, until the last one; every complete visit is kept on disk.

A visit waits, until the deadline, for every site that is there when it begins or answered the visit before. It is
complete when enough of them gave a model that counts. A site that missed visits goes on with the newest global model
in the round that the others are in: what it missed is not made up for, except in its training alone. Nothing here
knows Flower: ``Post`` carries the letters.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from typing import Any

from torch import Tensor

from fedekd import models
from fedekd.engines.client import trainable
from fedekd.errors import FedekdError
from fedekd.exchange import Server as Combiner
from fedekd.exchange import averaging_weights, shared_roles
from fedekd.flower import parting, uploads, wire
from fedekd.flower.asking import Asking
from fedekd.flower.atomic import write_text
from fedekd.flower.combine import combination
from fedekd.flower.joining import Joining
from fedekd.flower.parting import Parting
from fedekd.flower.post import Post, TooFew, converse
from fedekd.flower.progress import Progress, differences, numbers_in
from fedekd.flower.saved_state import SavedState
from fedekd.flower.schema import Schema
from fedekd.flower.server_file import Server
from fedekd.flower.terms import Terms
from fedekd.flower.visits import Visit, visits
from fedekd.flower.wire import Letter

log = logging.getLogger("fedekd.server")


class Rounds:
    def __init__(self, server: Server, schema: Schema, post: Post, expected: int) -> None:
        """``expected``: how many sites to wait for before the first visit."""
        self.server, self.schema, self.post, self.expected = server, schema, post, expected
        self.terms = Terms.of(server)
        method = self.terms.make_method()
        method.check(schema.task)
        self.visits = visits(method, server.rounds)
        self.mean = combination(server.combine)
        self.away: set[int] = set()
        self.held: dict[str, dict[str, Tensor]] = {}
        """By role, the global model as the sites hold it."""
        self.difference: wire.Packed | None = None
        """The newest of them packed as a difference to the one before; None where it has to be sent whole."""
        start = {}
        for role in sorted(shared_roles(method, server.rounds)):
            make = self.terms.factory(role)
            module = models.build(role, make, schema.shape, schema.outputs, server.seed, client=0)
            self.held[role] = {name: t.detach().clone() for name, t in module.state_dict().items()}
            start[role] = {name: w.detach().clone() for name, w in trainable(module).items()}
        size = max((sum(t.nbytes for t in held.values()) for held in self.held.values()), default=0)
        if size > server.largest * 1e6:
            raise FedekdError(f"a model has {size / 1e6:.1f} MB, more than `largest` allows: set it higher")
        self.combiner = Combiner(start)
        self.saved = SavedState(server.state / "federation")
        self.progress = Progress(secrets.token_hex(8), json.dumps([self.terms.text(), schema.text()]))

    def run(self) -> dict[str, Any]:
        """All visits that are left, then the report."""
        with self.saved.locked():
            self._continue()
            self.began = time.monotonic() - self.progress.seconds
            for visit in self.visits[self.progress.done + 1 :]:
                self._gather(first=visit.number == 0)
                self._visit(visit)
            report = self.report()
            write_text(self.server.state / "report.json", json.dumps(report, indent=1) + "\n")
            letter = Letter({"federation": self.progress.federation})
            converse(self.post, Parting(self.progress.roster, letter), parting.SECONDS)
            return report

    def _continue(self) -> None:
        found = self.saved.load()
        if found is None:
            return
        state, agreed = found[1], self.progress.agreed
        if state["progress"]["agreed"] != agreed:
            raise FedekdError(
                f"the federation in {self.server.state} began with other settings: "
                f"{'; '.join(differences(state['progress']['agreed'], agreed))}; bring them back, or set another "
                "`state` to begin a new one"
            )
        self.progress = Progress.restored(state["progress"])
        self.held = state["held"]
        self.combiner.restore(state["combiner"])
        log.info("going on after %d of %d visits", self.progress.done + 1, len(self.visits))

    def _save(self) -> None:
        self.progress.seconds = time.monotonic() - self.began
        state = {"progress": self.progress.state(), "held": self.held, "combiner": self.combiner.state()}
        self.saved.save(self.progress.done, state)

    def _gather(self, first: bool) -> None:
        """Let new sites join; before the first visit, wait for those that are expected."""
        server, roster = self.server, self.progress.roster
        words = {"federation": self.progress.federation, "terms": self.terms.text(), "schema": self.schema.text()}
        joining = Joining(roster, self.away, Letter(dict(words)), self.expected if first else 0)
        if first and len(roster.nodes) < self.expected:
            log.info("waiting up to %g s for %d sites to join", server.deadline, self.expected)
        if not converse(self.post, joining, server.deadline):
            log.warning("waited %g s for sites to join", server.deadline)
        joining.close(self.post.admitted() if joining.names else ())
        if joining.names:
            # A new key may have come with a new disk: whoever has just joined gets all that there is.
            current = self.progress.current
            self.progress.current = [name for name in current if roster.nodes.get(name) not in joining.names]
            self._save()  # a site's number must outlive a kill
        if len(roster.nodes) < server.min_sites:
            why = (
                f"; {len(self.away)} could not, for the reasons above"
                if self.away
                else f" within {server.deadline:g} s; start the others, or lower `min_sites`"
            )
            raise TooFew(f"{len(roster.nodes)} of at least {server.min_sites} sites joined{why}")

    def _visit(self, visit: Visit) -> None:
        progress, place = self.progress, f"visit {visit.number + 1} of {len(self.visits)}"

        def failed(name: str, reason: str) -> None:
            progress.refused.append({"visit": visit.number, "site": name, "reason": reason})
            log.warning("%s: %s does not count: %s", place, name, reason)

        asking = Asking(progress.roster, self.away, progress.current, *self._letters(visit), failed)
        if not converse(self.post, asking, self.server.deadline):
            log.warning("%s: no answer within %g s from %s", place, self.server.deadline, ", ".join(asking.late))
        counted = self._checked(visit, asking.replies, failed)
        if len(counted) < self.server.min_sites:
            self._save()  # a site that has to join again must do so in the next try
            raise TooFew(
                f"{place} failed: {len(counted)} of at least {self.server.min_sites} sites gave a usable answer; "
                "the lines above say why, and the sites' own logs say more"
            )
        if visit.sends is not None:
            self._combine(visit, counted, asking.replies)
        else:
            progress.numbers = {name: numbers_in(reply) for name, reply in asking.replies.items()}
        progress.done, progress.current = visit.number, sorted(asking.replies)
        progress.counted.append(sorted(counted))
        progress.bytes_up += asking.bytes_up
        progress.bytes_down += asking.bytes_down
        self._save()
        log.info("%s: %s", place, ", ".join(sorted(counted)))

    def _letters(self, visit: Visit) -> tuple[Letter, Letter]:
        """For a site that took part in the visit before, the newest model; for any other, every role's, whole."""
        words: dict[str, wire.Word] = {"federation": self.progress.federation, "visit": visit.number}
        if visit.receives is None:
            return Letter(words), Letter(words)
        role = visit.receives.role
        whole = {each: wire.pack(held, "none")[0] for each, held in self.held.items()}
        return Letter(words, {role: self.difference or whole[role]}), Letter(words, whole)

    def _checked(self, visit: Visit, replies: dict[str, Letter], failed: Any) -> dict[str, dict[str, Tensor]]:
        """The models that count, in the order of the sites' numbers. In the last visit every answer counts."""
        if visit.sends is None:
            return {name: {} for name in replies}
        role, good = visit.sends.role, {}
        for name in sorted(replies, key=self.progress.roster.numbers.__getitem__):
            if set(replies[name].models) != {role}:
                failed(name, f"it does not send the {role} model alone")
                continue
            message = uploads.opened(replies[name].models[role], self.held[role], self.terms.compression)
            if isinstance(message, str):
                failed(name, message)
            else:
                good[name] = message
        for name, reason in uploads.outsized(good, self.held[role]).items():
            failed(name, reason)
            del good[name]
        return good

    def _combine(self, visit: Visit, counted: dict[str, dict[str, Tensor]], replies: dict[str, Letter]) -> None:
        assert visit.sends is not None
        role = visit.sends.role
        sizes = [max(1, numbers_in(replies[name]).get("n", 1)) for name in counted]
        weights = averaging_weights(self.terms.weighting, sizes)
        whole = self.combiner.combine(visit.sends, list(counted.values()), weights, self.mean)
        self.difference = None
        if self.terms.compression != "none":
            self.difference, _ = wire.pack(whole, self.terms.compression, self.held[role])
            whole = wire.unpack(self.difference, self.held[role])
            # The method's server half must know what the sites really begin from.
            self.combiner.sent[role] = {name: whole[name] for name in self.combiner.sent[role]}
        self.held[role] = whole

    def report(self) -> dict[str, Any]:
        progress, sites = self.progress, self.progress.sites()
        spent = {site["name"]: site.pop("privacy") for site in sites if "privacy" in site}
        return {
            "method": self.terms.method,
            "rounds": self.terms.rounds,
            "complete": progress.done == len(self.visits) - 1,
            "sites": sites,
            "bytes_up": progress.bytes_up,
            "bytes_down": progress.bytes_down,
            "seconds": progress.seconds,
            "privacy": spent or None,
            "compression": self.terms.compression,
            "combine": self.server.combine,
            "counted": progress.counted,
            "refused": progress.refused,
        }
