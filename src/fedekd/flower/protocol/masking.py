"""Uploads that only their sum can be read from: secure aggregation after Bonawitz et al. (CCS 2017).

A site adds to its upload, in whole numbers modulo 2^32, a mask for each other site, which that one subtracts, and a
mask of its own. Each mask is a ChaCha20 key stream. Its key comes from X25519 between two sites, or is the site's own
seed; both are shared out among the sites by Shamir's scheme, so that enough of them can take away what is left when
some drop out. Every key is made for one attempt at one visit and used for nothing else.

Of Flower's SecAgg+ only the sharing is used (PyCryptodome's, over GF(2^128)). Its mask generator is numpy's, seeded
with 32 bits, which anybody can try out. Its rounding is random, so that an upload asked for again would differ from the
one before under the same mask, and the difference would show.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedekd.errors import FedekdError
from fedekd.exchange import Message, exchanges
from fedekd.flower.protocol.digests import digest
from fedekd.flower.protocol.visits import called
from fedekd.flower.protocol.wire import Packed
from fedekd.methods.base import Exchange, Method

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

KEY = 32  # bytes of a key or a seed
SHARE = 52  # bytes of Flower's share of a key: its number, and three blocks of 16
MARK = "fedekd masking 1"
SPARE = 4  # the sum may be so much smaller than the numbers allow, so that a mask that was left in it shows

Vector = np.ndarray  # of uint32


def threshold(share: float, sites: int) -> int:
    """How many sites it takes to unmask a sum; more than half, so that no two groups can unmask two different ones."""
    return int(share * sites) + 1


def refuse(method: Method, name: str, rounds: int) -> None:
    """Raise for a method that needs more than a sum."""
    for step in exchanges(method, rounds).values():
        needs = {
            "answers each site apart": step.each,
            "combines single uploads in a way of its own": step.combine is not None and not step.mean_only,
            "trains on single uploads at the server": step.refine is not None,
        }
        if found := [what for what, needed in needs.items() if needed]:
            raise FedekdError(
                f'{name} {found[0]} ({called(step)}), and with aggregation = "secure" the server sees only a sum; take '
                'a method whose server needs the mean alone, such as fedekd or fedavg, or aggregation = "plain"'
            )


# --- keys, signed by those that sites are known by ---------------------------------------------------------------


@dataclass(frozen=True)
class Occasion:
    """One attempt at one visit: what keys and signatures are good for, and nothing else."""

    federation: str
    visit: int
    attempt: str

    def text(self, what: str, *more: object) -> bytes:
        return json.dumps([MARK, what, self.federation, self.visit, self.attempt, *more]).encode()


def public_half(private: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(key: EllipticCurvePrivateKey, content: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return key.sign(content, ec.ECDSA(hashes.SHA384()))


def signed_by(key: EllipticCurvePublicKey | None, signature: bytes, content: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    if key is None:
        return False
    try:
        key.verify(signature, content, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


@dataclass(frozen=True)
class SignedKeys:
    """A site's public keys for one occasion: of masks, and of what is sealed for it."""

    mask: bytes
    seal: bytes
    signature: bytes

    def content(self) -> bytes:
        return self.mask + self.seal + self.signature

    @classmethod
    def parse(cls, content: bytes) -> SignedKeys:
        return cls(content[:KEY], content[KEY : 2 * KEY], content[2 * KEY :])

    def holds(self, name: str, occasion: Occasion, key: EllipticCurvePublicKey | None) -> bool:
        """Whether the site of this name has signed them for this occasion."""
        whole = len(self.mask) == len(self.seal) == KEY
        return whole and signed_by(key, self.signature, keys_text(occasion, name, self.mask, self.seal))


def keys_text(occasion: Occasion, name: str, mask: bytes, seal: bytes) -> bytes:
    return occasion.text("keys", name, mask.hex(), seal.hex())


def survivors_text(
    occasion: Occasion, keys: Mapping[str, tuple[bytes, bytes]], members: Sequence[str], survivors: Sequence[str]
) -> bytes:
    """Whose uploads are in the sum. With all public ``keys`` and those that mask, ``members``: sites that were told of
    others do not agree."""
    told = sorted((name, mask.hex(), seal.hex()) for name, (mask, seal) in keys.items())
    return occasion.text("survivors", told, sorted(members), sorted(survivors))


def _agreed(private: bytes, public: bytes, info: bytes) -> bytes:
    """A key that two sites have in common and nobody else."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point that gives the same secret with every key
        raise FedekdError("a site's public key is none") from None
    return HKDF(hashes.SHA256(), KEY, None, info).derive(secret)


# --- shares ----------------------------------------------------------------------------------------------------------


def shared_out(secret: bytes, needed: int, sites: int) -> list[bytes]:
    from flwr.common.secure_aggregation.crypto.shamir import create_shares

    return create_shares(secret, needed, sites)


def put_together(shares: Sequence[bytes]) -> bytes:
    """The secret; raises ``FedekdError`` where shares do not belong together."""
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares

    try:
        secret = combine_shares(list(shares))
    except ValueError:
        secret = b""
    if len(secret) != KEY:
        raise FedekdError("the shares that sites reveal do not belong together")
    return secret


def seal(private: bytes, public: bytes, occasion: Occasion, sender: str, receiver: str, content: bytes) -> bytes:
    import os

    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    about = occasion.text("share", sender, receiver)
    nonce = os.urandom(12)
    return nonce + ChaCha20Poly1305(_agreed(private, public, about)).encrypt(nonce, content, about)


def unseal(private: bytes, public: bytes, occasion: Occasion, sender: str, receiver: str, content: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    about = occasion.text("share", sender, receiver)
    try:
        found = ChaCha20Poly1305(_agreed(private, public, about)).decrypt(content[:12], content[12:], about)
    except (InvalidTag, ValueError):
        found = b""
    if len(found) != 2 * SHARE:
        raise FedekdError(f"the shares of {sender} cannot be opened here")
    return found


# --- masks -----------------------------------------------------------------------------------------------------------


def own_mask(seed: bytes, length: int) -> Vector:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(4 * length))
    return np.frombuffer(stream, np.dtype("<u4")).astype(np.uint32)


def given_to_all(terms: str, schema: str, answers: Mapping[str, str]) -> str:
    """A hash of what the server must give to all sites alike; ``answers``: by exchange, the newest one's hash.

    It goes into the masks between sites, so that these cancel only among sites that were given the same. A server that
    hands the others a model on which nothing is learned, to have one site's change alone in the sum, gets no sum.
    """
    return hashlib.sha256(json.dumps([terms, schema, answers], sort_keys=True).encode()).hexdigest()


def answer_hash(answer: Packed) -> str:
    return f"{answer.how} {digest(answer.arrays)}"


def pair_mask(
    private: bytes, own: str, public: bytes, other: str, occasion: Occasion, given: str, length: int
) -> Vector:
    """What ``own`` adds for ``other``; what that one adds is its negative, if both were ``given`` the same."""
    pair = sorted((own, other))
    mask = own_mask(_agreed(private, public, occasion.text("mask", *pair, given)), length)
    return mask if own == pair[0] else np.negative(mask)


# --- whole numbers ---------------------------------------------------------------------------------------------------


def levels(sites: int) -> int:
    """Steps from 0 to the end of the range: as many as a sum of so many sites can have."""
    return (2**31 - 1) // (SPARE * sites)


def floats(expected: Message) -> list[str]:
    """The tensors that are summed. Counters, which are whole numbers, stay as the server has them."""
    return sorted(name for name, tensor in expected.items() if tensor.is_floating_point())


def length(expected: Message) -> int:
    return sum(expected[name].numel() for name in floats(expected))


def is_change(step: Exchange) -> bool:
    """Whether what is summed is the difference to the model that both ends hold, and not the values themselves."""
    return step.send is None and step.target == step.name


def quantised(message: Message, held: Message | None, limit: float, sites: int) -> tuple[Vector, int]:
    """The upload in whole numbers, and how many of them were cut off at ``limit``."""
    parts = [message[n].double() - (held[n].double() if held else 0.0) for n in floats(message)]
    values = torch.cat([part.flatten() for part in parts] or [torch.zeros(0).double()]).numpy()
    whole = np.rint(np.clip(values / limit, -1.0, 1.0) * levels(sites)).astype(np.int64)
    return whole.astype(np.uint32), int((np.abs(values) > limit).sum())


def mean_of(total: Vector, uploads: int, limit: float, sites: int) -> np.ndarray:
    """The mean of so many uploads, from their sum; raises ``FedekdError`` where it cannot be one."""
    whole = total.view(np.int32).astype(np.int64)
    if len(whole) and int(np.abs(whole).max()) > uploads * levels(sites):
        raise FedekdError("the sum is not one of uploads: a site has masked its own otherwise than agreed")
    return whole.astype(np.float64) * (limit / levels(sites) / uploads)


def as_message(values: np.ndarray, expected: Message, held: Message | None) -> dict[str, Tensor]:
    """A vector as tensors again; ``expected`` is what they look like, and has the counters."""
    found, rest = {name: tensor.clone() for name, tensor in expected.items()}, torch.from_numpy(values)
    for name in floats(expected):
        like = expected[name]
        part, rest = rest[: like.numel()].reshape(like.shape), rest[like.numel() :]
        found[name] = (part + (held[name].double() if held else 0.0)).to(like.dtype)
    return found


def unmask(
    total: Vector,
    occasion: Occasion,
    keys: Mapping[str, SignedKeys],
    seeds: Mapping[str, bytes],
    dropped: Mapping[str, bytes],
    given: str,
) -> Vector:
    """The sum of the uploads of those whose ``seeds`` are known; ``dropped``: the private mask keys of the others."""
    total = total.copy()
    for seed in seeds.values():
        total -= own_mask(seed, len(total))
    for name, private in dropped.items():
        if public_half(private) != keys[name].mask:
            raise FedekdError(f"what sites reveal is not the key of {name}")
        for other in seeds:
            total += pair_mask(private, name, keys[other].mask, other, occasion, given, len(total))
    return total
