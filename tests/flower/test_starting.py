"""What is missing is said at once, in one line, before any process is started."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from fedekd.cli import main
from fedekd.data import load_dataset
from fedekd.flower.protocol.schema import Schema


@pytest.fixture
def server(tmp_path: Path) -> Path:
    assert main(["server", "init", str(tmp_path / "hub"), "--address", "localhost:1"]) == 0
    Schema.of(load_dataset("digits")).write(tmp_path / "hub" / "schema.json")
    return tmp_path / "hub"


@pytest.fixture
def site(server: Path) -> Path:
    ca = server / "certificates" / "ca.crt"
    line = ["site", "init", str(server.parent / "a"), "--name", "a", "--server", "localhost:1", "--data", "digits"]
    assert main([*line, "--ca", str(ca)]) == 0
    return server.parent / "a"


def refused(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    capsys.readouterr()
    assert main([*line]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("certificates/ca.crt", None, "ca.crt: No such file or directory; check `ca`"),
        ("certificates/server.crt", "x", "server.crt is not a certificate in PEM form"),
        ("certificates/server.key", None, "server.key; check `key`"),
        ("nodes/north.pub", "ecdsa-sha2-nistp384 AAAA", "north.pub is not an OpenSSH public key"),
        ("schema.json", None, "schema.json: No such file or directory; make one with `fedekd site schema`"),
        ("schema.json", "{}", "schema.json is not a fedekd schema"),
    ],
)
def test_a_server(
    server: Path, capsys: pytest.CaptureFixture[str], file: str, content: str | None, message: str
) -> None:
    (server / file).unlink() if content is None else (server / file).write_text(content)
    assert message in refused(capsys, "server", "run", str(server / "server.toml"))
    assert not (server / "state" / "flower").exists()


def test_a_server_without_a_schema(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = server / "server.toml"
    file.write_text(file.read_text().replace("schema = ", "# schema = "))
    assert "names no `schema`; make one with `fedekd site schema`" in refused(capsys, "server", "run", str(file))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("ca.crt", None, "ca.crt: No such file or directory; get it from the server's administrator"),
        ("ca.crt", "x", "ca.crt is not a certificate"),
        ("keys/a", None, "keys/a: No such file or directory; `fedekd site key SITE.toml` makes one"),
        ("keys/a", "x", "keys/a is not an OpenSSH private key"),
    ],
)
def test_a_site(site: Path, capsys: pytest.CaptureFixture[str], file: str, content: str | None, message: str) -> None:
    (site / file).unlink() if content is None else (site / file).write_text(content)
    assert message in refused(capsys, "site", "run", str(site / "site.toml"))
    assert not (site / "state" / "flower").exists()
