from __future__ import annotations

import configparser
import os
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from fedekd.cli import main
from fedekd.flower.settings import read_server, read_site
from fedekd.flower.setup import certificates
from fedekd.flower.setup.certificates import local_address, make_authority, make_server_certificate
from fedekd.flower.setup.keys import read_node_key, read_public_key

SITE = ["--server", "a:1", "--data", "digits"]


def unit(path: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser["Service"]


def test_a_server_and_a_site_are_made_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["server", "init", str(tmp_path / "hub"), "--address", "fed.example.org:8443", "--rounds", "4"]) == 0
    told = capsys.readouterr().out
    server = read_server(tmp_path / "hub" / "server.toml")
    assert (server.address, server.rounds) == ("fed.example.org:8443", 4)
    assert 'with five sites or more, so that one bad site can do little harm, set combine = "median"' in told
    assert str(server.ca) in told
    assert all(path.is_file() for path in (server.ca, server.certificate, server.key))
    assert local_address(server) == "127.0.0.1:8443"
    service = unit(tmp_path / "hub" / "fedekd-server.service")
    assert service["ExecStart"].endswith(f'-m fedekd server run "{tmp_path}/hub/server.toml"')
    assert service["ReadWritePaths"] == f'"{server.state}"'
    for key in ("NoNewPrivileges", "PrivateTmp"):
        assert service[key] == "yes"

    (tmp_path / "rows.csv").write_text("a,y\n1,0\n")
    monkeypatch.chdir(tmp_path)
    arguments = ["--name", "north", "--server", server.address, "--data", "rows.csv", "--target", "y"]
    assert main(["site", "init", str(tmp_path / "north"), *arguments, "--ca", str(server.ca)]) == 0
    told = capsys.readouterr().out
    site = read_site(tmp_path / "north" / "site.toml")
    assert (site.name, site.data, site.target) == ("north", str(tmp_path / "rows.csv"), "y")
    assert site.ca.read_bytes() == server.ca.read_bytes()
    assert str(tmp_path / "north" / "keys" / "north.pub") in told
    assert str(site.state / "log") in told
    assert read_node_key(site.key).public_key() == read_public_key(tmp_path / "north" / "keys" / "north.pub")
    assert {path.stat().st_mode & 0o777 for path in (site.state, server.state)} == {0o700}
    assert unit(tmp_path / "north" / "fedekd-site.service")["User"] == "fedekd"


@pytest.mark.parametrize("given", ["nope.csv", "there.csv", "digits", "hospital.rows:load"])
def test_rows_that_are_not_there_yet_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").touch()
    assert main(["site", "init", "north", "--name", "north", "--server", "a:1", "--data", given]) == 0
    said = f"put the site's rows at: {tmp_path / 'nope.csv'} (there is nothing yet)" in capsys.readouterr().out
    assert said == (given == "nope.csv")


@pytest.mark.parametrize("kind", ["server", "site"])
def test_units_bear_any_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    python, own = tmp_path / "a b%c$d" / "python", tmp_path / 'a b%c$d"e\\f'
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    given = ["--address", "a:1"] if kind == "server" else ["--name", "north", *SITE]
    assert main([kind, "init", str(own), *given]) == 0
    file = own / f"fedekd-{kind}.service"
    service = unit(file)
    assert service["ExecStart"] == (
        rf'"{tmp_path}/a b%%c$d/python" -m fedekd {kind} run "{tmp_path}/a b%%c$$d\"e\\f/{kind}.toml"'
    )
    assert service["ReadWritePaths"] == rf'"{tmp_path}/a b%%c$d\"e\\f/state"'
    start = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("start with: "))
    assert shlex.split(start)[-1] == f"{own}/{kind}.toml"
    if analyze := shutil.which("systemd-analyze"):
        done = subprocess.run([analyze, "verify", file], capture_output=True, text=True, timeout=60)
        said = (done.stdout + done.stderr).splitlines()
        assert not [line for line in said if file.name in line], "of other units on this machine it may say anything"


@pytest.mark.parametrize(("port", "right"), [(443, "CAP_NET_BIND_SERVICE"), (1024, "")])
def test_a_service_may_open_its_port_and_do_nothing_else(tmp_path: Path, port: int, right: str) -> None:
    assert main(["server", "init", str(tmp_path / "hub"), "--address", f"fed.example.org:{port}"]) == 0
    file = tmp_path / "hub" / "fedekd-server.service"
    assert unit(file)["CapabilityBoundingSet"] == right
    assert unit(file).get("AmbientCapabilities", "") == right
    if analyze := shutil.which("systemd-analyze"):
        done = subprocess.run([analyze, "verify", file], capture_output=True, text=True, timeout=60)
        assert not [line for line in (done.stdout + done.stderr).splitlines() if file.name in line]


@pytest.mark.parametrize("kind", ["server", "site"])
def test_the_services_user_owns_what_only_an_owner_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    own, given = tmp_path / "a b", ["--address", "a:1"] if kind == "server" else ["--name", "north", *SITE]
    assert main([kind, "init", str(own), *given, "--user", "nobody"]) == 0
    told = capsys.readouterr().out.splitlines()
    lines = [shlex.split(line) for line in told[told.index("or as a service, by root:") + 1 :]]
    assert lines[0] == ["id", "nobody", "||", "useradd", "--system", "--shell", "/usr/sbin/nologin", "nobody"]
    assert lines[1] == ["chown", "-R", "nobody:", str(own)]
    assert lines[-1][:2] == ["cp", str(own / f"fedekd-{kind}.service")]
    assert lines[-1][-3:] == ["enable", "--now", f"fedekd-{kind}.service"]
    check = ["runuser", "-u", "nobody", "--", sys.executable, "-m", "fedekd", "site", "check", str(own / "site.toml")]
    assert lines[2:-1] == ([check] if kind == "site" else [])
    if os.getuid() == 0:
        subprocess.run(lines[1], check=True)
        assert {path.owner() for path in (own, *own.rglob("*"))} == {"nobody"}


def test_given_certificates_are_used_where_they_are(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "own")
    certificate, key = make_server_certificate(tmp_path / "own", authority, ["fed.example.org"])
    own = ["--ca", str(authority[0]), "--certificate", str(certificate), "--key", str(key)]
    assert main(["server", "init", str(tmp_path / "hub"), "--address", "fed.example.org:8000", *own]) == 0
    server = read_server(tmp_path / "hub" / "server.toml")
    assert (server.ca, server.certificate, server.key) == (authority[0], certificate, key)
    assert not (tmp_path / "hub" / "certificates").exists()
    assert local_address(server) == "fed.example.org:8000"  # which is all that the certificate names


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("ca.crt", "other/server.crt", "other/server.key"), "for fed.example.org: unable to get local issuer"),
        (("other/ca.crt", "server.crt", "server.key"), "for fed.example.org: unable to get local issuer"),
        (("ca.crt", "server.crt", "other/server.key"), "server.key is not the key of"),
        (("ca.crt", "elsewhere/server.crt", "elsewhere/server.key"), "certificate is not valid for 'fed.example.org'"),
        (("ca.crt", "nameless.crt", "server.key"), "names no host (no subject alternative name)"),
        (("ca.crt", "late.crt", "server.key"), "for fed.example.org: certificate has expired"),
        (("ca.crt", "server.crt", "encrypted.key"), "encrypted.key is encrypted"),
        (("ca.crt", "server.crt", "ca.crt"), "ca.crt is not a private key"),
        (("ca.crt", "server.crt", "none.key"), "cannot read"),
        (("server.key", "server.crt", "server.key"), "server.key is not a certificate"),
        (("told.crt", "server.crt", "server.key"), "told.crt has letters that are not ASCII"),
    ],
)
def test_given_certificates_that_no_site_would_accept(
    own: Path, capsys: pytest.CaptureFixture[str], files: tuple[str, str, str], message: str
) -> None:
    names = zip(("--ca", "--certificate", "--key"), files, strict=True)
    given = [word for option, file in names for word in (option, str(own / file))]
    assert main(["server", "init", str(own / "hub"), "--address", "fed.example.org:8000", *given]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not any((own / "hub").iterdir())


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """An authority's files, another one's, and what goes wrong with certificates."""
    authority, other = make_authority(tmp_path), make_authority(tmp_path / "other")
    certificate, key = make_server_certificate(tmp_path, authority, ["fed.example.org"])
    make_server_certificate(tmp_path / "other", other, ["fed.example.org"])
    make_server_certificate(tmp_path / "elsewhere", authority, ["elsewhere.example.org"])
    pair = load_pem_private_key(key.read_bytes(), None)
    locked = pair.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "encrypted.key").write_bytes(locked)
    (tmp_path / "told.crt").write_bytes("Universitätsklinikum\n".encode() + authority[0].read_bytes())
    signer = load_pem_private_key(authority[1].read_bytes(), None)
    good, now = certificates.read_certificate(certificate), datetime.now(UTC)
    for name, end, extensions in (
        ("nameless.crt", now + timedelta(1), ()),
        ("late.crt", now - timedelta(1), good.extensions),
    ):
        builder = x509.CertificateBuilder(good.issuer, good.subject, good.public_key(), 7, now - timedelta(2), end)
        for extension in extensions:
            builder = builder.add_extension(extension.value, extension.critical)
        signed = builder.sign(signer, hashes.SHA384())  # type: ignore[arg-type]
        (tmp_path / name).write_bytes(signed.public_bytes(Encoding.PEM))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["server", "init", "DIR/full", "--address", "a:1"], "is not empty; nothing is changed"),
        (["server", "init", "DIR/new", "--address", "a"], "--address must look like"),
        (["server", "init", "DIR/new", "--address", "a:1", "--ca", "x"], "needs all three"),
        (["server", "init", "DIR/new"], "--address"),
        (
            ["server", "init", "DIR/new", "--address", "a:1", "--method", "fedekdd"],
            "--method: unknown method 'fedekdd'",
        ),
        (["server", "init", "DIR/new", "--address", "a:1", "--method", "local"], "--method: local sends nothing"),
        (["site", "init", "DIR/new", "--name", "a/b", *SITE], "a site's name"),
        (["site", "init", "DIR/new", "--name", "a", *SITE, "--ca", "no"], "cannot read"),
        (["site", "init", "DIR/new", "--name", "a", *SITE, "--task", "guess"], "unknown task 'guess'"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main([argument.replace("DIR", str(tmp_path)) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists() or not any((tmp_path / "new").iterdir())  # nothing half made


def test_a_second_init_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["site", "init", str(tmp_path / "a"), "--name", "a", "--server", "a:1", "--data", "digits"]
    assert main(line) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert main(line) == 2
    assert "site.toml exists; nothing is changed" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()} == before
