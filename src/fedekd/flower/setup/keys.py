"""The sites' node keys, and the secrets between processes of one machine.

A file that exists is never overwritten, and a private one is readable by its owner alone from its first byte on.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedekd.errors import FedekdError
from fedekd.files import write_new
from fedekd.flower import need_flower

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey


def make_node_key(path: Path, name: str = "") -> Path:
    """A site's private key (ECDSA P-384, OpenSSH, as Flower reads it) at ``path``; returns the public half's path.

    ``name`` is what the public half says whose it is, where that is not the file's name.
    """
    need_flower()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP384R1())
    public = _public(path)
    if public.exists():
        raise FedekdError(f"{public} exists; it is kept: move it away, or name another file")
    write_new(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), private=True)
    return write_new(public, public_line(key.public_key(), name or path.name))


def renew_node_key(path: Path) -> Path:
    """A new pair at ``path``, for whom the old one belonged to; that one stays beside it, each file as NAME.old.

    The old pair is in its place until the new one is whole: without a key a site cannot connect.
    """
    fresh = path.with_name(f"{path.name}.new")
    pairs = ((fresh, path), (_public(fresh), _public(path)))
    try:
        for new, _ in pairs:
            new.unlink(missing_ok=True)  # of a renewal that was broken off
        make_node_key(fresh, path.name)
        for new, old in pairs:
            if old.exists():
                os.chown(new, old.stat().st_uid, old.stat().st_gid)
        for new, old in pairs:
            if old.exists():
                put_aside(old)
            new.rename(old)
    except OSError as error:
        raise FedekdError(f"cannot replace {path}: {error.strerror}; do it as its owner") from None
    finally:
        for new, _ in pairs:
            new.unlink(missing_ok=True)
    return _public(path)


def _public(path: Path) -> Path:
    return path.with_name(f"{path.name}.pub")


def put_aside(path: Path) -> Path:
    """Rename it to NAME.old, or to the first of NAME.old2, NAME.old3 and so on that is free; returns the new path."""
    names = (path.with_name(f"{path.name}.old{number if number > 1 else ''}") for number in itertools.count(1))
    return path.rename(next(name for name in names if not name.exists()))


def public_line(key: EllipticCurvePublicKey, comment: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {comment}\n".encode()


def read_node_key(path: Path) -> EllipticCurvePrivateKey:
    need_flower()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(read_bytes(path, "`fedekd site key SITE.toml` makes one"), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FedekdError(
            f"{path} is not an OpenSSH private key without a passphrase ({problem}); `fedekd site key SITE.toml` makes "
            "a new one"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedekdError(f"{path} is not an ECDSA P-384 key; `fedekd site key SITE.toml` makes one")
    return key


def readable_by_others(path: Path) -> str:
    """That a private key is not its owner's alone, and what to do; nothing where it is."""
    mode = path.stat().st_mode & 0o777
    return f"{path} can be read by others (mode {mode:o}); run: chmod 600 {path}" if mode & 0o077 else ""


def read_public_key(path: Path) -> EllipticCurvePublicKey:
    """A site's public key as its administrator sent it."""
    need_flower()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(read_bytes(path))
    except (ValueError, UnsupportedAlgorithm):
        raise FedekdError(f"{path} is not an OpenSSH public key; it begins with ecdsa-sha2-nistp384") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedekdError(f"{path} is not an ECDSA P-384 key; `fedekd site init` makes one")
    return key


def read_public_keys(
    folder: Path, setting: str = "nodes"
) -> tuple[dict[Path, EllipticCurvePublicKey], dict[Path, str]]:
    """The sites' keys in a folder, NAME.pub each; and what cannot be read (a file, or the folder itself), with why."""
    keys, unread = {}, {}
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".pub")
    except OSError as error:
        return {}, {folder: f"cannot read the folder {folder}: {error.strerror}; check `{setting}`"}
    for path in files:
        try:
            keys[path] = read_public_key(path)
        except FedekdError as error:
            unread[path] = str(error)
    return keys, unread


def peer_keys(folder: Path) -> dict[str, EllipticCurvePublicKey]:
    """By name, the keys of the other sites, by which secure aggregation knows them."""
    keys, unread = read_public_keys(folder, "peers")
    for problem in (*unread.values(), *shared_keys(keys).values()):
        raise FedekdError(problem)
    return {path.stem: key for path, key in keys.items()}


def shared_keys(keys: Mapping[Path, EllipticCurvePublicKey]) -> dict[Path, str]:
    """By file: that its key is another file's too. A site is known by its key, so that each must have its own."""
    files: dict[bytes, list[Path]] = {}
    for path, key in keys.items():
        files.setdefault(public_line(key, ""), []).append(path)
    return {
        path: f"{' and '.join(one.name for one in same)} hold one and the same key, and each site needs its own: take "
        "out the file that does not belong there, or have that site make a key with `fedekd site key`"
        for same in files.values()
        if len(same) > 1
        for path in same
    }


def renew_secret(path: Path) -> None:
    """What a Flower process and those that work for it on the same machine know, and nobody else."""
    path.unlink(missing_ok=True)
    write_new(path, secrets.token_bytes(32), private=True)


def read_bytes(path: Path, remedy: str = "") -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        remedy = "run this as its owner" if isinstance(error, PermissionError) else remedy
        raise FedekdError(f"cannot read {path}: {error.strerror}" + (f"; {remedy}" if remedy else "")) from None
