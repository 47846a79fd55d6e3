"""The server signs the final models and the report; a site takes no other's signature."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from village import Hand, federate, make_server, schema_of, state_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from fedekd.cli import main
from fedekd.errors import FedekdError
from fedekd.flower.protocol.digests import digest
from fedekd.flower.protocol.wire import Payload
from fedekd.flower.settings import ServerSettings, read_server
from fedekd.flower.setup.init import init_server, init_site
from fedekd.flower.setup.signing import SignedStatement, sign, verify
from fedekd.flower.site.handlers import answer
from fedekd.runs.federation_report import SIGNED

ADDRESS = "fed.example.org:8000"


@pytest.fixture
def server(tmp_path: Path) -> ServerSettings:
    init_server(tmp_path / "fed", ADDRESS)
    return read_server(tmp_path / "fed" / "server.toml")


def made(**more) -> dict:
    return {"time": datetime.now(UTC).isoformat(), "models": {}, **more}


def test_only_the_servers_own_signature_holds(server, tmp_path):
    signed = sign(server, made(report="abc"))
    assert verify(signed, server.ca, ADDRESS)["report"] == "abc"
    init_server(tmp_path / "other", ADDRESS)
    other = read_server(tmp_path / "other" / "server.toml")
    for changed, ca, address, why in (
        (replace(signed, statement=signed.statement.replace("abc", "abd")), server.ca, ADDRESS, "changed by another"),
        (replace(signed, signature=sign(other, made()).signature), server.ca, ADDRESS, "changed by another"),
        (sign(other, made()), server.ca, ADDRESS, "does not vouch for"),
        (signed, server.ca, "mail.example.org:443", "does not vouch for"),
        (replace(signed, signature="%"), server.ca, ADDRESS, "cannot be read"),
        (replace(signed, certificate="none"), server.ca, ADDRESS, "cannot be read"),
        (replace(signed, statement="[1]"), server.ca, ADDRESS, "cannot be read"),
    ):
        with pytest.raises(FedekdError, match=why):
            verify(changed, ca, address)
    with pytest.raises(FedekdError, match="does not vouch for"):
        verify(signed, server.ca, ADDRESS, datetime.now(UTC) + timedelta(days=900))
    old = sign(server, made(time=(datetime.now(UTC) - timedelta(days=9)).isoformat()))
    with pytest.raises(FedekdError, match="does not vouch for"):
        verify(old, server.ca, ADDRESS)


def certificate(path: Path, issuer: Path | None, key=None, *, ca: bool = False) -> Path:
    """A bare certificate as simple tools make it, with its key beside it."""
    key = key or rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, path.stem)])
    above = x509.load_pem_x509_certificate(issuer.read_bytes()) if issuer else None
    signer = serialization.load_pem_private_key(issuer.with_suffix(".key").read_bytes(), None) if issuer else key
    now, day = datetime.now(UTC), timedelta(days=1)
    builder = x509.CertificateBuilder(above.subject if above else name, name, key.public_key(), 7, now - day, now + day)
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    if not ca:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("fed.example.org")]), critical=False)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path.write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(pem))
    path.with_suffix(".key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return path


def test_a_hospitals_own_authority(server, tmp_path):
    root = certificate(tmp_path / "root.crt", None, ca=True)
    between = certificate(tmp_path / "between.crt", root, ca=True)
    leaf = certificate(tmp_path / "leaf.crt", between)
    leaf.write_bytes(leaf.read_bytes() + between.read_bytes())
    own = replace(server, ca=root, certificate=leaf, key=leaf.with_suffix(".key"))
    assert verify(sign(own, made()), root, ADDRESS)["models"] == {}
    forged = certificate(tmp_path / "forged.crt", tmp_path / "leaf.crt", ec.generate_private_key(ec.SECP256R1()))
    forged.write_bytes(forged.read_bytes() + leaf.read_bytes())
    evil = replace(own, certificate=forged, key=forged.with_suffix(".key"))
    with pytest.raises(FedekdError, match="does not vouch for"):
        verify(sign(evil, made()), root, ADDRESS)
    odd = ed25519.Ed25519PrivateKey.generate()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "odd.key").write_bytes(odd.private_bytes(*form))
    with pytest.raises(FedekdError, match="neither an elliptic-curve nor an RSA key"):
        sign(replace(server, key=tmp_path / "odd.key"), made())


@pytest.mark.parametrize("compression", ["none", "int8"])
def test_a_federations_result_is_signed_and_verified(server, tmp_path, digits, compression, caplog, capsys):
    caplog.set_level("INFO")
    sites = write_sites(tmp_path, digits, alone="plain", ca=server.ca, server=ADDRESS)
    init_site(tmp_path / "own", "alder", ADDRESS, sites[0].data, ca=str(server.ca))
    sites[0] = replace(sites[0], state=tmp_path / "own" / "state")
    own = {"ca": server.ca, "certificate": server.certificate, "key": server.key, "address": ADDRESS}
    running = make_server(tmp_path, epochs=1, compression=compression, **own)
    rounds, _ = federate(running, schema_of(digits), sites)
    proxy = digest({name: tensor.numpy() for name, tensor in rounds.answers["proxy"].items()})
    assert caplog.messages.count("the server has signed the result") == 3
    assert caplog.messages.count(f"the final proxy, sha256 {proxy}, is the one that this site holds") == 3
    (kept,) = (tmp_path / "own" / "state").glob(f"*/{SIGNED}")
    assert json.loads(kept.read_text()) == json.loads((running.state / SIGNED).read_text())

    file, report = str(tmp_path / "own" / "site.toml"), running.state / "report.json"
    assert main(["site", "verify", file, "--report", str(report)]) == 0
    told = capsys.readouterr().out
    assert f"by the server {ADDRESS}\n  the final proxy, sha256 {proxy}, is the one that this site holds\n" in told
    assert f"{report} is the report of federation {kept.parent.name} that the server has signed" in told
    report.write_text(report.read_text().replace("true", "false"))
    assert main(["site", "verify", file, "--report", str(report)]) == 2
    assert "is not the report that the server had signed" in capsys.readouterr().err

    model = str(tmp_path / "model.safetensors")
    assert main(["export", str(kept.parent), "--client", "alder", "--to", model]) == 0
    card = (tmp_path / "model.card.md").read_text()
    assert f"- federation {kept.parent.name}, signed by its server on {datetime.now(UTC):%Y-%m-%d}\n" in card
    assert f"- its final proxy: sha256 {proxy}\n" in card


def test_what_another_signed_is_not_kept(server, tmp_path, digits, caplog):
    sites = write_sites(tmp_path, digits, alone="plain", ca=server.ca, server=ADDRESS)
    federate(make_server(tmp_path, epochs=1), schema_of(digits), sites, Hand(sites))
    assert "the results are not signed: cannot read" in caplog.text
    assert "the server has not signed the result" in caplog.text
    (folder,) = (file.parent for file in sites[0].state.glob("*/state.pt"))
    agreed = json.loads((folder / "agreement.json").read_text())["offer"]
    init_server(tmp_path / "other", ADDRESS)
    about = made(federation=folder.name, offer=agreed)
    for signed, why in (
        (sign(read_server(tmp_path / "other" / "server.toml"), about), "does not vouch for the certificate"),
        (sign(server, {**about, "federation": "0" * 16}), f"it is about federation '{'0' * 16}'"),
        (sign(server, {**about, "offer": "other"}), "it is about the terms 'other', and this site agreed to"),
    ):
        answer(sites[0], "end", Payload({"federation": folder.name, **signed.words()}))
        assert f"the server's signature of the result does not hold: {why}" in caplog.text.replace(f"{server.ca} ", "")
        assert not (folder / SIGNED).exists()
    caplog.clear()
    caplog.set_level("INFO")
    models = {"proxy": {"tensors": sorted(state_of(sites[0])["held"]["proxy"]), "sha256": "ab"}}
    good = sign(server, {**about, "models": models})
    answer(sites[0], "end", Payload({"federation": folder.name, **good.words()}))
    assert "the final proxy, sha256 ab, is not the one that this site holds" in caplog.text
    assert SignedStatement.read(folder / SIGNED) == good
