"""A site's answers to the server: it agrees to join, does a visit, hears the end.

Nothing here knows Flower. A visit that was done is not done again: asked for it once more, because the answer was
lost, the site gives the answer that it has kept.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

from fedekd.errors import FedekdError
from fedekd.flower.protocol import wire
from fedekd.flower.protocol.codes import Failed, StatusCode, failing, limited
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.visits import Visit, visits
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.saved_state import SavedState, write_text
from fedekd.flower.settings import ENDED, SiteSettings
from fedekd.flower.site.guard import consent, guarded
from fedekd.flower.site.trainer import SiteTrainer

log = logging.getLogger("fedekd.site")


def answer(site: SiteSettings, kind: str, request: Payload) -> Payload:
    """The site's reply to any message. Whatever goes wrong, only a code leaves."""
    try:
        with limited(site.longest):
            return guarded(site, {"join": join, "visit": visit, "end": end}[kind](site, request))
    except Failed as failure:
        log.error("%s: %s", failure.code.meaning, failure)
        return Payload({"code": int(failure.code), "name": site.name})
    except Exception:
        log.exception("fault in a %s", kind)
        return Payload({"code": int(StatusCode.FAULT), "name": site.name})


def join(site: SiteSettings, request: Payload) -> Payload:
    """Agree on terms and schema: checked against what this site allows and what its data is, then kept."""
    folder = _folder(site, request)
    with failing(StatusCode.REFUSED):
        terms = Terms.parse(str(request.words["terms"]))
        schema = Schema.parse(str(request.words["schema"]), "the server's schema")
        consent(site, terms, schema)
        agreement = {"terms": terms.text(), "schema": schema.text()}
        kept = folder / "agreement.json"
        before = json.loads(kept.read_text()) if kept.exists() else agreement
        if {**before, **agreement} != before:
            raise FedekdError("the server's terms or schema changed in the middle of a federation")
    work = SiteTrainer(site, folder, terms, schema, number=0)
    work.check_rows(before)
    layout = work.try_out(request.words.get("layouts"))  # all that a visit needs, before it is promised
    with failing(StatusCode.STATE):
        write_text(kept, json.dumps({**agreement, "rows": work.rows, "layouts": layout}))
    log.info("federation %s: joined for %d rounds of %s", folder.name, terms.rounds, terms.method)
    log.info("its terms: %s", terms.text())
    return Payload({"code": int(StatusCode.DONE), "name": site.name})


def visit(site: SiteSettings, request: Payload) -> Payload:
    folder = _folder(site, request)
    number, wanted = int(request.words["number"]), int(request.words["visit"])
    with failing(StatusCode.UNKNOWN):
        agreement = json.loads((folder / "agreement.json").read_text())
    with failing(StatusCode.REFUSED):
        terms, schema = Terms.parse(agreement["terms"]), Schema.parse(agreement["schema"])
        consent(site, terms, schema)
        plan = visits(terms.make_method(), terms.rounds)
        planned = _asked(plan[wanted], request)
        if planned.number != wanted:
            raise FedekdError(f"there is no visit {wanted}")
    saved = SavedState(folder)
    with failing(StatusCode.STATE), saved.locked(site.longest):
        last = saved.load(wanted)
        if last and last[1]["number"] != number:
            raise FedekdError(f"this site is number {last[1]['number']} of the federation, not {number}")
        if last and last[0] == wanted:
            return wire.from_state(last[1]["reply"])
        work = SiteTrainer(site, folder, terms, schema, number, json.loads(agreement.get("layouts", "{}")))
        work.check_rows(agreement)
        if last:
            work.restore(last[1])
        behind = last is None or last[0] != wanted - 1
        if any(packed.how != "none" and behind for packed in request.models.values()):
            raise Failed(StatusCode.BEHIND, f"visit {wanted} needs what visit {wanted - 1} would have brought")
        reply = work.do(planned, request)
        saved.save(wanted, {**work.state(), "reply": wire.to_state(reply)})
        log.info("visit %d of %d done", wanted + 1, len(plan))
        return reply


def _asked(visit: Visit, request: Payload) -> Visit:
    """Of a visit, what belongs to the rounds that this site takes part in."""
    if "rounds" not in request.words:
        return visit
    rounds = {int(word) for word in str(request.words["rounds"]).split()}
    if not rounds <= set(visit.rounds):
        raise FedekdError(f"visit {visit.number} has no part of the rounds {sorted(rounds)}")
    return visit.of(rounds)


def end(site: SiteSettings, request: Payload) -> Payload:
    """The server's word that the federation is complete; `fedekd site run` ends after it when the server does."""
    folder = _folder(site, request)
    with failing(StatusCode.UNKNOWN):
        (folder / "agreement.json").read_text()
    write_text(folder / ENDED, "")
    own = folder / "report.json"
    result = f"see {own}" if own.exists() else "this site has no result of it"
    log.info("federation %s is complete; %s", folder.name, result)
    return Payload({"code": int(StatusCode.DONE), "name": site.name})


def _folder(site: SiteSettings, request: Payload) -> Path:
    name = str(request.words.get("federation", ""))
    if not re.fullmatch(r"[0-9a-f]{16}", name):
        raise Failed(StatusCode.REFUSED, f"the server calls its federation {name!r}, which is no name for a folder")
    return site.state / name
