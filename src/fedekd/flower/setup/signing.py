"""A statement signed with the key of the server's TLS certificate, and verified by whoever has its authority's.

So a signature needs no further key, and sites trust for it whom they trust for the connection: a certificate that their
``ca`` vouches for, and that names the server's host.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fedekd.errors import FedekdError
from fedekd.flower import need_flower
from fedekd.flower.settings import ServerSettings, checked_address
from fedekd.flower.setup.keys import read_bytes

MARK = b"fedekd result 1\n"  # before what is signed: no other use of the key makes such a signature
LONGEST = 1_000_000  # letters of any part


@dataclass(frozen=True)
class SignedStatement:
    statement: str
    signature: str
    certificate: str
    """PEM: the server's, and those between it and the authority."""

    def words(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def parse(cls, words: Mapping[str, Any]) -> SignedStatement:
        parts = {name: words.get(name) for name in ("statement", "signature", "certificate")}
        if not all(isinstance(part, str) and len(part) <= LONGEST for part in parts.values()):
            raise FedekdError("it is not a signed statement")
        return cls(**{name: str(part) for name, part in parts.items()})

    @classmethod
    def read(cls, path: Path) -> SignedStatement:
        try:
            return cls.parse(dict(json.loads(read_bytes(path))))
        except (ValueError, TypeError, FedekdError) as error:
            raise FedekdError(f"cannot read {path}: {error}") from None


def sign(server: ServerSettings, statement: Mapping[str, Any]) -> SignedStatement:
    need_flower()
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

    text = json.dumps(statement, sort_keys=True)
    try:
        key = serialization.load_pem_private_key(read_bytes(server.key), None)
    except (ValueError, TypeError):
        raise FedekdError(f"{server.key} is not a private key without a passphrase") from None
    content = MARK + text.encode()
    if isinstance(key, ec.EllipticCurvePrivateKey):
        signature = key.sign(content, ec.ECDSA(hashes.SHA384()))
    elif isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(content, _padding(padding), hashes.SHA384())
    else:
        raise FedekdError(f"{server.key} is neither an elliptic-curve nor an RSA key")
    return SignedStatement(text, base64.b64encode(signature).decode(), read_bytes(server.certificate).decode("latin-1"))


def verify(signed: SignedStatement, ca: Path, address: str, now: datetime | None = None) -> dict[str, Any]:
    """What it states; raises ``FedekdError`` unless the server at ``address`` (host:port) has signed it.

    Without ``now`` the certificate has to be valid when the statement says that it was made.
    """
    need_flower()
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

    host = checked_address(address, "server")[0]
    try:
        statement = dict(json.loads(signed.statement))
        leaf, *between = x509.load_pem_x509_certificates(signed.certificate.encode("latin-1"))
        when = now or datetime.fromisoformat(statement["time"])
        signature = base64.b64decode(signed.signature, validate=True)
        roots = x509.load_pem_x509_certificates(read_bytes(ca))
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
        raise FedekdError("the signed statement, or its certificate, cannot be read") from None
    try:
        name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    try:
        builder = PolicyBuilder().extension_policies(**_policies()).store(Store(roots)).time(when)
        builder.build_server_verifier(name).verify(leaf, between)  # type: ignore[arg-type]
    except (VerificationError, ValueError) as error:
        raise FedekdError(f"{ca} does not vouch for the certificate that it was signed with: {error}") from None
    key, content = leaf.public_key(), MARK + signed.statement.encode()
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, content, ec.ECDSA(hashes.SHA384()))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, content, _padding(padding), hashes.SHA384())
        else:
            raise InvalidSignature
    except InvalidSignature:
        raise FedekdError(
            "the signature is not that of the server's certificate: it was made or changed by another"
        ) from None
    return statement


def _policies() -> dict[str, Any]:
    """As TLS takes certificates, and not as browsers do: those of a hospital's own authority lack this and that."""
    from cryptography import x509
    from cryptography.x509.verification import Criticality, ExtensionPolicy

    def may_sign(_: Any, __: Any, basic: x509.BasicConstraints) -> None:
        if not basic.ca:
            raise ValueError("a certificate in between is not that of an authority")

    every = ExtensionPolicy.permit_all()
    return {
        "ca_policy": every.require_present(x509.BasicConstraints, Criticality.AGNOSTIC, may_sign),
        "ee_policy": every.require_present(x509.SubjectAlternativeName, Criticality.AGNOSTIC, None),
    }


def _padding(padding: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return padding.PSS(mgf=padding.MGF1(hashes.SHA384()), salt_length=padding.PSS.DIGEST_LENGTH)
