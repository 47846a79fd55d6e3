"""A site's part in one federation: its rows, its models, the work of a visit and its training alone to compare with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedekd import models, parts
from fedekd.dataset import Dataset
from fedekd.engines.client import Client
from fedekd.engines.job import Job
from fedekd.engines.model_checks import check_model
from fedekd.errors import FedekdError
from fedekd.exchange import Door, Message, exchanges
from fedekd.flower.protocol import layouts, uploads, wire
from fedekd.flower.protocol.codes import Failed, StatusCode, failing
from fedekd.flower.protocol.masking import answer_hash
from fedekd.flower.protocol.rows import check_public, of_site, read_public
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.visits import Visit, called, inwards, outwards, rounds_alone, visits
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.settings import MENU, SiteSettings
from fedekd.flower.site.alone import AloneMenu
from fedekd.flower.site.chosen_round import ChosenRound
from fedekd.flower.site.guard import apart
from fedekd.flower.site.report import finish
from fedekd.methods.base import Exchange, Train
from fedekd.trees import moved


class SiteTrainer:
    """A site's client, what it trains alone, and what it needs for the next upload."""

    def __init__(
        self, site: SiteSettings, folder: Path, terms: Terms, schema: Schema, number: int,
        layouts: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """``layouts``: what uploads that are no models look like, as agreed on when the site joined."""
        self.site, self.folder, self.terms, self.number, self.layouts = site, folder, terms, number, layouts
        with failing(StatusCode.DATA):
            if site.dp and schema.scaling.own:
                raise FedekdError(
                    "[dp] needs a schema that gives the scaling of inputs: this site's own means and deviations would "
                    "carry rows past the noise; have the schema made from public rows, with --with-scaling"
                )
            dataset = schema.load(site.data, site.target, site.reading, site.group)
            groups = dataset.groups.codes.tobytes() if dataset.groups else b""
            self.rows = hashlib.sha256(dataset.x.tobytes() + dataset.y.tobytes() + groups).hexdigest()
            federation = of_site(dataset, schema, site.name, terms.seed, number, self._public(schema))
        with failing(StatusCode.MODEL):
            method = terms.make_method()
            own = models.factory("private", site.private or terms.private)
            training = terms.training(site.device)
            job = Job(federation, method, terms.seed, training, own, terms.factory("proxy"))
            self.client = self._client(job)
            given = models_file(site.local) if site.local != "train" else None
            whole = site.alone == MENU
            self.alone = AloneMenu(job, terms.method, number, self.client.data, whole=whole, given=given)
            self.rounds = ChosenRound()
            apart(self.client.models)
        self.exchanges = exchanges(method, terms.rounds)
        self.door = Door(frozenset(self.exchanges) & frozenset(site.leave))
        self.held: dict[str, dict[str, Tensor]] = {
            name: self._copy(step.target) for name, step in self.exchanges.items() if step.target
        }
        """By exchange whose answer goes into a model: that model as the server knows it."""
        self.residual: dict[str, dict[str, Tensor]] = {}
        self.received: dict[str, str] = {}
        """By exchange: a hash of its newest answer."""
        self.made: set[int] = set()
        """The visits that it took part in."""

    def _public(self, schema: Schema) -> Dataset | None:
        """The public rows, which must be the server's."""
        site, terms = self.site, self.terms
        need = terms.make_method().public
        found = read_public(site.public, schema, site.target) if site.public and (terms.public or need) else None
        check_public(need, found, terms.method, "site.toml")
        if found and found.fingerprint != terms.public:
            raise FedekdError(f"the public rows in {site.public} are not the server's; get the file from its operator")
        return found.dataset if found else None

    def _client(self, job: Job) -> Client:
        if self.site.dp is None:
            return Client(job, 0, self.number)
        from fedekd.flower.site.privacy import PrivateClient

        return PrivateClient(job, self.number, self.site.dp, self.folder)

    def check_rows(self, agreement: Mapping[str, str]) -> None:
        """Other rows, or another order of them, are another split: the model would be tested on what it has learned."""
        if agreement.get("rows", self.rows) != self.rows:
            raise Failed(
                StatusCode.DATA,
                f"the rows in {self.site.data} are not those that this site joined with; bring them back in their "
                "order, or keep the new ones for the next federation",
            )

    def try_out(self, expected: str | None = None) -> str:
        """What only training would find out. Returns what uploads look like; ``expected`` is what the server thinks."""
        dataset = self.client.job.federation.dataset
        with failing(StatusCode.MODEL):
            for role in self.client.models:
                if role not in self.client.method.heads:
                    check_model(role, self.client.models[role], dataset.x.shape[1:], dataset.outputs)
            getattr(self.client, "try_out", lambda: None)()
            found = layouts.text(layouts.layouts(self.client.job))
            if expected is not None and expected != found:
                raise FedekdError(
                    f"what {self.terms.method!r} sends looks otherwise here, {found}, than the server expects, "
                    f"{expected[:1000]}; has this site a model of its own that the others have not?"
                )
            return found

    def _copy(self, role: str) -> dict[str, Tensor]:
        return {name: tensor.detach().cpu().clone() for name, tensor in self.client.message(role).items()}

    def do(self, visit: Visit, given: Mapping[str, wire.Packed]) -> Payload:
        """Receive, train, send; and a share of training alone."""
        with failing(StatusCode.MODEL):
            self._receive(visit, given)
        with failing(StatusCode.TRAINING):
            for round, step, again in visit.work:
                self.rounds.measure(self.client, round)  # the rounds before it have ended
                self.client.perform(step, round, again)
            self.made.add(visit.number)
            count = len(visits(self.client.method, self.terms.rounds))
            self.alone.train(rounds_alone(visit.number, count, self.terms.rounds))
            words = self._words(visit)
            return Payload(words, {step.name: self._sent(step, visit.round or 0) for step in visit.sends})

    def _sent(self, step: Exchange, round: int) -> wire.Packed:
        name = step.name
        upload = self.client.upload(step, round)
        if step.send and (self.layouts or {}).get(name) != json.loads(layouts.text({name: upload}))[name]:
            raise FedekdError(f"{called(step)} does not look as agreed on; what is sent may not depend on the rows")
        self.door.up(name, [self.site.name], {key: tensor.unsqueeze(0) for key, tensor in upload.items()})
        how = inwards(step, self.terms.compression)
        packed, self.residual[name] = wire.pack(upload, how, self.held.get(name), self.residual.get(name))
        return packed

    def _receive(self, visit: Visit, given: Mapping[str, wire.Packed]) -> None:
        """Everything is looked at before anything is loaded."""
        steps = {**self.exchanges, **{step.name: step for step in visit.receives}}
        newest = [step.name for step in visit.receives]
        for name in given:
            if name not in steps:
                raise FedekdError(f"the server sends {name[:20]!r}, which the method does not exchange")
        answers = {name: self._opened(steps[name], packed) for name, packed in given.items()}
        for name in sorted(answers, key=lambda name: (name in newest, [*steps].index(name))):
            answer = answers[name]
            self.client.receive(steps[name], moved(answer, self.client.device))
            self.received[name] = answer_hash(given[name])
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

    def _words(self, visit: Visit) -> dict[str, wire.Word]:
        """The numbers that leave beside what is exchanged: what the site shares, and no more."""
        words: dict[str, wire.Word] = {"code": int(StatusCode.DONE), "name": self.site.name}
        if visit.last:
            self.client.round = self.terms.rounds
            with self.client.personalised():
                self.rounds.measure(self.client, self.terms.rounds)
                how = self.alone, self.rounds, self._missed()
                return words | finish(self.site, self.folder, self.terms, self.client, *how)
        if visit.sends and self.terms.weighting == "samples" and "n" in self.site.share:
            words["n"] = len(self.client.rows["train"])
        if privacy := getattr(self.client, "privacy", None):
            words["privacy"] = json.dumps(privacy)
        return words

    def _missed(self) -> int:
        """How many rounds it did not train in, or in a part only. Where rounds are drawn, it is not meant to."""
        if self.terms.participation < 1:
            return 0
        every = visits(self.client.method, self.terms.rounds)
        work = [item for visit in every if visit.number not in self.made for item in visit.work]
        return len({round for round, step, _ in work if isinstance(step, Train)})

    def state(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "client": self.client.state(),
            "alone": self.alone.state(),
            "rounds": self.rounds.state(),
            "held": self.held,
            "residual": self.residual,
            "received": self.received,
            "made": sorted(self.made),
            "dp": self.site.dp is not None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        if state["dp"] != (self.site.dp is not None):
            raise FedekdError(
                "[dp] was put into or taken out of the site's file in the middle of a federation, so that some models "
                "leave with noise and some without; bring it back as it was"
            )
        self.client.restore(state["client"])
        self.alone.restore(state.get("alone", {}))  # a version without them trained Local only
        self.rounds.restore(state.get("rounds"))
        self.held, self.residual, self.received = state["held"], state["residual"], state.get("received", {})
        every = visits(self.client.method, self.terms.rounds)
        self.made = set(state.get("made", range(len(every))))  # a version without it did not count them


def models_file(path: str) -> dict[str, Tensor]:
    """Weights from a .safetensors file or from ``torch.save`` of a state."""
    from safetensors.torch import load_file

    try:
        weights: Any = load_file(path) if path.endswith(".safetensors") else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # both libraries have kinds of their own
        problem = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        raise FedekdError(f"`local`: {path} cannot be read as a model's weights ({problem})") from None
    return dict(weights)
