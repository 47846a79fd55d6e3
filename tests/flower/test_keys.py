from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from fedekd.cli import main
from fedekd.errors import FedekdError
from fedekd.flower.setup import certificates, keys


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@contextmanager
def answering(certificate: Path, key: Path) -> Iterator[int]:
    """A TLS server for one connection; gives its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            plain, _ = listener.accept()
            with plain, suppress(OSError):
                context.wrap_socket(plain, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def shake_hands(ca: Path, host: str, port: int) -> None:
    context = ssl.create_default_context(cafile=str(ca))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host),
    ):
        pass


@pytest.mark.parametrize("host", ["fed.example.org", "127.0.0.1", "::1"])
def test_a_certificate_is_accepted_for_its_hosts(tmp_path: Path, host: str) -> None:
    authority = certificates.make_authority(tmp_path)
    pair = certificates.make_server_certificate(tmp_path, authority, ["fed.example.org", "127.0.0.1", "::1"])
    with answering(*pair) as port:
        shake_hands(authority[0], host, port)


def test_a_certificate_is_refused_for_another_host_and_by_another_authority(tmp_path: Path) -> None:
    authority, other = certificates.make_authority(tmp_path / "a"), certificates.make_authority(tmp_path / "b")
    pair = certificates.make_server_certificate(tmp_path, authority, ["fed.example.org"])
    with answering(*pair) as port, pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)hostname mismatch"):
        shake_hands(authority[0], "evil.example.org", port)
    with answering(*pair) as port, pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(other[0], "fed.example.org", port)


def test_private_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        authority = certificates.make_authority(tmp_path)
        server = certificates.make_server_certificate(tmp_path, authority, ["localhost"])
        public = keys.make_node_key(tmp_path / "north")
    finally:
        os.umask(before)
    assert [mode(path) for path in (authority[1], server[1], tmp_path / "north")] == [0o600] * 3
    assert mode(public) == 0o644


def test_a_node_key_is_as_flower_reads_it(tmp_path: Path) -> None:
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    public = keys.make_node_key(tmp_path / "north")
    key = keys.read_node_key(tmp_path / "north")
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    assert public.read_text().endswith(" north\n")
    assert try_load_public_key(public) == public_key_to_bytes(key.public_key())
    assert public_key_to_bytes(keys.read_public_key(public)) == public_key_to_bytes(key.public_key())


def test_an_existing_key_is_never_overwritten(tmp_path: Path) -> None:
    keys.make_node_key(tmp_path / "north")
    content = (tmp_path / "north").read_bytes()
    with pytest.raises(FedekdError, match=r"north\.pub exists; it is kept"):
        keys.make_node_key(tmp_path / "north")
    (tmp_path / "north.pub").unlink()
    with pytest.raises(FedekdError, match="north exists already"):
        keys.make_node_key(tmp_path / "north")
    assert (tmp_path / "north").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["north"]  # no half-written file either


def test_a_new_key_leaves_the_old_one_beside_it(tmp_path: Path) -> None:
    line = ["site", "init", str(tmp_path / "a"), "--name", "a", "--server", "a:1", "--data", "digits"]
    assert main(line) == 0
    path, public = tmp_path / "a" / "keys" / "a", tmp_path / "a" / "keys" / "a.pub"
    before = path.read_bytes(), public.read_bytes()
    assert main(["site", "key", str(tmp_path / "a" / "site.toml")]) == 0
    assert (path.with_name("a.old").read_bytes(), path.with_name("a.pub.old").read_bytes()) == before
    assert mode(path) == 0o600
    now = keys.read_public_key(public)
    assert keys.read_node_key(path).public_key() == now
    assert now != keys.read_public_key(path.with_name("a.pub.old"))
    assert main(["site", "key", str(tmp_path / "a" / "site.toml")]) == 0
    assert keys.read_public_key(path.with_name("a.pub.old2")) == now
    assert path.with_name("a.old").read_bytes() == before[0], "the one kept is not overwritten either"
    for kept in (path, public, path.with_name("a.old"), path.with_name("a.pub.old")):
        kept.unlink()
    assert main(["site", "key", str(tmp_path / "a" / "site.toml")]) == 0  # what is lost need not be kept


def test_a_new_key_that_cannot_be_made_takes_no_old_one_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a full disk, or without the extra flower: the site still has a key to connect with."""
    public = keys.make_node_key(tmp_path / "a")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "a.new").write_text("of a renewal that was killed")
    write = keys.write_new

    def full(path: Path, content: bytes, *, private: bool = False) -> Path:
        if path.name.endswith(".pub"):
            raise FedekdError(f"cannot write {path}: No space left on device")
        return write(path, content, private=private)

    monkeypatch.setattr(keys, "write_new", full)
    with pytest.raises(FedekdError, match="No space left"):
        keys.renew_node_key(tmp_path / "a")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    monkeypatch.undo()
    assert keys.renew_node_key(tmp_path / "a") == public
    assert public.read_bytes().endswith(b" a\n")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "a.pub", "a.old", "a.pub.old"}


def test_a_folder_of_keys_names_what_cannot_be_read(tmp_path: Path) -> None:
    public = keys.make_node_key(tmp_path / "north")
    (tmp_path / "half.pub").write_bytes(public.read_bytes()[:70])
    found, unread = keys.read_public_keys(tmp_path)
    assert found == {public: keys.read_public_key(public)}
    assert list(unread) == [tmp_path / "half.pub"]
    assert "half.pub is not an OpenSSH public key" in unread[tmp_path / "half.pub"]
    assert keys.read_public_keys(tmp_path / "gone") == (
        {},
        {tmp_path / "gone": f"cannot read the folder {tmp_path}/gone: No such file or directory; check `nodes`"},
    )


@pytest.mark.parametrize("content", [b"", b"nonsense", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_what_is_no_key_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    for read in (keys.read_node_key, keys.read_public_key, certificates.read_certificate):
        with pytest.raises(FedekdError, match="is not"):
            read(path)
    with pytest.raises(FedekdError, match="cannot read"):
        keys.read_node_key(tmp_path / "missing")


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    for number, key in enumerate((ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1()))):
        path = tmp_path / str(number)
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        with pytest.raises(FedekdError, match="not an ECDSA P-384 key"):
            keys.read_node_key(path)
        path.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
        with pytest.raises(FedekdError, match="not an ECDSA P-384 key"):
            keys.read_public_key(path)
