"""Keys and certificates: an authority of one's own for trials, server certificates, and the sites' node keys.

A file that exists is never overwritten, and a private one is readable by its owner alone from its first byte on.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fedekd.errors import FedekdError
from fedekd.flower import need_flower

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate, CertificateBuilder

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825  # the most that common TLS clients accept
EARLIER = timedelta(hours=1)  # certificates begin a little earlier, for clocks that are behind


def make_authority(folder: Path) -> tuple[Path, Path]:
    """``ca.crt`` and ``ca.key`` of an authority that can sign server certificates and nothing else."""
    need_flower()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedekd trial authority")
    builder = _certificate(name, name, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    signed = builder.sign(key, hashes.SHA384())
    return _written(signed, folder / "ca.crt"), write_new(folder / "ca.key", _pem(key), private=True)


def make_server_certificate(folder: Path, authority: tuple[Path, Path], hosts: list[str]) -> tuple[Path, Path]:
    """``server.crt`` and ``server.key`` for these host names and addresses, signed by (certificate, key)."""
    need_flower()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = read_certificate(authority[0])
    issuer_key = serialization.load_pem_private_key(authority[1].read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    builder = _certificate(_name(hosts[0][:64]), issuer.subject, key.public_key(), SERVER_DAYS)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys(hosts)]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical)
    signed = builder.sign(issuer_key, hashes.SHA384())
    return _written(signed, folder / "server.crt"), write_new(folder / "server.key", _pem(key), private=True)


def make_node_key(path: Path) -> Path:
    """A site's private key (ECDSA P-384, OpenSSH, as Flower reads it) at ``path``; returns the public half's path."""
    need_flower()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP384R1())
    public = path.with_name(f"{path.name}.pub")
    if public.exists():
        raise FedekdError(f"{public} exists; it is kept: move it away, or name another file")
    write_new(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), private=True)
    return write_new(public, public_line(key.public_key(), path.name))


def renew_node_key(path: Path) -> Path:
    """A new pair at ``path``, for whom the old one belonged to; that one stays beside it, each file as NAME.old."""
    pair = [old for old in (path, path.with_name(f"{path.name}.pub")) if old.exists()]
    for aside in (old.with_name(f"{old.name}.old") for old in pair):
        if aside.exists():
            raise FedekdError(f"{aside} exists; it is kept: move it away")
    try:
        owners = {old: old.rename(old.with_name(f"{old.name}.old")).stat() for old in pair}
        public = make_node_key(path)
        for new, old in owners.items():
            os.chown(new, old.st_uid, old.st_gid)
    except OSError as error:
        raise FedekdError(f"cannot replace {path}: {error.strerror}; do it as its owner") from None
    return public


def public_line(key: EllipticCurvePublicKey, comment: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {comment}\n".encode()


def read_node_key(path: Path) -> EllipticCurvePrivateKey:
    need_flower()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(_bytes(path, "`fedekd site key SITE.toml` makes one"), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FedekdError(f"{path} is not an OpenSSH private key without a passphrase: {problem}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedekdError(f"{path} is not an ECDSA P-384 key; `fedekd site key SITE.toml` makes one")
    return key


def read_public_key(path: Path) -> EllipticCurvePublicKey:
    """A site's public key as its administrator sent it."""
    need_flower()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(_bytes(path))
    except (ValueError, UnsupportedAlgorithm):
        raise FedekdError(f"{path} is not an OpenSSH public key; it begins with ecdsa-sha2-nistp384") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedekdError(f"{path} is not an ECDSA P-384 key; `fedekd site init` makes one")
    return key


def read_public_keys(folder: Path) -> tuple[dict[Path, EllipticCurvePublicKey], dict[Path, str]]:
    """The sites' keys in a folder, NAME.pub each; and what cannot be read (a file, or the folder itself), with why."""
    keys, unread = {}, {}
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".pub")
    except OSError as error:
        return {}, {folder: f"cannot read the folder {folder}: {error.strerror}; check `nodes`"}
    for path in files:
        try:
            keys[path] = read_public_key(path)
        except FedekdError as error:
            unread[path] = str(error)
    return keys, unread


def read_certificate(path: Path, remedy: str = "") -> Certificate:
    """The first certificate in a PEM file; ``remedy`` says where a missing one comes from."""
    need_flower()
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(_bytes(path, remedy))
    except ValueError:
        raise FedekdError(f"{path} is not a certificate in PEM form (-----BEGIN CERTIFICATE-----)") from None


def renew_secret(path: Path) -> None:
    """What a Flower process and those that work for it on the same machine know, and nobody else."""
    path.unlink(missing_ok=True)
    write_new(path, secrets.token_bytes(32), private=True)


def write_new(path: Path, content: bytes, *, private: bool = False) -> Path:
    """Write a file that does not exist yet, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                if not private:
                    os.fchmod(file.fileno(), 0o644)
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, path)  # which fails where there is a file, unlike a rename
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
    except FileExistsError:
        raise FedekdError(f"{path} exists; it is kept: move it away, or name another folder") from None
    except OSError as error:
        raise FedekdError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def _bytes(path: Path, remedy: str = "") -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        remedy = "run this as its owner" if isinstance(error, PermissionError) else remedy
        raise FedekdError(f"cannot read {path}: {error.strerror}" + (f"; {remedy}" if remedy else "")) from None


def _certificate(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePublicKey, days: int) -> CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _written(certificate: Certificate, path: Path) -> Path:
    from cryptography.hazmat.primitives.serialization import Encoding

    return write_new(path, certificate.public_bytes(Encoding.PEM))
