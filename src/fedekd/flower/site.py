"""One visit at a site: its rows, its models from disk, the work of one message, and what it lets out.

Nothing here knows Flower. A visit that was done is not done again: asked for it once more, because the answer was
lost, the site gives the answer that it has kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedekd import methods, models
from fedekd.engines.client import Client, Rows, moved
from fedekd.engines.job import Job
from fedekd.errors import FedekdError
from fedekd.exchange import Door, shared_roles
from fedekd.flower import uploads, wire
from fedekd.flower.atomic import write_text
from fedekd.flower.codes import Code, Failed, failing, limited
from fedekd.flower.guard import apart, guarded
from fedekd.flower.saved_state import SavedState
from fedekd.flower.schema import Schema
from fedekd.flower.site_data import of_site
from fedekd.flower.site_file import ENDED, Site
from fedekd.flower.site_report import finish
from fedekd.flower.terms import Terms
from fedekd.flower.visits import Visit, alone, visits
from fedekd.flower.wire import Letter
from fedekd.methods.base import Train

log = logging.getLogger("fedekd.site")


def answer(site: Site, kind: str, letter: Letter) -> Letter:
    """The site's reply to any letter. Whatever goes wrong, only a code leaves."""
    try:
        with limited(site.longest):
            return guarded(site, {"join": join, "visit": visit, "end": end}[kind](site, letter))
    except Failed as failure:
        log.error("%s: %s", failure.code.meaning, failure)
        return Letter({"code": int(failure.code), "name": site.name})
    except Exception:
        log.exception("fault in a %s", kind)
        return Letter({"code": int(Code.FAULT), "name": site.name})


def join(site: Site, letter: Letter) -> Letter:
    """Agree on terms and schema: checked against what this site allows and what its data is, then kept."""
    folder = _folder(site, letter)
    with failing(Code.REFUSED):
        terms = Terms.parse(str(letter.words["terms"]))
        schema = Schema.parse(str(letter.words["schema"]), "the server's schema")
        _consent(site, terms, schema)
        agreement = {"terms": terms.text(), "schema": schema.text()}
        kept = folder / "agreement.json"
        before = json.loads(kept.read_text()) if kept.exists() else agreement
        if {**before, **agreement} != before:
            raise FedekdError("the server's terms or schema changed in the middle of a federation")
    work = Work(site, folder, terms, schema, number=0)
    work.check_rows(before)
    work.try_out()  # all that a visit needs, before it is promised
    with failing(Code.STATE):
        write_text(kept, json.dumps({**agreement, "rows": work.rows}))
    log.info("federation %s: joined for %d rounds of %s", folder.name, terms.rounds, terms.method)
    log.info("its terms: %s", terms.text())
    return Letter({"code": int(Code.DONE), "name": site.name})


def visit(site: Site, letter: Letter) -> Letter:
    folder = _folder(site, letter)
    number, wanted = int(letter.words["number"]), int(letter.words["visit"])
    with failing(Code.UNKNOWN):
        agreement = json.loads((folder / "agreement.json").read_text())
    with failing(Code.REFUSED):
        terms, schema = Terms.parse(agreement["terms"]), Schema.parse(agreement["schema"])
        _consent(site, terms, schema)
        plan = visits(terms.make_method(), terms.rounds)
        planned = plan[wanted]
        if planned.number != wanted:
            raise FedekdError(f"there is no visit {wanted}")
    saved = SavedState(folder)
    with failing(Code.STATE), saved.locked(site.longest):
        last = saved.load(wanted)
        if last and last[1]["number"] != number:
            raise FedekdError(f"this site is number {last[1]['number']} of the federation, not {number}")
        if last and last[0] == wanted:
            return wire.from_state(last[1]["reply"])
        work = Work(site, folder, terms, schema, number)
        work.check_rows(agreement)
        if last:
            work.restore(last[1])
        behind = last is None or last[0] != wanted - 1
        if any(packed.how != "none" and behind for packed in letter.models.values()):
            raise Failed(Code.BEHIND, f"visit {wanted} needs what visit {wanted - 1} would have brought")
        reply = work.do(planned, letter)
        saved.save(wanted, {**work.state(), "reply": wire.to_state(reply)})
        log.info("visit %d of %d done", wanted + 1, len(plan))
        return reply


def end(site: Site, letter: Letter) -> Letter:
    """The server's word that the federation is complete; `fedekd site run` ends after it when the server does."""
    folder = _folder(site, letter)
    with failing(Code.UNKNOWN):
        (folder / "agreement.json").read_text()
    write_text(folder / ENDED, "")
    own = folder / "report.json"
    result = f"see {own}" if own.exists() else "this site has no result of it"
    log.info("federation %s is complete; %s", folder.name, result)
    return Letter({"code": int(Code.DONE), "name": site.name})


def _folder(site: Site, letter: Letter) -> Path:
    name = str(letter.words.get("federation", ""))
    if not re.fullmatch(r"[0-9a-f]{16}", name):
        raise Failed(Code.REFUSED, f"the server calls its federation {name!r}, which is no name for a folder")
    return site.state / name


def _consent(site: Site, terms: Terms, schema: Schema) -> None:
    """What runs here, and what leaves, is decided here."""
    for name in terms.foreign():
        if name not in site.trusts:
            raise FedekdError(f"the server wants {name!r} imported here; add it to `trusts` if you agree")
    method = terms.make_method()
    method.check(schema.task)
    sends = shared_roles(method, terms.rounds)
    for role in sorted(sends - set(site.leave)):
        raise FedekdError(
            f"method {terms.method!r} sends the {role} model, which this site keeps; "
            f"add {role!r} to `leave` if it may go"
        )
    if "private" in sends and site.private and site.private != terms.private:
        raise FedekdError(
            f"method {terms.method!r} averages the private models, and this site has its own, {site.private!r}; "
            f"leave `private` out, or have the server set it for all"
        )
    if terms.weighting == "samples" and sends and "n" not in site.share:
        raise FedekdError("the server weights sites by their samples, and this site does not share `n`")


class Work:
    """A site's client, its baseline, and what it needs to send the next model."""

    def __init__(self, site: Site, folder: Path, terms: Terms, schema: Schema, number: int) -> None:
        self.site, self.folder, self.terms, self.number = site, folder, terms, number
        with failing(Code.DATA):
            if site.dp and schema.scaling.own:
                raise FedekdError(
                    "[dp] needs a schema that gives the scaling of inputs: this site's own means and deviations would "
                    "carry rows past the noise; have the schema made from public rows, with --with-scaling"
                )
            dataset = schema.load(site.data, site.target)
            self.rows = hashlib.sha256(dataset.x.tobytes() + dataset.y.tobytes()).hexdigest()
            federation = of_site(dataset, schema, site.name, terms.seed, number)
        with failing(Code.MODEL):
            method = terms.make_method()
            own = models.factory("private", site.private or terms.private)
            training = terms.training(site.device)
            job = Job(federation, method, terms.seed, training, own, terms.factory("proxy"))
            self.client = self._client(job)
            self.local = self._client(replace(job, method=methods.get("local")), self.client.data)
            if site.local != "train":
                self.local.models["private"].load_state_dict(models_file(site.local))
            apart(self.client.models)
        self.local_rounds = 0
        self.door = Door(shared_roles(method, terms.rounds) & frozenset(site.leave))
        self.held: dict[str, dict[str, Tensor]] = {role: self._copy(role) for role in self.door.roles}
        self.residual: dict[str, dict[str, Tensor]] = {role: {} for role in self.door.roles}

    def _client(self, job: Job, rows: Rows | None = None) -> Client:
        if self.site.dp is None:
            return Client(job, 0, self.number, rows)
        from fedekd.flower.privacy import PrivateClient

        return PrivateClient(job, self.number, self.site.dp, self.folder, rows)

    def check_rows(self, agreement: Mapping[str, str]) -> None:
        """Other rows, or another order of them, are another split: the model would be tested on what it has learned."""
        if agreement.get("rows", self.rows) != self.rows:
            raise Failed(
                Code.DATA,
                f"the rows in {self.site.data} are not those that this site joined with; bring them back in their "
                "order, or keep the new ones for the next federation",
            )

    def try_out(self) -> None:
        """What only training would find out."""
        with failing(Code.MODEL):
            for role in self.client.models:
                self._fits(role)
            getattr(self.client, "try_out", lambda: None)()

    def _fits(self, role: str) -> None:
        """Two blank rows through a model: whether it takes them must not depend on anyone's rows."""
        dataset, module = self.client.job.federation.dataset, self.client.models[role].eval()
        shape, outputs = dataset.x.shape[1:], dataset.outputs
        try:
            with torch.no_grad():
                given = module(torch.zeros(2, *shape, device=self.client.device)).shape
        except Exception as error:  # a user's model may raise anything
            problem = (str(error).splitlines() or [type(error).__name__])[0]
            raise FedekdError(f"the {role} model does not take rows of shape {shape}: {problem}") from None
        if given != (2, outputs) and not (outputs == 1 and given == (2,)):
            raise FedekdError(f"the {role} model gives {tuple(given)} for two rows; it must give (2, {outputs})")

    def _copy(self, role: str) -> dict[str, Tensor]:
        return {name: tensor.detach().cpu().clone() for name, tensor in self.client.message(role).items()}

    def do(self, visit: Visit, letter: Letter) -> Letter:
        """Receive, train, send; and a share of training alone."""
        with failing(Code.MODEL):
            for role, packed in letter.models.items():
                self._receive(role, packed)
        with failing(Code.TRAINING):
            for round, step in visit.work:
                if isinstance(step, Train):
                    self.client.train(step, round)
                else:
                    self.client.remember(step, round)
            self._train_alone(visit)
            words = self._words(visit)
            if visit.sends is None:
                return Letter(words)
            role = visit.sends.role
            upload = self.door.up(role, self.site.name, self.client.message(role))
            packed, left = wire.pack(upload, self.terms.compression, self.held[role], self.residual[role])
            self.residual[role] = left
            return Letter(words, {role: packed})

    def _receive(self, role: str, packed: wire.Packed) -> None:
        if role not in self.held:
            raise FedekdError(f"the server sends a {role[:20]!r} model, which the method does not exchange")
        message = uploads.opened(packed, self.held[role], packed.how)
        if isinstance(message, str):
            raise FedekdError(f"the server's {role} model cannot be used: {message}")
        self.client.receive(role, moved(message, self.client.device))
        self.held[role] = self._copy(role)

    def _train_alone(self, visit: Visit) -> None:
        count = len(visits(self.client.method, self.terms.rounds))
        target = alone(visit.number, count, self.terms.rounds)
        if self.site.local == "train":
            for round in range(self.local_rounds, target):
                for step in self.local.method.steps(round):
                    if isinstance(step, Train):
                        self.local.train(step, round)
        self.local_rounds = target

    def _words(self, visit: Visit) -> dict[str, wire.Word]:
        """The numbers that leave beside the model: what the site shares, and no more."""
        words: dict[str, wire.Word] = {"code": int(Code.DONE), "name": self.site.name}
        if visit.sends is None:
            return words | finish(self.site, self.folder, self.terms.method, self.client, self.local)
        if self.terms.weighting == "samples" and "n" in self.site.share:
            words["n"] = len(self.client.rows["train"])
        return words

    def state(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "client": self.client.state(),
            "local": self.local.state(),
            "local_rounds": self.local_rounds,
            "held": self.held,
            "residual": self.residual,
            "dp": self.site.dp is not None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        if state["dp"] != (self.site.dp is not None):
            raise FedekdError(
                "[dp] was put into or taken out of the site's file in the middle of a federation, so that some models "
                "leave with noise and some without; bring it back as it was"
            )
        self.client.restore(state["client"])
        self.local.restore(state["local"])
        self.local_rounds = state["local_rounds"]
        self.held, self.residual = state["held"], state["residual"]


def models_file(path: str) -> dict[str, Tensor]:
    """Weights from a .safetensors file or from ``torch.save`` of a state."""
    from safetensors.torch import load_file

    try:
        weights: Any = load_file(path) if path.endswith(".safetensors") else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # both libraries have kinds of their own
        problem = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        raise FedekdError(f"`local`: {path} cannot be read as a model's weights ({problem})") from None
    return dict(weights)
