"""A site's half of secure aggregation: its keys for one visit, its masked upload, and what it reveals in the end.

What lies here unveils the upload, so that it is replaced as soon as the next attempt begins. A site signs one list of
those whose uploads count, reveals shares for one list that enough sites have signed, and does that once for a visit: of
each site either the mask keys or the seed, and no second sum that could be compared with the first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedekd.errors import FedekdError
from fedekd.exchange import Message
from fedekd.files import unreadable, write_whole
from fedekd.flower.protocol import masking
from fedekd.flower.protocol.digests import digest
from fedekd.flower.protocol.masking import KEY, SHARE, Occasion, SignedKeys
from fedekd.flower.protocol.messages import MaskingRequest, VisitRequest
from fedekd.flower.protocol.terms import Terms
from fedekd.flower.protocol.visits import Visit
from fedekd.flower.protocol.wire import Packed, Payload
from fedekd.flower.secure_settings import LEAST_MASKED
from fedekd.flower.settings import SiteSettings
from fedekd.flower.setup.keys import peer_keys, read_node_key
from fedekd.validation import parse_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

log = logging.getLogger("fedekd.site")


def _read(path: Path, first: dict[str, Any]) -> dict[str, Any]:
    """What is kept there; ``first`` where there is no file. A damaged one may have said what must not be revealed."""
    try:
        content = parse_json(path.read_bytes())
        if not isinstance(content, dict) or not first.keys() <= content.keys():
            raise ValueError("it does not hold what it should")
    except FileNotFoundError:
        return first
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:
        raise FedekdError(
            f"{path} is damaged ({error}), so that this site cannot tell which sums it has helped to unmask; "
            "restore the file, or delete it and join only federations whose `seed` is one that no earlier one had"
        ) from None
    return content


class SiteMasks:
    def __init__(self, site: SiteSettings, folder: Path, terms: Terms, asked: MaskingRequest | VisitRequest) -> None:
        if asked.attempt is None:
            raise FedekdError("the server wants an upload that is not masked")
        self.site, self.terms, self.path = site, terms, folder / "masks.json"
        self.occasion = Occasion(asked.federation, asked.visit, asked.attempt)
        self.kept = _read(self.path, {"revealed": -1})

    def answer(self, asked: MaskingRequest) -> dict[str, bytes]:
        """To one stage of it."""
        if asked.stage == "keys":
            return self._keys()
        self._begun()
        stages = {"shares": self._shares, "confirm": self._confirm, "reveal": self._reveal}
        return stages[asked.stage](asked.given)

    # --- before the upload ----------------------------------------------------------------------------------

    def _keys(self) -> dict[str, bytes]:
        if not self._current():
            self._one_federation()
            if self.occasion.visit <= self.kept["revealed"]:
                raise FedekdError(
                    f"this site has helped to unmask visit {self.occasion.visit} already, and does so once: two sums "
                    "would show what one site has sent"
                )
            fresh = {name: secrets.token_hex(KEY) for name in ("mask", "seal", "seed")}
            about = {"visit": self.occasion.visit, "attempt": self.occasion.attempt}
            self._keep(about | fresh, anew=True)
        mask, seal = (masking.public_half(self._secret(name)) for name in ("mask", "seal"))
        text = masking.keys_text(self.occasion, self.site.name, mask, seal)
        signature = masking.sign(read_node_key(self.site.key), text)
        return {self.site.name: SignedKeys(mask, seal, signature).content()}

    def _shares(self, given: Mapping[str, bytes]) -> dict[str, bytes]:
        """One share of the mask key and one of the seed for each site, sealed; this site's own stays here."""
        keys = {name: SignedKeys.parse(content) for name, content in given.items()}
        own = self.site.name
        public = {name: (one.mask, one.seal) for name, one in keys.items()}
        if "keys" in self.kept:
            if {name: [mask.hex(), seal.hex()] for name, (mask, seal) in public.items()} != self.kept["keys"]:
                raise FedekdError("the server names other keys of the sites than before")
            return _bytes(self.kept["sealed"])
        if len(keys) < LEAST_MASKED:
            raise FedekdError(
                f"{len(keys)} sites are too few to hide an upload among; at least {LEAST_MASKED} must mask"
            )
        if public.get(own) != tuple(masking.public_half(self._secret(name)) for name in ("mask", "seal")):
            raise FedekdError("the server names other keys of this site than its own")
        known = self._peers()
        for name, one in keys.items():
            if name != own and not one.holds(name, self.occasion, known.get(name)):
                why = "is not its own" if name in known else f"cannot be checked: {self.site.peers} has no {name}.pub"
                raise FedekdError(f"the key that the server passes on as that of {name} {why}")
        needed, names = masking.threshold(self.terms.mask_threshold, len(keys)), sorted(keys)
        halves = (masking.shared_out(self._secret(what), needed, len(names)) for what in ("seed", "mask"))
        shares = dict(zip(names, (one + other for one, other in zip(*halves, strict=True)), strict=True))
        seal = self._secret("seal")
        sealed = {
            name: masking.seal(seal, keys[name].seal, self.occasion, own, name, share)
            for name, share in shares.items()
            if name != own
        }
        self._keep(
            {
                "keys": {name: [mask.hex(), seal.hex()] for name, (mask, seal) in public.items()},
                "sealed": _texts(sealed),
                "shares": {own: shares[own].hex()},
            }
        )
        return sealed

    # --- the upload -----------------------------------------------------------------------------------------

    def receive(self, sealed: Mapping[str, bytes]) -> None:
        """The others' shares, which also say who masks; looked at before anything is trained."""
        self._begun("keys")
        own, keys = self.site.name, self._public()
        if not set(sealed) <= set(keys) - {own}:
            raise FedekdError("the server passes on shares of a site whose keys it has not named")
        self._enough(len(sealed) + 1)
        members = sorted([*sealed, own])
        if self.kept.setdefault("members", members) != members:
            raise FedekdError("the server names other sites that mask than before")
        found = {
            name: masking.unseal(self._secret("seal"), keys[name][1], self.occasion, name, own, content)
            for name, content in sealed.items()
        }
        self._keep({"shares": {**self.kept["shares"], **_texts(found)}})

    def masked(self, reply: Payload, visit: Visit, held: Mapping[str, Message], given: str) -> Payload:
        """The reply with every upload masked; ``given``: a hash of what all sites should have been given alike."""
        own, keys, sites = self.site.name, self._public(), len(self._public())
        parts = {}
        for step in visit.sends:
            message = {name: torch.from_numpy(array) for name, array in reply.models[step.name].arrays.items()}
            base = held[step.name] if masking.is_change(step) else None
            parts[step.name], cut = masking.quantised(message, base, self.terms.mask_limit, sites)
            if cut:
                log.warning(
                    "%d of %d numbers were cut off at mask_limit, %g", cut, len(parts[step.name]), self.terms.mask_limit
                )
        whole = digest(parts)
        if self.kept.setdefault("uploaded", whole) != whole:
            raise FedekdError("this site has masked another upload with these keys; two under one mask would show")
        length = sum(map(len, parts.values()))
        mask = masking.own_mask(self._secret("seed"), length)
        for name in self.kept["members"]:
            if name != own:
                mask += masking.pair_mask(self._secret("mask"), own, keys[name][0], name, self.occasion, given, length)
        models, start = {}, 0
        for name, part in parts.items():
            models[name] = Packed("masked", {"masked": part + mask[start : start + len(part)]})
            start += len(part)
        self._keep({})
        return Payload(reply.words, models)

    # --- after it -------------------------------------------------------------------------------------------

    def _confirm(self, given: Mapping[str, bytes]) -> dict[str, bytes]:
        """The signed list of those whose uploads the server has."""
        survivors = sorted(given)
        if not self.kept.get("uploaded") or self.site.name not in given:
            raise FedekdError("the server wants a sum unmasked in which this site has no part")
        if not set(survivors) <= set(self.kept["members"]):
            raise FedekdError("the server names sites that have not masked")
        self._enough(len(survivors))
        if self.kept.get("survivors", survivors) != survivors:
            raise FedekdError("the server has named others whose uploads count before")
        self._keep({"survivors": survivors})
        text = self._text(survivors)
        return {self.site.name: masking.sign(read_node_key(self.site.key), text)}

    def _reveal(self, signatures: Mapping[str, bytes]) -> dict[str, bytes]:
        """Shares of the seeds of those whose uploads count, and of the mask keys of those that dropped out."""
        self._begun("survivors")
        survivors, known = self.kept["survivors"], self._peers()
        text = self._text(survivors)
        agree = {n for n in survivors if n in signatures and masking.signed_by(known.get(n), signatures[n], text)}
        self._enough(len(agree | {self.site.name}))
        self._one_federation(revealed=True)
        self._keep({"revealed": self.occasion.visit})
        shares = _bytes({name: self.kept["shares"][name] for name in self.kept["members"]})
        return {name: share[:SHARE] if name in survivors else share[SHARE:] for name, share in shares.items()}

    # --- what is kept ---------------------------------------------------------------------------------------

    def _current(self) -> bool:
        return (self.kept.get("visit"), self.kept.get("attempt")) == (self.occasion.visit, self.occasion.attempt)

    def _begun(self, part: str = "visit") -> None:
        if not self._current() or part not in self.kept:
            raise FedekdError("the server asks for a stage of masking without those before it")

    def _enough(self, count: int) -> None:
        needed = max(LEAST_MASKED, masking.threshold(self.terms.mask_threshold, len(self.kept["keys"])))
        if count < needed:
            raise FedekdError(f"{count} of the {len(self.kept['keys'])} sites are too few; it takes {needed}")

    def _one_federation(self, revealed: bool = False) -> None:
        """With the same terms a site trains to the same numbers, so that a second federation, with one site less, would
        show what that one sent."""
        path, terms = self.site.state / "unmasked.json", hashlib.sha256(self.terms.text().encode()).hexdigest()
        known = _read(path, {})
        if known.setdefault(terms, self.occasion.federation) != self.occasion.federation:
            raise FedekdError(
                "this site has helped to unmask a sum under these terms in another federation, and two with the same "
                "seed can be compared; the server must set another `seed`, which `fedekd site accept` then agrees to"
            )
        if revealed:
            write_whole(path, json.dumps(known).encode(), "`state`", mode=0o600)

    def _text(self, survivors: Sequence[str]) -> bytes:
        return masking.survivors_text(self.occasion, self._public(), self.kept["members"], survivors)

    def _peers(self) -> dict[str, EllipticCurvePublicKey]:
        assert self.site.peers is not None  # else it has not joined
        return peer_keys(self.site.peers)

    def _public(self) -> dict[str, tuple[bytes, bytes]]:
        return {name: (bytes.fromhex(mask), bytes.fromhex(seal)) for name, (mask, seal) in self.kept["keys"].items()}

    def _secret(self, name: str) -> bytes:
        return bytes.fromhex(self.kept[name])

    def _keep(self, more: Mapping[str, Any], anew: bool = False) -> None:
        """On the disk before anything that follows from it leaves."""
        self.kept = {**({"revealed": self.kept["revealed"]} if anew else self.kept), **more}
        write_whole(self.path, json.dumps(self.kept).encode(), "`state`", mode=0o600)


def _texts(given: Mapping[str, bytes]) -> dict[str, str]:
    return {name: content.hex() for name, content in given.items()}


def _bytes(given: Mapping[str, str]) -> dict[str, bytes]:
    return {name: bytes.fromhex(content) for name, content in given.items()}
