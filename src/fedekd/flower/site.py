"""One visit at a site: its rows, its models from disk, the work of one message, and what it lets out.

Nothing here knows Flower. A visit that was done is not done again: asked for it once more, because the answer was
lost, the site gives the answer that it has kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedekd import methods, models, parts
from fedekd.dataset import Dataset
from fedekd.engines.client import Client
from fedekd.engines.job import Job, Rows
from fedekd.engines.model_checks import check_model
from fedekd.errors import FedekdError
from fedekd.exchange import Door, Message, exchanges
from fedekd.flower import layouts, uploads, wire
from fedekd.flower.atomic import write_text
from fedekd.flower.codes import Code, Failed, failing, limited
from fedekd.flower.guard import apart, guarded
from fedekd.flower.public import check_public, read_public
from fedekd.flower.saved_state import SavedState
from fedekd.flower.schema import Schema
from fedekd.flower.site_data import of_site
from fedekd.flower.site_file import ENDED, Site
from fedekd.flower.site_report import finish
from fedekd.flower.terms import Terms
from fedekd.flower.visits import Visit, alone, called, inwards, outwards, visits
from fedekd.flower.wire import Letter
from fedekd.methods.base import Exchange, Method
from fedekd.trees import moved

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
    layout = work.try_out(letter.words.get("layouts"))  # all that a visit needs, before it is promised
    with failing(Code.STATE):
        write_text(kept, json.dumps({**agreement, "rows": work.rows, "layouts": layout}))
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
        planned = _asked(plan[wanted], letter)
        if planned.number != wanted:
            raise FedekdError(f"there is no visit {wanted}")
    saved = SavedState(folder)
    with failing(Code.STATE), saved.locked(site.longest):
        last = saved.load(wanted)
        if last and last[1]["number"] != number:
            raise FedekdError(f"this site is number {last[1]['number']} of the federation, not {number}")
        if last and last[0] == wanted:
            return wire.from_state(last[1]["reply"])
        work = Work(site, folder, terms, schema, number, json.loads(agreement.get("layouts", "{}")))
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


def _asked(visit: Visit, letter: Letter) -> Visit:
    """Of a visit, what belongs to the rounds that this site takes part in."""
    if "rounds" not in letter.words:
        return visit
    rounds = {int(word) for word in str(letter.words["rounds"]).split()}
    if not rounds <= set(visit.rounds):
        raise FedekdError(f"visit {visit.number} has no part of the rounds {sorted(rounds)}")
    return visit.of(rounds)


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
    sends = exchanges(method, terms.rounds)
    for name, step in sorted(sends.items()):
        if name not in site.leave:
            raise FedekdError(
                f"method {terms.method!r} sends {called(step)}, which this site keeps; "
                f"add {name!r} to `leave` if it may go"
            )
    if _averages_private(method, sends.values()) and site.private and site.private != terms.private:
        raise FedekdError(
            f"method {terms.method!r} averages the private models, and this site has its own, {site.private!r}; "
            f"leave `private` out, or have the server set it for all"
        )
    if terms.weighting == "samples" and sends and "n" not in site.share:
        raise FedekdError("the server weights sites by their samples, and this site does not share `n`")
    if site.dp and terms.augment != "none":
        raise FedekdError(
            "the server wants images flipped and cropped, which is not done with [dp]; leave one of them out"
        )
    if (terms.public or method.public) and site.public is None:
        raise FedekdError(f"the server has public rows for {terms.method!r}; name the same ones as `public`")


def _averages_private(method: Method, steps: Iterable[Exchange]) -> bool:
    """Whether a model travels that is built as the private one is, or on top of it."""
    roles = {role for step in steps for role in (None if step.send else step.name, step.target) if role}
    return "private" in {method.root(method.heads.get(role, role)) for role in roles}


class Work:
    """A site's client, its baseline, and what it needs for the next upload."""

    def __init__(
        self, site: Site, folder: Path, terms: Terms, schema: Schema, number: int,
        layouts: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """``layouts``: what uploads that are no models look like, as agreed on when the site joined."""
        self.site, self.folder, self.terms, self.number, self.layouts = site, folder, terms, number, layouts
        with failing(Code.DATA):
            if site.dp and schema.scaling.own:
                raise FedekdError(
                    "[dp] needs a schema that gives the scaling of inputs: this site's own means and deviations would "
                    "carry rows past the noise; have the schema made from public rows, with --with-scaling"
                )
            dataset = schema.load(site.data, site.target)
            self.rows = hashlib.sha256(dataset.x.tobytes() + dataset.y.tobytes()).hexdigest()
            federation = of_site(dataset, schema, site.name, terms.seed, number, self._public(schema))
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
        self.exchanges = exchanges(method, terms.rounds)
        self.door = Door(frozenset(self.exchanges) & frozenset(site.leave))
        self.held: dict[str, dict[str, Tensor]] = {
            name: self._copy(step.target) for name, step in self.exchanges.items() if step.target
        }
        """By exchange whose answer goes into a model: that model as the server knows it."""
        self.residual: dict[str, dict[str, Tensor]] = {}

    def _public(self, schema: Schema) -> Dataset | None:
        """The public rows, which must be the server's."""
        site, terms = self.site, self.terms
        need = terms.make_method().public
        found = read_public(site.public, schema, site.target) if site.public and (terms.public or need) else None
        check_public(need, found, terms.method, "site.toml")
        if found and found.fingerprint != terms.public:
            raise FedekdError(f"the public rows in {site.public} are not the server's; get the file from its operator")
        return found.dataset if found else None

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

    def try_out(self, expected: wire.Word | None = None) -> str:
        """What only training would find out. Returns what uploads look like; ``expected`` is what the server thinks."""
        dataset = self.client.job.federation.dataset
        with failing(Code.MODEL):
            for role in self.client.models:
                if role not in self.client.method.heads:
                    check_model(role, self.client.models[role], dataset.x.shape[1:], dataset.outputs)
            getattr(self.client, "try_out", lambda: None)()
            found = layouts.text(layouts.layouts(self.client.job))
            if expected is not None and expected != found:
                raise FedekdError(
                    f"what {self.terms.method!r} sends looks otherwise here, {found}, than the server expects, "
                    f"{str(expected)[:1000]}; has this site a model of its own that the others have not?"
                )
            return found

    def _copy(self, role: str) -> dict[str, Tensor]:
        return {name: tensor.detach().cpu().clone() for name, tensor in self.client.message(role).items()}

    def do(self, visit: Visit, letter: Letter) -> Letter:
        """Receive, train, send; and a share of training alone."""
        with failing(Code.MODEL):
            self._receive(visit, letter)
        with failing(Code.TRAINING):
            for round, step, again in visit.work:
                self.client.perform(step, round, again)
            self._train_alone(visit)
            words = self._words(visit)
            return Letter(words, {step.name: self._sent(step, visit.round or 0) for step in visit.sends})

    def _sent(self, step: Exchange, round: int) -> wire.Packed:
        name = step.name
        upload = self.client.upload(step, round)
        if step.send and (self.layouts or {}).get(name) != json.loads(layouts.text({name: upload}))[name]:
            raise FedekdError(f"{called(step)} does not look as agreed on; what is sent may not depend on the rows")
        self.door.up(name, [self.site.name], {key: tensor.unsqueeze(0) for key, tensor in upload.items()})
        how = inwards(step, self.terms.compression)
        packed, self.residual[name] = wire.pack(upload, how, self.held.get(name), self.residual.get(name))
        return packed

    def _receive(self, visit: Visit, letter: Letter) -> None:
        """Everything is looked at before anything is loaded."""
        steps = {**self.exchanges, **{step.name: step for step in visit.receives}}
        newest = [step.name for step in visit.receives]
        for name in letter.models:
            if name not in steps:
                raise FedekdError(f"the server sends {name[:20]!r}, which the method does not exchange")
        answers = {name: self._opened(steps[name], packed) for name, packed in letter.models.items()}
        for name in sorted(answers, key=lambda name: (name in newest, [*steps].index(name))):
            answer = answers[name]
            self.client.receive(steps[name], moved(answer, self.client.device))
            if name in self.held:
                self.held[name].update(answer)

    def _opened(self, step: Exchange, packed: wire.Packed) -> Message:
        if step.target:
            expected, partly = self.held[step.name], bool(step.combine or step.send or step.into)
            if not partly:
                names = parts.names(step.part, self.client.models[step.name])
                expected = {name: expected[name] for name in names}
            how = packed.how if outwards(step, "fp16") != "none" else "none"
            message = uploads.opened(packed, expected, how, partly)
        else:
            message = uploads.opened_freely(packed, self.site.largest * 1e6)
        if isinstance(message, str):
            raise FedekdError(f"the server's answer for {called(step)} cannot be used: {message}")
        return message

    def _train_alone(self, visit: Visit) -> None:
        count = len(visits(self.client.method, self.terms.rounds))
        target = alone(visit.number, count, self.terms.rounds)
        if self.site.local == "train":
            for round in range(self.local_rounds, target):
                for step in self.local.method.steps(round):
                    if not isinstance(step, Exchange):
                        self.local.perform(step, round)
        self.local_rounds = target

    def _words(self, visit: Visit) -> dict[str, wire.Word]:
        """The numbers that leave beside what is exchanged: what the site shares, and no more."""
        words: dict[str, wire.Word] = {"code": int(Code.DONE), "name": self.site.name}
        if visit.last:
            self.client.round = self.local.round = self.terms.rounds
            with self.client.personalised():
                return words | finish(self.site, self.folder, self.terms.method, self.client, self.local)
        if visit.sends and self.terms.weighting == "samples" and "n" in self.site.share:
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
