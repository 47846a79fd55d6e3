"""TLS certificates: an authority of one's own for trials, the server's, and whether sites will accept that one."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fedekd.errors import FedekdError
from fedekd.files import write_new
from fedekd.flower import need_flower
from fedekd.flower.settings import ServerSettings, checked_address
from fedekd.flower.setup.keys import read_bytes

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate, CertificateBuilder

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825  # the most that common TLS clients accept
EARLY = timedelta(days=30)  # before the end of a certificate, that people are told
EARLIER = timedelta(hours=1)  # certificates begin a little earlier, for clocks that are behind


def make_authority(folder: Path) -> tuple[Path, Path]:
    """``ca.crt`` and ``ca.key`` of an authority that can sign server certificates and nothing else."""
    need_flower()
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    signed = authority_certificate(key)
    return _written(signed, folder / "ca.crt"), write_new(folder / "ca.key", _pem(key), private=True)


def authority_certificate(key: EllipticCurvePrivateKey) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    name = _name("fedekd trial authority")
    builder = _certificate(name, name, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return builder.sign(key, hashes.SHA384())


def make_server_certificate(folder: Path, authority: tuple[Path, Path], hosts: list[str]) -> tuple[Path, Path]:
    """``server.crt`` and ``server.key`` for these host names and addresses, signed by (certificate, key)."""
    need_flower()
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    signed = _server_certificate(authority, key.public_key(), [_host(host) for host in dict.fromkeys(hosts)])
    return _written(signed, folder / "server.crt"), write_new(folder / "server.key", _pem(key), private=True)


def server_certificate(authority: tuple[Path, Path], before: Certificate) -> Certificate:
    """One for the same key and hosts, from now on."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = before.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FedekdError("the server's certificate is not of the kind that fedekd makes; have its authority renew it")
    names = before.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return _server_certificate(authority, key, list(names.value))


def _server_certificate(
    authority: tuple[Path, Path], public: EllipticCurvePublicKey, hosts: list[x509.GeneralName]
) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer, issuer_key = read_certificate(authority[0]), read_private_key(authority[1])
    builder = _certificate(_name(str(hosts[0].value)[:64]), issuer.subject, public, SERVER_DAYS)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName(hosts), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA384())


def read_private_key(path: Path) -> EllipticCurvePrivateKey:
    """Of an authority that fedekd made."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(read_bytes(path), None)
    except (ValueError, TypeError):
        raise FedekdError(f"{path} is not a private key without a passphrase") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FedekdError(f"{path} is not the key of an authority that fedekd made; have yours renew the certificate")
    return key


def read_certificate(path: Path, remedy: str = "") -> Certificate:
    """The first certificate in a PEM file; ``remedy`` says where a missing one comes from."""
    need_flower()
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(read_bytes(path, remedy))
    except ValueError:
        raise FedekdError(
            f"{path} is not a certificate in PEM form (-----BEGIN CERTIFICATE-----)" + (f"; {remedy}" if remedy else "")
        ) from None


def ends_soon(path: Path, remedy: str) -> str | None:
    """That a certificate has ended or will before long; None: there is time."""
    end = read_certificate(path).not_valid_after_utc
    left = end - datetime.now(UTC)
    if left > EARLY:
        return None
    when = f"ends in {left.days} days, on {end:%Y-%m-%d}" if left > timedelta() else f"has ended on {end:%Y-%m-%d}"
    return f"{path} {when}: {remedy}"


def check_certificate(server: ServerSettings) -> None:
    """Raise unless `ca`, `certificate` and `key` belong together and name the host that sites connect to.

    A handshake in memory is the judge: it knows chains, dates and names as the real one does.
    """
    read_certificate(server.ca, "check `ca`")
    read_certificate(server.certificate, "check `certificate`")
    if not os.access(server.key, os.R_OK):
        raise FedekdError(f"cannot read {server.key}; check `key`, and run this as the file's owner")
    ours, theirs = _server_end(server), _site_end(server)
    for address in dict.fromkeys([server.address, local_address(server)]):
        host = checked_address(address, "address")[0]
        try:
            _shake_hands(ours, theirs, host)
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message.rstrip(".")
            raise FedekdError(
                f"sites would not accept {server.certificate} by {server.ca} for {host}: {why}; get one that this "
                "authority signed for this host (subject alternative name)"
            ) from None
        except ssl.SSLError as error:
            raise FedekdError(f"{server.certificate} cannot be used for TLS: {error.reason or error}") from None


def _server_end(server: ServerSettings) -> ssl.SSLContext:
    def password() -> str:
        raise FedekdError(
            f"{server.key} is encrypted, and nobody is there to type its passphrase when the server restarts; write a "
            f"copy without one: openssl pkey -in {server.key} -out NEW.key"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(server.certificate, server.key, password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise FedekdError(f"{server.key} is not the key of {server.certificate}: check `key`") from None
        raise FedekdError(f"{server.key} is not a private key in PEM form (-----BEGIN PRIVATE KEY-----)") from None
    return context


def _site_end(server: ServerSettings) -> ssl.SSLContext:
    """As Flower's client makes it, which reads the authority's file as ASCII."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=server.ca.read_text("ascii"))
    except ValueError:
        raise FedekdError(f"{server.ca} has letters that are not ASCII; leave in it only what PEM needs") from None
    return context


def _shake_hands(ours: ssl.SSLContext, theirs: ssl.SSLContext, host: str) -> None:
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    site = theirs.wrap_bio(here, there, server_hostname=host)
    server = ours.wrap_bio(there, here, server_side=True)
    while True:  # each turn reads what the other end wrote, or fails
        try:
            site.do_handshake()
            return
        except ssl.SSLWantReadError:
            with contextlib.suppress(ssl.SSLWantReadError):
                server.do_handshake()


def local_address(server: ServerSettings) -> str:
    """How this machine itself reaches the SuperLink, by a name that its certificate has."""
    from cryptography import x509

    host, port = checked_address(server.address, "address")
    try:
        names = read_certificate(server.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        hosts = [
            str(value) for kind in (x509.DNSName, x509.IPAddress) for value in names.value.get_values_for_type(kind)
        ]
    except x509.ExtensionNotFound:
        raise FedekdError(
            f"{server.certificate} names no host (no subject alternative name); get one that names {host}"
        ) from None
    if server.listen in ("0.0.0.0", "::", "127.0.0.1", "::1", "localhost"):
        host = next((name for name in ("127.0.0.1", "localhost") if name in hosts), host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
    return write_new(path, pem(certificate))


def pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)
