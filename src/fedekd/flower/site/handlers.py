"""A site's answers to the server: it agrees to join, does a visit, hears the end.

Nothing here knows Flower. A visit that was done is not done again: asked for it once more, because the answer was
lost, the site gives the answer that it has kept.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedekd.errors import FedekdError
from fedekd.flower.protocol import versions, wire
from fedekd.flower.protocol.codes import Failed, StatusCode, failing, limited
from fedekd.flower.protocol.masking import given_to_all
from fedekd.flower.protocol.messages import EndRequest, JoinRequest, MaskingRequest, VisitRequest, masking_text
from fedekd.flower.protocol.offers import Offer
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.visits import Visit, visits
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.saved_state import SavedState, locked, write_text
from fedekd.flower.settings import ENDED, NO_RESULT, SiteSettings
from fedekd.flower.setup.signing import SignedStatement
from fedekd.flower.site.audit import record_answer
from fedekd.flower.site.guard import consent, guarded, kept_kinds
from fedekd.flower.site.masks import SiteMasks
from fedekd.flower.site.pins import MOST, Pins
from fedekd.flower.site.results import compared, verified
from fedekd.flower.site.trainer import SiteTrainer
from fedekd.runs.federation_report import SIGNED
from fedekd.units import count

log = logging.getLogger("fedekd.site")


def answer(site: SiteSettings, kind: str, request: Payload | None) -> Payload:
    """The site's reply to any message, None being one that cannot be read. Whatever goes wrong, only a code leaves;
    and nothing else leaves that is not in the audit log."""
    reply = _answered(site, kind, request)
    try:
        entry = record_answer(site.state, kind, request, reply)
    except Exception as error:
        log.error("the audit log cannot be written, so nothing leaves: %s", error)
        return Payload({"code": int(StatusCode.STATE), "name": site.name})
    if reply.models or kind == "end":
        log.info("audit log: %s", entry)
    return reply


def _answered(site: SiteSettings, kind: str, request: Payload | None) -> Payload:
    try:
        if request is None:
            raise Failed(StatusCode.FAULT, f"the server's {kind} cannot be read")
        handlers = {"join": join, "visit": visit, "masking": masking, "end": end}
        with limited(site.longest):
            return guarded(site, handlers[kind](site, request))
    except Failed as failure:
        log.error("%s: %s", "refused" if failure.code == StatusCode.REFUSED else failure.code.meaning, failure)
        more = versions.own() if failure.code == StatusCode.VERSION else {}
        return Payload({"code": int(failure.code), "name": site.name, **more})
    except Exception:
        log.exception("fault in a %s", kind)
        return Payload({"code": int(StatusCode.FAULT), "name": site.name})


def join(site: SiteSettings, request: Payload) -> Payload:
    """Agree on terms and schema. Why it does not come to that stays here: the server hears "refused" and no more."""
    if problem := versions.server_problem(request.words):
        raise Failed(StatusCode.VERSION, problem)
    pins = Pins(site.state)
    try:
        if pins.closed():
            return Payload({"code": int(StatusCode.REFUSED), "name": site.name})
        return _joined(site, request, pins)
    except Failed as failure:
        if failure.code == StatusCode.VERSION:
            raise
        why = f"{failure.code.meaning}: {failure}" if failure.code != StatusCode.REFUSED else str(failure)
    except Exception:
        log.exception("fault in a join")
        why = StatusCode.FAULT.meaning
    raise Failed(StatusCode.REFUSED, f"{why} (refusal {pins.refused()} of at most {MOST} in a day)")


def _joined(site: SiteSettings, request: Payload, pins: Pins) -> Payload:
    """Checked against what this site allows and has agreed to, then against what its data is; then kept."""
    asked = JoinRequest.parse(request)
    folder, terms, schema = site.state / asked.federation, asked.terms, asked.schema
    with failing(StatusCode.REFUSED):
        if asked.name not in (None, site.name):
            raise FedekdError(
                f"the server has this site's key as {asked.name[:60]!r}, and here `name` is {site.name!r}: have its "
                f"administrator name the key's file {site.name}.pub, or, if this is another site's key, make one with "
                "`fedekd site key`"
            )
        consent(site, terms, schema)
        offer = Offer.of(terms, schema)
        accepted = pins.check(offer)
        agreement = {"terms": terms.text(), "schema": schema.text()}
        kept = folder / "agreement.json"
        before = json.loads(kept.read_text()) if kept.exists() else agreement
        if {**before, **agreement} != before:
            raise FedekdError("the server's terms or schema changed in the middle of a federation")
        if not accepted:
            kept_kinds(site, schema)
    work = SiteTrainer(site, folder, terms, schema, number=0)
    work.check_rows(before)
    layout = work.try_out(asked.layouts)  # all that a visit needs, before it is promised
    with failing(StatusCode.STATE):
        write_text(kept, json.dumps({**agreement, "rows": work.rows, "layouts": layout, "offer": offer.fingerprint}))
    log.info("federation %s: joined for %s of %s", folder.name, count(terms.rounds, "round"), terms.method)
    log.info("its terms: %s", terms.text())
    return Payload({"code": int(StatusCode.DONE), "name": site.name, **versions.own()})


def visit(site: SiteSettings, request: Payload) -> Payload:
    asked = VisitRequest.parse(request)
    folder, number, wanted = site.state / asked.federation, asked.number, asked.visit
    agreement, terms, schema, plan = _agreement(site, folder, wanted)
    with failing(StatusCode.REFUSED):
        planned = _planned(plan[wanted], asked)
    saved = SavedState(folder)
    with failing(StatusCode.STATE), locked(folder, site.longest):
        last = saved.load(wanted)
        if last and last[1]["number"] != number:
            raise FedekdError(f"this site is number {last[1]['number']} of the federation, not {number}")
        with failing(StatusCode.REFUSED):
            masks = SiteMasks(site, folder, terms, asked) if terms.aggregation == "secure" and planned.sends else None
            if masks:
                masks.receive(asked.sealed)

        def leaving(reply: Payload, state: Mapping[str, Any]) -> Payload:
            """Masked, where it has to be; a kept reply is that to the request it was made for, and to no other."""
            with failing(StatusCode.REFUSED):
                if set(reply.models) != {step.name for step in planned.sends}:
                    raise FedekdError(f"the server has asked for other rounds of visit {wanted} before")
                if masks is None:
                    return reply
                given = given_to_all(terms.text(), schema.text(), state.get("received", {}))
                return masks.masked(reply, planned, state["held"], given)

        if last and last[0] == wanted:
            return leaving(wire.from_state(last[1]["reply"]), last[1])
        work = SiteTrainer(site, folder, terms, schema, number, json.loads(agreement.get("layouts", "{}")))
        work.check_rows(agreement)
        if last:
            work.restore(last[1])
        behind = last is None or last[0] != wanted - 1
        if any(packed.how != "none" and behind for packed in asked.models.values()):
            raise Failed(StatusCode.BEHIND, f"visit {wanted} needs what visit {wanted - 1} would have brought")
        reply = work.do(planned, asked.models)
        state = work.state()
        saved.save(wanted, {**state, "reply": wire.to_state(reply)})
        log.info("visit %d of %d done", wanted + 1, len(plan))
        return leaving(reply, state)


def masking(site: SiteSettings, request: Payload) -> Payload:
    """A stage of secure aggregation."""
    asked = MaskingRequest.parse(request)
    folder = site.state / asked.federation
    _, terms, _, plan = _agreement(site, folder, asked.visit)
    with failing(StatusCode.REFUSED):
        if terms.aggregation != "secure" or not plan[asked.visit].sends:
            raise FedekdError("nothing is masked in this visit")
    with failing(StatusCode.STATE), locked(folder, site.longest), failing(StatusCode.REFUSED):
        found = SiteMasks(site, folder, terms, asked).answer(asked)
    return Payload({"code": int(StatusCode.DONE), "name": site.name, "masking": masking_text(found)})


def _agreement(site: SiteSettings, folder: Path, visit: int) -> tuple[dict[str, str], Terms, Schema, tuple[Visit, ...]]:
    """What the site joined for, which it must still consent to."""
    agreement = _joined_for(folder)
    with failing(StatusCode.REFUSED):
        terms, schema = Terms.parse(agreement["terms"]), Schema.parse(agreement["schema"])
        consent(site, terms, schema)
        plan = visits(terms.make_method(), terms.rounds)
        if visit >= len(plan):
            raise FedekdError(f"there is no visit {visit}")
    return agreement, terms, schema, plan


def _joined_for(folder: Path) -> dict[str, str]:
    with failing(StatusCode.UNKNOWN):
        try:
            return dict(json.loads((folder / "agreement.json").read_text()))
        except FileNotFoundError:
            raise FedekdError(
                f"there is nothing of federation {folder.name} in {folder.parent}; if `state` was changed or moved, "
                "bring it back, else the site joins again in the next visit"
            ) from None


def _planned(visit: Visit, asked: VisitRequest) -> Visit:
    """Of a visit, what belongs to the rounds that this site takes part in."""
    if asked.rounds is None:
        return visit
    if not asked.rounds <= set(visit.rounds):
        raise FedekdError(f"visit {visit.number} has no part of the rounds {sorted(asked.rounds)}")
    return visit.of(asked.rounds)


def end(site: SiteSettings, request: Payload) -> Payload:
    """The server's word that the federation is complete; `fedekd site run` ends after it when the server does."""
    asked = EndRequest.parse(request)
    folder = site.state / asked.federation
    agreement = _joined_for(folder)
    own = folder / "report.json"
    result = own.exists() and _did_all(folder, Terms.parse(agreement["terms"]))
    write_text(folder / ENDED, "" if result else NO_RESULT)
    _keep_signed(site, folder, asked)
    if result:
        log.info("federation %s is complete; see %s", folder.name, own)
    else:
        log.error(
            "federation %s is complete, but not here: this site's last visit failed or was missed; mend what the lines "
            "above name, start this site again, and ask the server's administrator to run `fedekd server finish`",
            folder.name,
        )
    return Payload({"code": int(StatusCode.DONE), "name": site.name})


def _did_all(folder: Path, terms: Terms) -> bool:
    """Whether the site's last visit is done and kept: its report is written before its state is."""
    try:
        kept = SavedState(folder).load()
    except FedekdError:
        return False
    return kept is not None and kept[0] == len(visits(terms.make_method(), terms.rounds)) - 1


def _keep_signed(site: SiteSettings, folder: Path, asked: EndRequest) -> None:
    """What the server has signed, if it has; else the administrator is told."""
    if not asked.signed:
        log.warning("the server has not signed the result")
        return
    try:
        signed = SignedStatement.parse(asked.signed)
        statement = verified(site, folder, signed, datetime.now(UTC))
        lines = compared(folder, statement)
    except Exception as error:
        log.error("the server's signature of the result does not hold: %s", error)
        return
    write_text(folder / SIGNED, json.dumps(signed.words(), indent=1) + "\n")
    for line in ("the server has signed the result", *lines):
        log.info("%s", line)
