"""``fedekd site check``: everything a site needs before it joins, one line each."""

from __future__ import annotations

import http.client
import importlib.util
import os
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from fedekd.errors import FedekdError
from fedekd.flower.addresses import checked_address
from fedekd.flower.keys import public_line, read_certificate, read_node_key
from fedekd.flower.needs import need_flower
from fedekd.flower.site_file import Privacy, Site, read_site

WAIT = 10.0  # seconds for the server to answer
AHEAD, BEHIND = 5.0, 305.0  # seconds a site's clock may differ from the server's before Flower refuses its signature


@dataclass(frozen=True)
class Check:
    name: str
    state: str  # ok, wrong or unknown
    text: str  # what was found, or what is wrong and how to mend it


def check_site(path: str | Path, schema: str | Path | None = None) -> Iterator[Check]:
    """Each check as it ends; with the federation's ``schema`` also whether the data fits it."""
    need_flower()
    site = read_site(path)
    folder = str(Path(path).expanduser().absolute().parent)
    if folder not in sys.path:  # as `site run` does: modules beside the settings can be named in them
        sys.path.insert(0, folder)
    yield Check("settings", "ok", f"{Path(path)} is complete")
    connection = _Connection(site)
    for name, look in (
        ("key", lambda: _key(site)),
        ("certificate", lambda: _certificate(site)),
        ("state", lambda: _state(site)),
        ("port", lambda: _port(site)),
        ("device", lambda: _device(site)),
        ("data", lambda: _data(site)),
        *([("schema", lambda: _schema(site, Path(schema)))] if schema else []),
        ("model", lambda: _model(site)),
        *([("privacy", lambda dp=site.dp: _privacy(site, dp))] if site.dp else []),
        ("connection", connection.check),
        ("clock", connection.clock),
    ):
        yield _result(name, look)


def _result(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", look())
    except Unknown as reason:
        return Check(name, "unknown", f"not checked: {reason}")
    except FedekdError as error:
        return Check(name, "wrong", str(error))


class Unknown(FedekdError):
    """It could not be looked at."""


def _key(site: Site) -> str:
    key = read_node_key(site.key)
    mode = site.key.stat().st_mode & 0o777
    if mode & 0o077:
        raise FedekdError(f"{site.key} can be read by others (mode {mode:o}); run: chmod 600 {site.key}")
    public = site.key.with_name(f"{site.key.name}.pub")
    expected = public_line(key.public_key(), "").split()[:2]
    if public.exists() and public.read_bytes().split()[:2] != expected:
        raise FedekdError(f"{public} does not belong to {site.key}; make a new pair with `fedekd site init`")
    return f"{site.key} is an ECDSA P-384 key that only you can read"


def _certificate(site: Site) -> str:
    certificate = read_certificate(site.ca)
    now, start, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        raise FedekdError(f"{site.ca} is valid only from {start:%Y-%m-%d %H:%M} UTC on, which is later than this clock")
    if now > end:
        raise FedekdError(f"{site.ca} has expired on {end:%Y-%m-%d}; ask the server's administrator for the new one")
    return f"{site.ca} is valid until {end:%Y-%m-%d}"


def _state(site: Site) -> str:
    if site.state.exists() and not site.state.is_dir():
        raise FedekdError(f"{site.state} is not a folder; set another `state`")
    folder = next(folder for folder in (site.state, *site.state.parents) if folder.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FedekdError(f"{folder} cannot be written to by this user; change its owner, or set another `state`")
    if folder == site.state and folder.stat().st_mode & 0o007:
        raise FedekdError(
            f"{folder} can be entered by everyone and will hold the private model; run: chmod 700 {folder}"
        )
    return f"{site.state} can be written to"


def _port(site: Site) -> str:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", site.port))
        except OSError as error:
            raise FedekdError(
                f"port {site.port}: {error.strerror}; is the site running already? else set another `port`"
            ) from None
    return f"{site.port} is free"


def _device(site: Site) -> str:
    import torch

    try:
        torch.empty(1, device=site.device)
    except (RuntimeError, AssertionError) as error:
        problem = str(error).splitlines()[0]
        raise FedekdError(f'device {site.device!r} does not work here ({problem}); set device = "cpu"') from None
    return f"{site.device} works"


def _data(site: Site) -> str:
    from fedekd.data import load_dataset

    data = load_dataset(site.data, target=site.target, task=site.task)
    kind = f"{data.outputs} classes" if data.task == "classification" else "a regression"
    return f"{len(data.y)} rows of shape {tuple(data.x.shape[1:])}, {kind}"


def _schema(site: Site, path: Path) -> str:
    from fedekd.flower.schema import Schema

    data = Schema.read(path).load(site.data, site.target)
    return f"all {len(data.y)} rows fit {path}"


def _model(site: Site) -> str:
    import torch

    from fedekd import models
    from fedekd.data import load_dataset

    make = models.factory("private", site.private)
    try:
        data = load_dataset(site.data, target=site.target, task=site.task)
    except FedekdError:
        raise Unknown("the model is built from the data, which cannot be read") from None
    shape = tuple(data.x.shape[1:])
    try:
        model = models.build("private", make, shape, data.outputs, seed=0, client=0).eval()
        with torch.no_grad():
            out = model(torch.zeros(2, *shape))
    except FedekdError:
        raise
    except Exception as error:  # a user's model may raise anything
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise FedekdError(f"{_named(site)} does not take rows of shape {shape}: {problem}") from None
    if out.shape[0] != 2 or out.numel() != 2 * data.outputs:
        raise FedekdError(f"{_named(site)} gives {tuple(out.shape)} for two rows; it must give (2, {data.outputs})")
    count = sum(p.numel() for p in model.parameters())
    return f"{_named(site)} has {count:,} parameters"


def _privacy(site: Site, dp: Privacy) -> str:
    if importlib.util.find_spec("opacus") is None:
        raise FedekdError("[dp] needs Opacus; get it with: pip install 'fedekd[dp]'")
    bare = f", not for what `share` lets out: {', '.join(site.share)}" if site.share else ""
    return f"epsilon {dp.epsilon:g} at delta {dp.delta:g} for the models that leave{bare}; Opacus is there"


def _named(site: Site) -> str:
    return f"the private model {site.private}" if site.private else "the built-in private model"


class _Connection:
    """A TLS connection to the server, opened once; its answer also tells the server's time."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.ahead: float | None = None

    def check(self) -> str:
        site = self.site
        host, port = checked_address(site.server, "server")
        try:
            context = ssl.create_default_context(cafile=str(site.ca))
        except (OSError, ssl.SSLError):
            raise Unknown(f"it needs the certificate {site.ca}") from None
        server = http.client.HTTPSConnection(host, port, timeout=WAIT, context=context)
        try:
            server.request("HEAD", "/health")
            answer = server.getresponse()
        except ssl.SSLCertVerificationError as error:
            raise FedekdError(
                f"{site.server} shows a certificate that {site.ca} does not vouch for ({error.verify_message}); "
                "compare ca.crt with the server's administrator"
            ) from None
        except ssl.SSLError as error:
            raise FedekdError(f"{site.server} does not speak TLS ({error.reason}); check `server`") from None
        except (OSError, http.client.HTTPException) as error:
            raise FedekdError(
                f"no answer from {site.server} ({getattr(error, 'strerror', None) or error or type(error).__name__}); "
                "check the address, the firewall, and whether the server runs"
            ) from None
        finally:
            server.close()
        if date := answer.getheader("Date"):
            self.ahead = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
        if answer.status != 200:
            raise FedekdError(f"{site.server} answers {answer.status}; it is no SuperLink: check `server`")
        return f"{site.server} answers, and its certificate is signed by {site.ca.name}"

    def clock(self) -> str:
        """The server's time is known to the second."""
        if self.ahead is None:
            raise Unknown("it is compared with the server's, which does not answer")
        if self.ahead > AHEAD or self.ahead < -BEHIND:
            word = "ahead of" if self.ahead > 0 else "behind"
            raise FedekdError(
                f"this clock is {abs(self.ahead):.0f} s {word} the server's, whose signature check allows "
                f"{AHEAD:.0f} s ahead and {BEHIND:.0f} s behind; set it by NTP"
            )
        return f"within {max(1, round(abs(self.ahead)))} s of the server's"
