from __future__ import annotations

import http.server
import importlib.util
import json
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
from fedekd.data import load_dataset
from fedekd.flower.protocol.scaling import Scaling
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.settings import ENDED
from fedekd.flower.setup import certificates, keys
from fedekd.flower.setup.check import CheckResult, check_site
from fedekd.flower.setup.init import init_site
from fedekd.flower.supervise.processes import free_port


class Health(http.server.BaseHTTPRequestHandler):
    ahead = 0.0

    def do_POST(self) -> None:
        """As a SuperLink that knows the key answers what it is asked; test_connection.py asks a real one."""
        self.send_response(400)
        self.end_headers()

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
    authority = certificates.make_authority(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.make_server_certificate(folder, authority, ["localhost"]))
    handler = type("Handler", (Health,), {"ahead": ahead})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"localhost:{server.server_address[1]}"
        server.shutdown()


def make(folder: Path, server: str = "localhost:1", **settings: object) -> Path:
    np.savez(folder / "rows.npz", x=np.zeros((12, 4), np.float32), y=np.arange(12) % 3)
    if not (folder / "ca.crt").exists():
        certificates.make_authority(folder)
    own = {"port": free_port(), **settings}
    init_site(folder / "north", "north", server, str(folder / "rows.npz"), ca=str(folder / "ca.crt"), settings=own)
    return folder / "north" / "site.toml"


def agreed(folder: Path) -> Path:
    """The schema of rows.npz, with scaling."""
    rows = load_dataset(folder / "rows.npz")
    Schema.of(rows, Scaling.of(rows)).write(folder / "schema.json")
    return folder / "schema.json"


def found(path: Path, schema: Path | None = None) -> dict[str, CheckResult]:
    return {check.name: check for check in check_site(path, schema)}


def test_a_site_that_is_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path) as address:
        path = make(tmp_path, address)
        assert main(["site", "check", str(path), "--schema", str(agreed(tmp_path))]) == 0
        told = capsys.readouterr().out
        assert "schema.json has rows of shape (4,) and 3 classes" in told
        assert "7 to train, 2 to validate, 3 to test" in told
        assert told.splitlines()[-1] == "ready to join"
        assert "WRONG" not in told
        assert main(["site", "check", str(path)]) == 0
    told = capsys.readouterr().out
    assert "12 rows of shape (4,), 3 classes" in told
    assert told.splitlines()[-1] == "nothing wrong was found; not checked: schema, model"


def test_what_is_odd_about_the_rows_is_noted(tmp_path: Path) -> None:
    path, schema = make(tmp_path), agreed(tmp_path)
    assert found(path, schema)["data"].text.endswith("can only be undecided")
    joined = tmp_path / "north" / "state" / "0123456789abcdef"
    joined.mkdir()
    began = {"schema": Schema.read(schema).text(), "rows": "of before the new export"}
    (joined / "agreement.json").write_text(json.dumps(began))
    (tmp_path / "north" / "state" / "other").mkdir()
    (tmp_path / "north" / "state" / "other" / "agreement.json").write_text("[")
    note = "federation 0123456789abcdef, which has not ended here, began with other rows and needs those back"
    assert note in found(path, schema)["data"].text
    (joined / ENDED).touch()
    assert note not in found(path, schema)["data"].text
    np.savez(tmp_path / "rows.npz", x=np.zeros((12, 4), np.float32), y=np.full(12, 2))
    one = found(path, schema)["data"]
    assert one.state == "ok"
    assert "every row is '2', so that any model that says so is always right" in one.text


def test_a_site_that_is_not_ready_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path)
    (tmp_path / "rows.npz").unlink()
    assert main(["site", "check", str(path)]) == 2
    told = capsys.readouterr()
    assert "data         WRONG: there is no file or folder" in told.out
    assert "model        not checked" in told.out
    assert "connection   not checked: no answer from localhost:1 (Connection refused); check again when" in told.out
    assert "clock        not checked" in told.out
    assert "admission    not checked" in told.out
    assert told.err == "fedekd: 1 of the checks failed; fix what they name and check again\n"


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


def test_peers(tmp_path: Path) -> None:
    """Whom secure aggregation lets a site mask with."""
    assert "peers" not in found(make(tmp_path))
    others = tmp_path / "peers"
    again = tmp_path / "again"
    again.mkdir()
    path = make(again, peers=str(others))
    assert "check `peers`" in found(path)["peers"].text
    others.mkdir()
    for count, name in enumerate(("south", "west")):
        assert f"the keys of {count} other sites, and a sum takes 2" in found(path)["peers"].text
        keys.make_node_key(tmp_path / name)
        (tmp_path / f"{name}.pub").replace(others / f"{name}.pub")
    assert found(path)["peers"] == CheckResult("peers", "ok", f"{others} holds the keys of south, west")
    (others / "east.pub").write_bytes((others / "west.pub").read_bytes())
    assert "hold one and the same key" in found(path)["peers"].text


def certificate(folder: Path, start: datetime, end: datetime) -> bytes:
    """The trial authority's certificate with another validity."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    own = certificates.read_certificate(folder / "ca.crt")
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
    path = make(tmp_path, private=private)
    assert message in found(path, agreed(tmp_path))["model"].text
    assert found(path)["model"].state == ("wrong" if "absent" in private else "unknown")


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
    assert found(path, agreed(tmp_path))["model"].state == "ok"


def test_privacy_needs_opacus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = make(tmp_path, dp={"epsilon": 8.0}), importlib.util.find_spec
    for there, state in ((object(), "ok"), (None, "wrong")):
        with monkeypatch.context() as patch:
            patch.setattr(
                "importlib.util.find_spec", lambda name, *a, s=there: s if name == "opacus" else real(name, *a)
            )
            assert found(path, agreed(tmp_path))["privacy"].state == state
    assert "not for what `share` lets out: n, metric, delta" in found(path, agreed(tmp_path))["privacy"].text
    (tmp_path / "closed").mkdir()
    closed = make(tmp_path / "closed", dp={"epsilon": 8.0}, share=[])
    assert "share" not in found(closed, agreed(tmp_path))["privacy"].text
    (tmp_path / "without").mkdir()
    assert "privacy" not in found(make(tmp_path / "without"))


CENTRE = "age,sex,ward,outcome\n" + "".join(
    f"{20 + k},{'fm'[k % 2]},{'abc'[k % 3]},{('ill', 'well', 'dead')[k % 3]}\n" for k in range(30)
)


def like_the_centre(
    folder: Path, rows: str, *, centre: str = CENTRE, target: str = "outcome", **settings: object
) -> dict[str, CheckResult]:
    """The checks of a site with these rows, in a federation whose schema another one made."""
    (folder / "centre.csv").write_text(centre)
    (folder / "own.csv").write_text(rows)
    whole = load_dataset(folder / "centre.csv", target=target)
    Schema.of(whole, Scaling.of(whole)).write(folder / "schema.json")
    path = make(folder, target=target, **{"data": str(folder / "own.csv"), **settings})
    return found(path, folder / "schema.json")


def six_to_three(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    return torch.nn.Linear(6, 3)


@pytest.mark.parametrize("private", [None, "test_site_check:six_to_three"])
def test_a_site_may_lack_classes_and_categories(tmp_path: Path, private: str | None) -> None:
    rows = "age,sex,ward,outcome\n" + "".join(f"{20 + k},f,a,well\n" for k in range(12))
    checks = like_the_centre(tmp_path, rows, **({"private": private} if private else {}))
    assert {checks[name].state for name in ("schema", "data", "model")} == {"ok"}, checks
    (tmp_path / "north" / "site.toml").rename(tmp_path / "north" / "other.toml")
    alone = found(tmp_path / "north" / "other.toml")
    assert alone["data"].state == "ok"
    assert alone["schema"].state == alone["model"].state == "unknown"


def test_a_regression_may_have_one_value_at_a_site(tmp_path: Path) -> None:
    centre = "a,y\n" + "".join(f"{k},{k * 1.5}\n" for k in range(40))
    checks = like_the_centre(tmp_path, "a,y\n" + "".join(f"{k},3\n" for k in range(12)), centre=centre, target="y")
    assert checks["data"].state == checks["model"].state == "ok", checks


def test_a_folder_of_pictures_of_one_class(tmp_path: Path) -> None:
    from PIL import Image

    for folder in ("all/cat", "all/dog", "own/dog"):
        (tmp_path / folder).mkdir(parents=True)
        for k in range(6):
            Image.fromarray(np.full((8, 8), 9 * k, np.uint8)).save(tmp_path / folder / f"{k}.png")
    Schema.of(load_dataset(tmp_path / "all")).write(tmp_path / "schema.json")
    checks = found(make(tmp_path, data=str(tmp_path / "own")), tmp_path / "schema.json")
    assert checks["data"].state == checks["model"].state == "ok", checks


def test_too_few_rows(tmp_path: Path) -> None:
    checks = like_the_centre(tmp_path, "age,sex,ward,outcome\n5,f,a,ill\n6,m,b,well\n")
    assert "2 rows, too few" in checks["data"].text
    assert checks["model"].state == "unknown"
    assert "2 rows; give at least 5" in found(tmp_path / "north" / "site.toml")["data"].text


@pytest.mark.parametrize("local", ["nowhere.pt", "nowhere.safetensors", "rows.csv"])
def test_weights_of_training_alone_that_are_none(tmp_path: Path, local: str) -> None:
    checks = like_the_centre(tmp_path, CENTRE, local=local)
    (tmp_path / "north" / "rows.csv").write_text(CENTRE)
    assert checks["data"].state == "ok"
    for one in (checks, found(tmp_path / "north" / "site.toml")):
        assert one["model"].state == "wrong"
        assert f"{local} cannot be read as a model's weights" in one["model"].text
        assert "\n" not in one["model"].text


def test_weights_of_another_model(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "other.pt")
    check = like_the_centre(tmp_path, CENTRE, local=str(tmp_path / "other.pt"))["model"]
    assert check.state == "wrong"
    assert "\n" not in check.text


@pytest.mark.parametrize(
    ("dp", "message"),
    [
        ({"epsilon": 8.0, "delta": 0.5}, "delta 0.5 protects no one of 18 rows"),
        ({"epsilon": 1e-9, "delta": 1e-5}, "no noise keeps"),
        ({"epsilon": 8.0, "delta": 1e-3}, "epsilon 8 at delta 0.001 for the models that leave"),
    ],
)
def test_privacy_that_cannot_be_had(tmp_path: Path, dp: dict[str, float], message: str) -> None:
    pytest.importorskip("opacus", reason="pip install 'fedekd[dp]'")
    checks = like_the_centre(tmp_path, CENTRE, dp=dp)
    assert checks["model"].state == "ok"
    assert message in checks["privacy"].text
    assert checks["privacy"].state == ("ok" if "leave" in message else "wrong")
    assert not any((tmp_path / "north" / "state").iterdir()), "a check leaves nothing behind"


def test_privacy_with_a_schema_without_scaling(tmp_path: Path) -> None:
    path = make(tmp_path, dp={"epsilon": 8.0})
    Schema.of(load_dataset(tmp_path / "rows.npz")).write(tmp_path / "schema.json")
    assert "[dp] needs a schema that gives the scaling" in found(path, tmp_path / "schema.json")["privacy"].text
    assert found(path)["privacy"].state == "unknown"


def test_a_schema_that_is_none(tmp_path: Path) -> None:
    checks = found(make(tmp_path), tmp_path / "nowhere.json")
    assert checks["schema"].state == "wrong"
    assert checks["data"].state == checks["model"].state == "unknown"
