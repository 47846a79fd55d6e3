from __future__ import annotations

import http.server
import importlib.util
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

import torch

from fedekd.cli import main
from fedekd.flower import keys
from fedekd.flower.addresses import free_port
from fedekd.flower.check import Check, check_site
from fedekd.flower.init import init_site


class Health(http.server.BaseHTTPRequestHandler):
    ahead = 0.0

    def do_HEAD(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(time.time() + self.ahead)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path, *, ahead: float = 0.0) -> Iterator[str]:
    """An HTTPS server that answers as a SuperLink does; gives its address."""
    authority = keys.make_authority(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*keys.make_server_certificate(folder, authority, ["localhost"]))
    handler = type("Handler", (Health,), {"ahead": ahead})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"localhost:{server.server_address[1]}"
        server.shutdown()


def make(folder: Path, server: str = "localhost:1", **settings: object) -> Path:
    np.savez(folder / "rows.npz", x=np.zeros((12, 4), np.float32), y=np.arange(12) % 3)
    if not (folder / "ca.crt").exists():
        keys.make_authority(folder)
    own = {"port": free_port(), **settings}
    init_site(folder / "north", "north", server, str(folder / "rows.npz"), ca=str(folder / "ca.crt"), settings=own)
    return folder / "north" / "site.toml"


def found(path: Path) -> dict[str, Check]:
    return {check.name: check for check in check_site(path)}


def test_a_site_that_is_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path) as address:
        path = make(tmp_path, address)
        assert main(["site", "check", str(path)]) == 0
    told = capsys.readouterr().out
    assert "12 rows of shape (4,), 3 classes" in told
    assert told.splitlines()[-1] == "ready to join"
    assert "WRONG" not in told


def test_a_site_that_is_not_ready_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path)
    (tmp_path / "rows.npz").unlink()
    assert main(["site", "check", str(path)]) == 2
    told = capsys.readouterr()
    assert "data         WRONG: there is no file or folder" in told.out
    assert "model        not checked" in told.out
    assert "connection   WRONG: no answer from localhost:1" in told.out
    assert "clock        not checked" in told.out
    assert told.err == "fedekd: 2 of the checks failed; mend what they name and check again\n"


def test_keys(tmp_path: Path) -> None:
    path = make(tmp_path)
    key = tmp_path / "north" / "keys" / "north"
    key.chmod(0o640)
    assert "run: chmod 600" in found(path)["key"].text
    key.chmod(0o600)
    assert found(path)["key"].state == "ok"
    keys.make_node_key(tmp_path / "other")
    (tmp_path / "other.pub").replace(key.with_name("north.pub"))
    assert "does not belong to" in found(path)["key"].text
    key.write_text("nonsense")
    assert "is not an OpenSSH private key" in found(path)["key"].text


def certificate(folder: Path, start: datetime, end: datetime) -> bytes:
    """The trial authority's certificate with another validity."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    own = keys.read_certificate(folder / "ca.crt")
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    builder = x509.CertificateBuilder(own.issuer, own.subject, own.public_key(), 1, start, end)
    return builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]


def test_certificates(tmp_path: Path) -> None:
    path = make(tmp_path)
    ca, now, day = tmp_path / "north" / "ca.crt", datetime.now(UTC), timedelta(days=1)
    ca.write_bytes(certificate(tmp_path, now - 2 * day, now - day))
    assert "has expired" in found(path)["certificate"].text
    ca.write_bytes(certificate(tmp_path, now + day, now + 2 * day))
    assert "later than this clock" in found(path)["certificate"].text
    ca.unlink()
    assert "cannot read" in found(path)["certificate"].text
    assert found(path)["connection"].state == "unknown"


def test_a_server_that_another_authority_vouches_for(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with serving(tmp_path / "a") as address:
        check = found(make(tmp_path / "b", address))["connection"]
    assert check.state == "wrong"
    assert "does not vouch for" in check.text


@pytest.mark.parametrize(("ahead", "state"), [(0.0, "ok"), (200.0, "ok"), (400.0, "wrong"), (-60.0, "wrong")])
def test_clocks(tmp_path: Path, ahead: float, state: str) -> None:
    """Flower refuses signatures from more than 5 s ahead of its clock, and from more than 305 s behind."""
    with serving(tmp_path, ahead=ahead) as address:
        check = found(make(tmp_path, address))["clock"]
    assert check.state == state, check.text


def narrow(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    return torch.nn.Linear(shape[0] + 1, outputs)


def short(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    return torch.nn.Linear(shape[0], outputs - 1)


def broken(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    raise RuntimeError("no license today")


def good(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    return torch.nn.Linear(shape[0], outputs)


@pytest.mark.parametrize(
    ("private", "message"),
    [
        ("test_site_check:narrow", "does not take rows of shape"),
        ("test_site_check:short", r"gives (2, 2) for two rows; it must give (2, 3)"),
        ("test_site_check:absent", "cannot import the private model"),
        ("torch.nn:Linear", "must take (shape, outputs)"),
        ("test_site_check:broken", "no license today"),
        ("test_site_check:good", "has 15 parameters"),
    ],
)
def test_models(tmp_path: Path, private: str, message: str) -> None:
    check = found(make(tmp_path, private=private))["model"]
    assert message in check.text


def test_the_rest(tmp_path: Path) -> None:
    path = make(tmp_path, device="cuda:99")
    (tmp_path / "north" / "state").chmod(0o755)
    checks = found(path)
    assert 'set device = "cpu"' in checks["device"].text
    assert "run: chmod 700" in checks["state"].text
    assert checks["port"].state == "ok"


def test_a_model_beside_the_settings(tmp_path: Path) -> None:
    path = make(tmp_path, private="own_models:make")
    (path.parent / "own_models.py").write_text("from test_site_check import good as make\n")
    assert found(path)["model"].state == "ok"


def test_privacy_needs_opacus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = make(tmp_path, dp={"epsilon": 8.0}), importlib.util.find_spec
    for there, state in ((object(), "ok"), (None, "wrong")):
        with monkeypatch.context() as patch:
            patch.setattr(
                "importlib.util.find_spec", lambda name, *a, s=there: s if name == "opacus" else real(name, *a)
            )
            assert found(path)["privacy"].state == state
    assert "not for what `share` lets out: n, metric, delta" in found(path)["privacy"].text
    (tmp_path / "closed").mkdir()
    assert "share" not in found(make(tmp_path / "closed", dp={"epsilon": 8.0}, share=[]))["privacy"].text
    (tmp_path / "without").mkdir()
    assert "privacy" not in found(make(tmp_path / "without"))
