"""Certificates are renewed in time, and keys are rotated, while a federation goes on, also behind a faulty proxy."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from loopback import Loopback
from recorder import Proxy

from fedekd.cli import main
from fedekd.flower.server.middleware import HEARTBEAT
from fedekd.flower.settings import read_server
from fedekd.flower.setup import certificates
from fedekd.flower.setup.certificates import check_certificate, ends_soon, read_certificate
from fedekd.flower.setup.init import init_server
from fedekd.flower.setup.keys import read_public_key
from fedekd.flower.supervise.status import server_status

HERE = Path(__file__).parent


@pytest.fixture
def file(tmp_path: Path) -> Path:
    init_server(tmp_path / "fed", "fed.example.org:8000")
    return tmp_path / "fed" / "server.toml"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Certificates that end in 20 days."""
    monkeypatch.setattr(certificates, "SERVER_DAYS", 20)
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 20)
    return monkeypatch


def test_it_is_said_early_and_renewed_for_the_same_key_and_hosts(short, file, capsys):
    server = read_server(file)
    before = read_certificate(server.certificate)
    said = f"{server.certificate} ends in 19 days, on {before.not_valid_after_utc:%Y-%m-%d}: renew it"
    assert ends_soon(server.certificate, "renew it") == said
    assert sum("`fedekd server renew`" in one for one in server_status(file)["problems"]) == 2
    short.undo()
    old_ca = shutil.copy(server.ca, file.parent / "old.crt")
    assert main(["server", "renew", str(file), "--authority"]) == 0
    told = capsys.readouterr().out
    assert "a server that runs takes it at once" in told
    assert f"give every site the new {server.ca}, before the old one ends on" in told
    assert server_status(file)["problems"] == []
    after = read_certificate(server.certificate)
    assert after.not_valid_after_utc > datetime.now(UTC) + timedelta(days=800)
    assert after.public_key() == before.public_key()
    assert after.extensions.get_extension_for_class(certificates_names()).value == (
        before.extensions.get_extension_for_class(certificates_names()).value
    )
    for ca in (server.ca, Path(old_ca)):
        check_certificate(replace(server, ca=ca))  # a site that has the old one still connects
    assert sorted(path.name for path in server.ca.parent.iterdir()) == ["ca.crt", "ca.key", "server.crt", "server.key"]


def certificates_names():
    from cryptography import x509

    return x509.SubjectAlternativeName


def test_what_cannot_be_renewed_is_said_and_nothing_changes(file, tmp_path, capsys):
    server = read_server(file)
    content = server.certificate.read_bytes()
    kept = server.ca.with_suffix(".key").rename(tmp_path / "offline.key")
    assert main(["server", "renew", str(file)]) == 2
    assert "name the authority's key with --ca-key; or, if the authority is not fedekd's" in capsys.readouterr().err
    other = certificates.make_authority(tmp_path / "other")[1]
    for given, why in (
        (other, "is not the key of"),
        (server.ca, "is not a private key"),
        (server.key, "is not the key"),
    ):
        assert main(["server", "renew", str(file), "--ca-key", str(given)]) == 2
        assert why in capsys.readouterr().err
    assert server.certificate.read_bytes() == content
    assert main(["server", "renew", str(file), "--ca-key", str(kept)]) == 0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    source = HERE.parents[1] / "src"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(source), os.environ.get("PYTHONPATH", "")]))
    one = Loopback(tmp_path, 0, rounds=1000, min_sites=1)
    yield one
    one.stop()


def its_connection_outlives_the_faults(here: Loopback, proxy: Proxy) -> None:
    """Flower's own SuperNode would never again say that it is there."""
    here.wait(lambda: proxy.passed > 2, 120, "heartbeats after the faults")
    visits = len(here.visits("site0"))
    here.wait(lambda: len(here.visits("site0")) > visits, 60, "visit after the faults")
    said = "\n".join(here.child("site0").lines())
    assert "does not accept this site's heartbeat (Server error '500 Fault'" in said, here.told()
    assert said.count("connected again") == 1, here.told()
    assert here.processes("site0", "launch\0supernode"), "the same connection has lasted"
    assert said.count(": connected\n") == 1, here.told()


def no_token_is_in_a_command_line(here: Loopback) -> None:
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in here.processes("server", "flwr-serverapp")]
    assert lines
    assert not [line for line in lines if b"--token\0" in line], "every user of the machine can read them"


def test_a_running_federation_outlives_a_proxys_fault_and_takes_a_new_certificate_and_a_new_key(here: Loopback):
    """Nobody is restarted by hand, and no round is lost. One federation for all of it: its start costs the most."""
    file, port = here.folder / "server" / "server.toml", int(here.address.rpartition(":")[2])
    proxy = Proxy(here.folder / "server", port, HEARTBEAT, [500, 502])
    here.add_site("site0", server=f"localhost:{proxy.port}")
    here.start("server", "site0")
    its_connection_outlives_the_faults(here, proxy)
    no_token_is_in_a_command_line(here)

    before = ssl.get_server_certificate(("127.0.0.1", port))
    assert main(["server", "renew", str(file)]) == 0
    server = read_server(file)
    proxy.outside.load_cert_chain(server.certificate, server.key)  # the site sees the new one too
    here.wait(lambda: "the certificate was renewed; starting again" in here.told(), 30, "word of the certificate")
    rounds = here.rounds()
    here.wait(lambda: here.rounds() > rounds, 120, "round with the new certificate")
    now = ssl.get_server_certificate(("127.0.0.1", port))
    assert now != before
    assert now == server.certificate.read_text()

    public = here.folder / "site0" / "keys" / "site0.pub"
    assert main(["site", "key", str(here.folder / "site0" / "site.toml")]) == 0
    visits = len(here.visits("site0"))
    here.wait(lambda: len(here.visits("site0")) > visits, 60, "a visit with the old key, which the server still has")
    shutil.copy(public, here.folder / "server" / "nodes")
    here.wait(
        lambda: "site site0 may join with its new key; the old one is no longer valid" in here.told(), 30, "its new key"
    )
    visits = len(here.visits("site0"))
    here.wait(lambda: len(here.visits("site0")) > visits + 1, 120, "visits with the new key")
    assert read_public_key(public) != read_public_key(public.with_name("site0.pub.old"))
    assert here.child("server").code is None
    assert here.child("site0").code is None
