"""``fedekd server renew``: new dates for certificates that fedekd has made, for the same keys.

As the keys stay, a certificate is one file, replaced whole; and a site that still has the old ``ca.crt`` accepts what
the new one vouches for, until the old one ends.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedekd.errors import FedekdError
from fedekd.files import write_whole
from fedekd.flower import need_flower
from fedekd.flower.settings import ServerSettings, read_server
from fedekd.flower.setup.certificates import (
    authority_certificate,
    check_certificate,
    pem,
    read_certificate,
    read_private_key,
    server_certificate,
)

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


def renew_certificate(path: str | Path, ca_key: str | None = None, *, authority: bool = False) -> list[str]:
    """Make the server's certificate anew, and before it the authority's if that is asked for; returns what to tell."""
    need_flower()
    server = read_server(path)
    key = Path(ca_key).expanduser() if ca_key else server.ca.with_suffix(".key")
    if not key.exists():
        raise FedekdError(
            f"there is no {key}: name the authority's key with --ca-key; or, if the authority is not fedekd's, put its "
            f"new certificate in place of {server.certificate} (and its key, if that is new, first in place of "
            f"{server.key}): a server that runs takes them at once"
        )
    if read_private_key(key).public_key() != read_certificate(server.ca).public_key():
        raise FedekdError(f"{key} is not the key of {server.ca}: name the right one with --ca-key")
    told = []
    if authority:
        end = read_certificate(server.ca).not_valid_after_utc
        _replace(server.ca, authority_certificate(read_private_key(key)))
        told.append(f"give every site the new {server.ca}, before the old one ends on {end:%Y-%m-%d}")
    before = read_certificate(server.certificate)
    certificate = server_certificate((server.ca, key), before)
    _check(server, certificate)
    _replace(server.certificate, certificate)
    until = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    return [f"{server.certificate} is valid until {until}; a server that runs takes it at once", *told]


def _check(server: ServerSettings, certificate: Certificate) -> None:
    """Raise, before anything is replaced, for one that sites would not accept."""
    trial = server.certificate.with_name(f"{server.certificate.name}.new")
    write_whole(trial, pem(certificate), "folder of the certificate")
    try:
        check_certificate(replace(server, certificate=trial))
    finally:
        trial.unlink(missing_ok=True)


def _replace(path: Path, certificate: Certificate) -> None:
    """With the owner that the old file has: the command may be root's, and the server's user must read it."""
    owner = path.stat()
    write_whole(path, pem(certificate), "folder of the certificate")
    path.chmod(owner.st_mode & 0o777)
    if os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid)
