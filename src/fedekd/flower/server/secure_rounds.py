"""Rounds whose server sees only sums: before each upload sites agree on masks, and after it they unmask the sum.

In each visit that sends something there are four short messages more: keys and shares before it, then the signed list
of those whose uploads came, and the shares that unmask their sum. Who fails before the visit takes no part in it; who
fails in it or after it is made up for, as long as enough sites stay. Once sites may have revealed something they unmask
no other sum of that visit, so that the masked sum is on the disk by then, and a server that is started again goes on
from there.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedekd.errors import FedekdError
from fedekd.flower.protocol import masking, wire
from fedekd.flower.protocol.codes import StatusCode
from fedekd.flower.protocol.masking import Occasion, SignedKeys
from fedekd.flower.protocol.messages import Reply, masking_text
from fedekd.flower.protocol.visits import Visit, called
from fedekd.flower.protocol.wire import Packed, Payload, Word
from fedekd.flower.saved_state import SavedState
from fedekd.flower.secure_settings import LEAST_MASKED, MASKING_WAIT, check_secure
from fedekd.flower.server.conversation import MaskingRequests, TooFew, converse
from fedekd.flower.server.rounds import Rounds, Uploaded
from fedekd.flower.settings import ServerSettings
from fedekd.flower.setup.keys import read_public_keys
from fedekd.methods.base import Exchange

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    from fedekd.flower.protocol.schema import Schema
    from fedekd.flower.server.conversation import Transport

log = logging.getLogger("fedekd.server")
Tell = Callable[[str, str], None]  # a site, and why it does not count


class Masks:
    """What the server knows of one attempt at one visit."""

    def __init__(self, occasion: Occasion, keys: Mapping[str, SignedKeys]) -> None:
        self.occasion, self.keys = occasion, dict(keys)
        self.sealed: dict[str, dict[str, bytes]] = {}
        """By receiver: what the others have sealed for it."""
        self.members: list[str] = []
        self.survivors: list[str] = []
        self.signatures: dict[str, bytes] = {}
        self.total = np.zeros(0, np.uint32)

    def state(self) -> dict[str, Any]:
        return {
            "occasion": [self.occasion.federation, self.occasion.visit, self.occasion.attempt],
            "keys": {name: one.content() for name, one in self.keys.items()},
            "sealed": self.sealed,
            "members": self.members,
            "survivors": self.survivors,
            "signatures": self.signatures,
            "total": torch.from_numpy(self.total.view(np.int32)),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Masks:
        keys = {name: SignedKeys.parse(content) for name, content in state["keys"].items()}
        found = cls(Occasion(*state["occasion"]), keys)
        found.sealed, found.members, found.survivors = state["sealed"], state["members"], state["survivors"]
        found.signatures, found.total = state["signatures"], state["total"].numpy().view(np.uint32)
        return found


class SecureRounds(Rounds):
    def __init__(self, server: ServerSettings, schema: Schema, transport: Transport, expected: int) -> None:
        check_secure(server)
        super().__init__(server, schema, transport, expected)
        masking.refuse(self.job.method, self.terms.method, self.terms.rounds)
        self.masked = SavedState(server.state / "masked")
        self.masks: Masks | None = None

    # --- before the upload ----------------------------------------------------------------------------------

    def _wanted(self, visit: Visit, rounds: dict[str, tuple[int, ...]], failed: Tell) -> list[str]:
        """Also agrees on masks: who should send and does not manage that is not asked to."""
        wanted = super()._wanted(visit, rounds, failed)
        self.masks = None
        if not visit.sends:
            return wanted
        senders = [name for name in wanted if visit.round in rounds[name]]
        found = self.masked.load()
        if found and found[1]["occasion"][:2] == [self.progress.federation, visit.number]:
            self.masks = Masks.restored(found[1])
        else:
            self.masks = self._agreed(visit, senders, failed)
        return [name for name in wanted if name not in senders or name in self.masks.members]

    def _agreed(self, visit: Visit, senders: list[str], failed: Tell) -> Masks:
        occasion = Occasion(self.progress.federation, visit.number, secrets.token_hex(8))
        masks, known = Masks(occasion, {}), self._known()
        for name, given in self._ask(masks, "keys", senders, {}, failed).items():
            keys = SignedKeys.parse(given.get(name, b""))
            if keys.holds(name, occasion, known.get(name)):
                masks.keys[name] = keys
            else:
                failed(name, "its keys for masking are not signed with its own key")
        self._enough(len(masks.keys), masks, "agreed on masks", of=len(senders))
        public = {name: keys.content() for name, keys in masks.keys.items()}
        for name, given in self._ask(masks, "shares", masks.keys, public, failed).items():
            if set(given) == set(masks.keys) - {name}:
                masks.members.append(name)
                masks.sealed[name] = dict(given)
            else:
                failed(name, "it has not shared its keys for masking with all others")
        self._enough(len(masks.members), masks, "agreed on masks")
        masks.members.sort()
        masks.sealed = {
            name: {other: masks.sealed[other][name] for other in masks.members if other != name}
            for name in masks.members
        }
        return masks

    def _payload(self, visit: Visit, name: str, *given: Any) -> Payload:
        payload = super()._payload(visit, name, *given)
        if self.masks is None or name not in self.masks.sealed or not visit.sends:
            return payload
        more = {"attempt": self.masks.occasion.attempt, "masking": masking_text(self.masks.sealed[name])}
        return Payload({**payload.words, **more}, payload.models)

    # --- after it -------------------------------------------------------------------------------------------

    def _checked(self, visit: Visit, replies: dict[str, Reply], failed: Tell) -> dict[str, Uploaded]:
        """By site whose upload is in the sum: the mean of all of them, for there is nothing else to be had."""
        if not visit.sends:
            return super()._checked(visit, replies, failed)
        masks = self.masks
        assert masks is not None
        if not masks.survivors:
            self._add_up(visit, masks, replies, failed)
        secret = self._revealed(masks)
        survivors = masks.survivors
        dropped = {name: secret[name] for name in masks.members if name not in survivors}
        seeds = {name: secret[name] for name in survivors}
        total = masking.unmask(masks.total, masks.occasion, masks.keys, seeds, dropped, self._given())
        values = masking.mean_of(total, len(survivors), self.terms.mask_limit, len(masks.keys))
        mean: Uploaded = {}
        for step in visit.sends:
            expected = self._expected(step)
            count = masking.length(expected)
            held = expected if masking.is_change(step) else None
            mean[step.name], values = masking.as_message(values[:count], expected, held), values[count:]
        if dropped:
            log.info("visit %d: unmasked without %s", visit.number + 1, ", ".join(sorted(dropped)))
        return dict.fromkeys(sorted(survivors, key=self.progress.roster.numbers.__getitem__), mean)

    def _combine(self, step: Exchange, round: int, counted: dict[str, Uploaded], replies: dict[str, Reply]) -> None:
        """As if each of them had sent the mean; of a sum that was on the disk, not all need have answered again."""
        super()._combine(step, round, counted, {name: Reply(StatusCode.DONE, name, {}, {}, 0) for name in counted})

    def report(self) -> dict[str, Any]:
        sums = [len(names) for visit, names in zip(self.visits, self.progress.counted, strict=False) if visit.sends]
        return {**super().report(), "smallest_sum": min(sums, default=None)}

    def _add_up(self, visit: Visit, masks: Masks, replies: dict[str, Reply], failed: Tell) -> None:
        """The masked uploads become their sum, once the sites have signed whose they are."""
        lengths = {step.name: masking.length(self._expected(step)) for step in visit.sends}
        uploads = {}
        for name, reply in replies.items():
            if name in masks.members:
                found = _vector(reply.models, visit, lengths)
                if isinstance(found, str):
                    failed(name, found)
                else:
                    uploads[name] = found
        self._enough(len(uploads), masks, "gave a masked upload")
        named = dict.fromkeys(sorted(uploads), b"")
        answers = self._ask(masks, "confirm", named, named)
        public = {name: (one.mask, one.seal) for name, one in masks.keys.items()}
        text, known = masking.survivors_text(masks.occasion, public, masks.members, list(named)), self._known()
        for name, given in answers.items():
            if masking.signed_by(known.get(name), given.get(name, b""), text):
                masks.signatures[name] = given[name]
            else:
                log.warning("visit %d: %s has not signed whose uploads came", visit.number + 1, name)
        self._enough(len(masks.signatures), masks, "confirmed whose uploads came")
        masks.survivors = list(named)
        masks.total = np.sum(list(uploads.values()), axis=0, dtype=np.uint32)
        self.masked.save(visit.number, masks.state())

    def _revealed(self, masks: Masks) -> dict[str, bytes]:
        """By site: its seed, or its mask key where it has dropped out."""
        answers = self._ask(masks, "reveal", masks.signatures, masks.signatures)
        whole = [given for given in answers.values() if set(given) == set(masks.members)]
        needed = self._enough(len(whole), masks, "stayed to unmask the sum", least=1)
        try:
            return {name: masking.put_together([given[name] for given in whole[:needed]]) for name in masks.members}
        except FedekdError as error:
            raise TooFew(f"visit {masks.occasion.visit + 1}: {error}") from None

    def _ask(
        self, masks: Masks, stage: str, names: Collection[str], given: Mapping[str, bytes], failed: Tell | None = None
    ) -> dict[str, Mapping[str, bytes]]:
        """What sites answer to one stage; ``given`` is what all are told. ``failed``: it costs a site its part."""
        progress, about = self.progress, masks.occasion
        words: dict[str, Word] = {
            "federation": about.federation,
            "visit": about.visit,
            "attempt": about.attempt,
            "stage": stage,
        }
        payload = Payload({**words, "masking": masking_text(given)})

        def passed_over(name: str, reason: str) -> None:
            log.warning("visit %d: %s does not help to unmask the sum: %s", about.visit + 1, name, reason)

        asking = MaskingRequests(
            *(progress.roster, self.away, names, progress.current if stage == "keys" else names),
            *(lambda *_: payload, failed or passed_over),
            enough=None if failed else max(LEAST_MASKED, self._needed(masks)),
        )
        seconds = min(self.server.deadline, MASKING_WAIT)
        if not converse(self.transport, asking, seconds):
            log.warning("masking: no answer within %g s from %s", seconds, ", ".join(asking.late))
        progress.bytes_up += asking.bytes_up
        progress.bytes_down += asking.bytes_down
        return {name: reply.masking for name, reply in asking.replies.items()}

    def _given(self) -> str:
        answers = {name: masking.answer_hash(wire.pack(one, "none")[0]) for name, one in self.answers.items()}
        return masking.given_to_all(self.terms.text(), self.schema.text(), answers)

    def _known(self) -> dict[str, EllipticCurvePublicKey]:
        return {path.stem: key for path, key in read_public_keys(self.server.nodes)[0].items()}

    def _needed(self, masks: Masks) -> int:
        return masking.threshold(self.terms.mask_threshold, len(masks.keys))

    def _enough(self, count: int, masks: Masks, what: str, least: int = LEAST_MASKED, of: int | None = None) -> int:
        """How many it takes; raises ``TooFew`` where there are fewer."""
        needed = max(least, self._needed(masks))
        if count < needed:
            self._save()
            place = f"visit {masks.occasion.visit + 1} of {len(self.visits)}"
            raise TooFew(
                f"{place} failed: {count} of {of or len(masks.keys)} sites {what}, and secure aggregation takes "
                f"{needed}; the lines above say why, and the sites' own logs say more"
            )
        return needed


def _vector(models: Mapping[str, Packed], visit: Visit, lengths: Mapping[str, int]) -> np.ndarray | str:
    """A masked upload, or why it is none."""
    if set(models) != set(lengths):
        return f"it does not send {' and '.join(map(called, visit.sends))} alone"
    for name, length in lengths.items():
        packed = models[name]
        array = packed.arrays.get("masked")
        if packed.how != "masked" or len(packed.arrays) != 1 or array is None or packed.scales:
            return "its upload is not masked"
        if array.dtype != np.uint32 or array.shape != (length,):
            return f"its masked upload has {array.dtype} of shape {array.shape}, not {length} of uint32"
    return np.concatenate([models[step.name].arrays["masked"] for step in visit.sends])


def make_rounds(server: ServerSettings, schema: Schema, transport: Transport, expected: int) -> Rounds:
    """As the server's `aggregation` says."""
    return (SecureRounds if server.aggregation == "secure" else Rounds)(server, schema, transport, expected)
