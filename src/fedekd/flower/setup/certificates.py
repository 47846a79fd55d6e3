"""Whether sites will accept the server's certificate, seen before any of them tries; and by which name we reach it."""

from __future__ import annotations

import contextlib
import os
import ssl

from fedekd.errors import FedekdError
from fedekd.flower.settings import ServerSettings, checked_address
from fedekd.flower.setup.keys import read_certificate


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
