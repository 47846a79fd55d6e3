"""The server's half: visit after visit to all sites, until the last one; every complete visit is kept on disk.

A visit waits, until the deadline, for every site that is there when it begins or answered the visit before. It is
complete when enough of them gave an upload that counts. A site that missed visits goes on with the newest answers in
the round that the others are in: what it missed is not made up for, except in its training alone. Where not all sites
take part in every round, one is visited only for the rounds that it was drawn for, and in the end. Nothing here knows
Flower: ``Transport`` carries the messages.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedekd import parts
from fedekd.engines.job import Job, Rows
from fedekd.engines.rehearsal import rehearse
from fedekd.engines.schedule import participants
from fedekd.engines.server import ServerClient, server_facts
from fedekd.errors import FedekdError
from fedekd.exchange import Aggregator, Message, answer_of, averaging_weights, exchanges, size
from fedekd.flower.protocol import layouts, uploads, versions, wire
from fedekd.flower.protocol.messages import Reply
from fedekd.flower.protocol.offers import differences
from fedekd.flower.protocol.rows import check_public, of_server, read_public
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.visits import Visit, called, inwards, outwards, visits
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.saved_state import SavedState, locked, write_text
from fedekd.flower.server.conversation import (
    PARTING,
    EndNotices,
    JoinRequests,
    LateVisits,
    TooFew,
    Transport,
    VisitRequests,
    converse,
)
from fedekd.flower.server.progress import FederationProgress
from fedekd.flower.server.results import signed_result
from fedekd.flower.settings import VISITS_DONE, ServerSettings
from fedekd.methods.base import Exchange
from fedekd.upload_checks import UploadChecks

Uploaded = dict[str, dict[str, Tensor]]  # what one site sent, by exchange
log = logging.getLogger("fedekd.server")


class Rounds:
    def __init__(self, server: ServerSettings, schema: Schema, transport: Transport, expected: int) -> None:
        """``expected``: how many sites to wait for before the first visit."""
        self.server, self.schema, self.transport, self.expected = server, schema, transport, expected
        public = read_public(server.public, schema, server.target) if server.public else None
        self.terms = Terms.of(server, public.fingerprint if public else None)
        method = self.terms.make_method()
        method.check(schema.task)
        check_public(method.public, public, self.terms.method, "server.toml")
        self.visits = visits(method, server.rounds)
        self.away: set[int] = set()
        federation = of_server(schema, server.seed, public.dataset if public else None)
        factories = (self.terms.factory(role) for role in ("private", "proxy"))
        self.job = Job(federation, method, server.seed, self.terms.training(), *factories)
        if server.combine != "mean" or server.aggregation == "secure":
            rehearse(self.job)  # a method that takes no mean, or more than it, is found before the sites train
        self.rows = Rows.of(self.job)
        own = ServerClient(self.job, self.rows)
        self.exchanges = exchanges(method, server.rounds)
        self.layouts = layouts.layouts(self.job)
        self.models = {n: own.models[n] for n, step in self.exchanges.items() if not step.send}
        self.held: dict[str, dict[str, Tensor]] = {
            name: {n: t.detach().clone() for n, t in own.models[step.target].state_dict().items()}
            for name, step in self.exchanges.items()
            if step.target
        }
        """By exchange whose answer goes into a model: that model as the sites hold it."""
        self.answers: dict[str, dict[str, Tensor]] = {}
        """By exchange: the newest answer to all."""
        self.apart: dict[str, Uploaded] = {}
        """By exchange that answers each site apart: the newest answers, by site."""
        self.differences: dict[str, wire.Packed] = {}
        """The newest answers packed as differences to those before, where they are known."""
        largest = max((sum(size(self._expected(s)) for s in visit.sends) for visit in self.visits), default=0)
        if largest > server.largest * 1e6:
            raise FedekdError(f"an upload has {largest / 1e6:.1f} MB, more than `largest` allows: set it higher")
        start = {name: own.weights(s.target, s.part) for name, s in self.exchanges.items() if s.target}
        self.combiner = Aggregator(start, **server_facts(self.job, self.rows))
        self.checks = UploadChecks()
        self.saved = SavedState(server.state / "federation")
        self.began = time.monotonic()
        self.progress = FederationProgress(secrets.token_hex(8), json.dumps([self.terms.text(), schema.text()]))

    def run(self) -> dict[str, Any]:
        """All visits that are left, then the report."""
        with locked(self.saved.folder):
            self._continue()
            while self.progress.done + 1 < len(self.visits):
                self.step()
            self._late(self.server.deadline, self._failed_last(), waiting=False)
            return self._end()

    def finish(self, seconds: float) -> dict[str, Any]:
        """Once all visits are done: give the sites that were away in the last one theirs, as they come back."""
        with locked(self.saved.folder):
            self._continue()
            if self.progress.done + 1 < len(self.visits):
                raise FedekdError("the federation is not complete; `fedekd server run` goes on with it")
            self._late(seconds, set(), waiting=True)
            return self._end()

    def _end(self) -> dict[str, Any]:
        """The report; and the word that it is over to all that had their last visit: others may still get theirs."""
        report, progress = self._write_report(), self.progress
        had = {*progress.numbers, *self._failed_last()}
        nodes = [node for name, node in progress.roster.nodes.items() if name in had]
        words = {"federation": progress.federation, **signed_result(self)}
        converse(self.transport, EndNotices(nodes, Payload(dict(words))), PARTING)
        return report

    def _failed_last(self) -> set[str]:
        return {one["site"] for one in self.progress.refused if one["visit"] == len(self.visits) - 1}

    def _write_report(self) -> dict[str, Any]:
        report = self.report()
        write_text(self.server.state / "report.json", json.dumps(report, indent=1) + "\n")
        return report

    def _late(self, seconds: float, without: set[str], *, waiting: bool) -> None:
        """The last visit for the sites that have not had it, except for some."""
        progress, visit = self.progress, self.visits[-1]
        missing = {*progress.roster.nodes} - {*progress.numbers} - without
        if not missing:
            return
        rounds, packed = self._taking_part(visit), dict[str, wire.Packed]()
        payload = lambda name, _: self._payload(visit, name, rounds[name], True, packed)  # noqa: E731

        def keep(name: str, reply: Reply) -> None:
            progress.numbers[name] = dict(reply.numbers)
            progress.counted[-1] = sorted({*progress.counted[-1], name})
            progress.bytes_up += reply.size
            self._save()
            self._write_report()
            log.info("%s was away in the last visit and has its result now", name)

        if waiting:
            log.info("waiting up to %g s for %s", seconds, ", ".join(sorted(missing)))
        asking = LateVisits(
            *(progress.roster, self.away, missing, missing, payload, self._failed(visit)), keep=keep, waiting=waiting
        )
        converse(self.transport, asking, seconds)
        progress.bytes_down += asking.bytes_down
        self._save()

    def _failed(self, visit: Visit) -> Callable[[str, str], None]:
        """What is done where a site does not count in a visit: told, and kept for the report."""

        def failed(name: str, reason: str) -> None:
            self.progress.refused.append({"visit": visit.number, "site": name, "reason": reason})
            log.warning("visit %d of %d: %s does not count: %s", visit.number + 1, len(self.visits), name, reason)

        return failed

    def step(self) -> None:
        """The next visit, with the sites that are new by then."""
        self.gather()
        self.visit(self.visits[self.progress.done + 1])

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
        self.progress = FederationProgress.restored(state["progress"])
        self.held, self.answers, self.apart = state["held"], state["answers"], state["apart"]
        self.began = time.monotonic() - self.progress.seconds
        self.combiner.restore(state["combiner"])
        self.checks.restore(state.get("checks", {}))  # a version without them kept nothing
        self._tell_progress()
        log.info("going on after %d of %d visits", self.progress.done + 1, len(self.visits))

    def _tell_progress(self) -> None:
        """To whom it concerns whether trying again has any use; the state itself is also saved where a visit fails."""
        write_text(self.server.state / VISITS_DONE, f"{self.progress.done + 1}\n")

    def _save(self) -> None:
        self.progress.seconds = time.monotonic() - self.began
        state = {"progress": self.progress.state(), "held": self.held, "combiner": self.combiner.state()}
        state |= {"answers": self.answers, "apart": self.apart, "checks": self.checks.state()}
        self.saved.save(self.progress.done, state)

    def gather(self) -> None:
        """Let new sites join; before the first visit, wait for those that are expected."""
        server, roster, first = self.server, self.progress.roster, self.progress.done < 0
        words: dict[str, wire.Word] = {**versions.own(), "federation": self.progress.federation}
        words |= {"terms": self.terms.text(), "schema": self.schema.text()}
        if self.layouts:
            words["layouts"] = layouts.text(self.layouts)
        expected, least = (self.expected, server.min_sites) if first else (0, 0)
        joining = JoinRequests(roster, self.away, Payload(words), expected, self.transport.admitted, least)
        if first and len(roster.nodes) < self.expected:
            log.info("waiting up to %g s for %d sites to join", server.deadline, self.expected)
        if not converse(self.transport, joining, server.deadline):
            absent = joining.absent(self.transport.admitted()) if first else []
            named = f"; not connected: {', '.join(absent)}" if absent else ""
            log.warning("waited %g s for sites to join%s", server.deadline, named)
        joining.close(self.transport.admitted() if joining.names else ())
        if joining.names:
            # A new key may have come with a new disk: whoever has just joined gets all that there is.
            self.progress.forget([name for name, node in roster.nodes.items() if node in joining.names])
            self._save()  # a site's number must outlive a kill
        if len(roster.nodes) < server.min_sites:
            why = (
                f" within {server.deadline:g} s; {len(self.away)} could not, for the reasons above"
                if self.away
                else f" within {server.deadline:g} s; start the others, or lower `min_sites`"
            )
            raise TooFew(f"{len(roster.nodes)} of at least {server.min_sites} sites joined{why}")

    def visit(self, visit: Visit) -> None:
        """Ask all that take part, check and combine what they send, and save."""
        progress, place = self.progress, f"visit {visit.number + 1} of {len(self.visits)}"
        failed = self._failed(visit)
        rounds = self._taking_part(visit)
        wanted = self._wanted(visit, rounds, failed)
        packed: dict[str, wire.Packed] = {}
        payload = lambda name, whole: self._payload(visit, name, rounds[name], whole, packed)  # noqa: E731
        asking = VisitRequests(progress.roster, self.away, wanted, progress.current, payload, failed)
        if not converse(self.transport, asking, self.server.deadline):
            log.warning("%s: no answer within %g s from %s", place, self.server.deadline, ", ".join(asking.late))
        replies = asking.replies
        senders = {name: reply for name, reply in replies.items() if visit.last or visit.round in rounds[name]}
        counted = self._checked(visit, senders, failed)
        if len(counted) < self.server.min_sites:
            self._save()  # a site that has to join again must do so in the next try
            raise TooFew(
                f"{place} failed: {len(counted)} of at least {self.server.min_sites} sites gave a usable answer; "
                "the lines above say why, and the sites' own logs say more"
            )
        for name in replies:
            if rounds[name]:
                for having in progress.has.values():
                    having += [] if name in having else [name]
        if visit.last:
            progress.numbers = {name: dict(reply.numbers) for name, reply in replies.items()}
        for step in visit.sends:
            self._combine(step, visit.round or 0, counted, replies)
        self.checks.remember(counted)
        progress.done, progress.answered = visit.number, sorted(replies)
        progress.current = sorted({*progress.current} - {*wanted} | {*replies})
        progress.counted.append(sorted(counted))
        progress.bytes_up += asking.bytes_up
        progress.bytes_down += asking.bytes_down
        self._save()
        self._tell_progress()
        log.info("%s: %s", place, ", ".join(sorted(counted)))

    def _wanted(self, visit: Visit, rounds: dict[str, tuple[int, ...]], failed: Any) -> list[str]:
        return [name for name, own in rounds.items() if own or visit.last]

    def _taking_part(self, visit: Visit) -> dict[str, tuple[int, ...]]:
        """By site: the rounds of a visit that it takes part in. A round's sites are drawn once."""
        numbers, share, drawn = self.progress.roster.numbers, self.terms.participation, self.progress.drawn
        if share >= 1:
            return dict.fromkeys(self.progress.roster.nodes, visit.rounds)
        for round in [round for round in drawn if round not in visit.rounds]:
            del drawn[round]
        for round in visit.rounds:
            drawn.setdefault(round, participants(self.terms.seed, round, len(numbers), share))
            if len(drawn[round]) < self.server.min_sites:
                raise FedekdError(
                    f"participation {share:g} of {len(numbers)} sites draws {len(drawn[round])}, fewer than "
                    f"`min_sites` {self.server.min_sites}; raise `participation`, or lower `min_sites`"
                )
        return {
            name: tuple(round for round in visit.rounds if numbers[name] in drawn[round])
            for name in self.progress.roster.nodes
        }

    def _payload(
        self, visit: Visit, name: str, rounds: tuple[int, ...], whole: bool, packed: dict[str, wire.Packed]
    ) -> Payload:
        """What one site is sent: the answers that it lacks. One that answered the visit before had all others by then,
        so that it is sent the difference to them; any other gets them whole.

        A site that takes part in none of the rounds gets nothing. ``packed`` keeps what was packed for another.
        """
        progress = self.progress
        words: dict[str, wire.Word] = {"federation": progress.federation, "visit": visit.number}
        if self.terms.participation < 1:
            words["rounds"] = " ".join(map(str, rounds))
        found = {}
        for exchange in progress.has if rounds else ():
            if name in progress.has[exchange] and not whole:
                continue
            if exchange in self.apart:
                if name in self.apart[exchange]:
                    found[exchange] = wire.pack(self.apart[exchange][name], "none")[0]
                continue
            if exchange in self.differences and name in progress.answered and not whole:
                found[exchange] = self.differences[exchange]
                continue
            if exchange not in packed:
                packed[exchange] = wire.pack(self.answers[exchange], "none")[0]
            found[exchange] = packed[exchange]
        return Payload(words, found)

    def _expected(self, step: Exchange) -> Message:
        """What an upload must look like; where it is a model, this is also what a difference is made to."""
        if step.send:
            return self.layouts[step.name]
        module = self.models[step.name]
        known = self.held[step.name] if step.target == step.name else module.state_dict()
        return {name: known[name] for name in parts.names(step.part, module)}

    def _checked(self, visit: Visit, replies: dict[str, Reply], failed: Any) -> dict[str, Uploaded]:
        """The uploads that count, in the order of the sites' numbers. In the last visit every answer counts."""
        good: dict[str, Uploaded] = {}
        for name in sorted(replies, key=self.progress.roster.numbers.__getitem__):
            found = self._opened(visit, replies[name])
            if isinstance(found, str):
                failed(name, found)
            else:
                good[name] = found
        for step in visit.sends:
            if step.send is None:
                messages = {name: sent[step.name] for name, sent in good.items()}
                updates = step.target == step.name and not step.each
                for name, reason in self.checks.refused(step.name, messages, self._expected(step), updates).items():
                    failed(name, reason)
                    del good[name]
        return good

    def _opened(self, visit: Visit, reply: Reply) -> Uploaded | str:
        if visit.last:
            return {}
        if set(reply.models) != {step.name for step in visit.sends}:
            return f"it does not send {' and '.join(map(called, visit.sends))} alone"
        found: Uploaded = {}
        for step in visit.sends:
            how = inwards(step, self.terms.compression)
            message = uploads.opened(reply.models[step.name], self._expected(step), how)
            if isinstance(message, str):
                return message
            found[step.name] = message
        return found

    def _combine(self, step: Exchange, round: int, counted: dict[str, Uploaded], replies: dict[str, Reply]) -> None:
        name, progress, numbers = step.name, self.progress, self.progress.roster.numbers
        sizes = [replies[site].numbers.get("n", 1) for site in counted]
        weights = averaging_weights(self.terms.weighting, sizes)
        messages = [sent[name] for sent in counted.values()]
        self.combiner.about["clients"] = len(numbers)
        answer = self.combiner.combine(step, messages, weights, [numbers[site] for site in counted], round)
        progress.has[name] = []
        if step.each:
            self.apart[name] = {site: answer_of(answer, place, True) for place, site in enumerate(counted)}
            return
        if step.refine:
            answer = ServerClient(self.job, self.rows).refined(step, messages, answer, round)
        whole = {key: tensor.detach() for key, tensor in answer.items()}
        how = outwards(step, self.terms.compression)
        if how != "none":
            self.differences[name], _ = wire.pack(whole, how, self.held[name])
            whole = wire.unpack(self.differences[name], self.held[name])
        # The method's server half must know what the sites really begin from.
        self.combiner.sent[name] = {key: whole[key] for key in self.combiner.sent[name]}
        self.answers[name] = whole
        if name in self.held:
            self.held[name] = {**self.held[name], **whole}

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
            "aggregation": self.terms.aggregation,
            "counted": progress.counted,
            "refused": progress.refused,
        }
