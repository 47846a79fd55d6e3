"""What can be found wrong before a federation begins: ``fedekd site check``, one line each, and a server's settings."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedekd.errors import FedekdError
from fedekd.flower import need_flower
from fedekd.flower.protocol.codes import Failed, StatusCode
from fedekd.flower.secure_settings import LEAST_MASKED
from fedekd.flower.settings import ENDED, Privacy, ServerSettings, SiteSettings, read_site
from fedekd.flower.setup.certificates import ends_soon, read_certificate
from fedekd.flower.setup.connection import Connection, NotChecked
from fedekd.flower.setup.keys import peer_keys, public_line, read_node_key, readable_by_others

if TYPE_CHECKING:
    from fedekd.flower.protocol.schema import Schema
    from fedekd.flower.site.trainer import SiteTrainer


@dataclass(frozen=True)
class CheckResult:
    name: str
    state: str  # ok, wrong or unknown
    text: str  # what was found, or what is wrong and how to mend it


def check_site(path: str | Path, schema: str | Path | None = None) -> Iterator[CheckResult]:
    """Each check as it ends; with the federation's ``schema`` also whether this site could join with it."""
    need_flower()
    site = read_site(path)
    folder = str(Path(path).expanduser().absolute().parent)
    if folder not in sys.path:  # as `site run` does: modules beside the settings can be named in them
        sys.path.insert(0, folder)
    yield CheckResult("settings", "ok", f"{Path(path)} is complete")
    for name, look in (
        ("key", _key),
        ("certificate", _certificate),
        ("state", _state),
        ("port", _port),
        ("device", _device),
        *((("peers", _peers),) if site.peers else ()),
    ):
        yield _result(name, partial(look, site))
    yield from _joining(site, Path(schema)) if schema else _alone(site)
    connection = Connection(site)
    for name, ask in (("connection", connection.check), ("clock", connection.clock), ("admission", connection.known)):
        yield _result(name, ask)


def _result(name: str, look: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(name, "ok", look())
    except NotChecked as reason:
        return CheckResult(name, "unknown", f"not checked: {reason}")
    except FedekdError as error:
        return CheckResult(name, "wrong", str(error))


def _key(site: SiteSettings) -> str:
    key = read_node_key(site.key)
    if problem := readable_by_others(site.key):
        raise FedekdError(problem)
    public = site.key.with_name(f"{site.key.name}.pub")
    expected = public_line(key.public_key(), "").split()[:2]
    if public.exists() and public.read_bytes().split()[:2] != expected:
        raise FedekdError(f"{public} does not belong to {site.key}; make a new pair with `fedekd site key`")
    return f"{site.key} is an ECDSA P-384 key that only you can read"


def _certificate(site: SiteSettings) -> str:
    certificate = read_certificate(site.ca)
    now, start, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        raise FedekdError(f"{site.ca} is valid only from {start:%Y-%m-%d %H:%M} UTC on, which is later than this clock")
    if now > end:
        raise FedekdError(f"{site.ca} has expired on {end:%Y-%m-%d}; ask the server's administrator for the new one")
    soon = ends_soon(site.ca, "ask the server's administrator for the new one")
    return soon or f"{site.ca} is valid until {end:%Y-%m-%d}"


def _state(site: SiteSettings) -> str:
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


def _port(site: SiteSettings) -> str:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", site.port))
        except OSError as error:
            raise FedekdError(
                f"port {site.port}: {error.strerror}; is the site running already? else set another `port`"
            ) from None
    return f"{site.port} is free"


def _peers(site: SiteSettings) -> str:
    """Whom secure aggregation lets this site mask with."""
    assert site.peers is not None
    others = sorted(peer_keys(site.peers).keys() - {site.name})
    if len(others) < LEAST_MASKED - 1:
        raise FedekdError(
            f"{site.peers} holds the keys of {len(others)} other sites, and a sum takes {LEAST_MASKED - 1} at least; "
            "get the others' NAME.pub from their administrators"
        )
    return f"{site.peers} holds the keys of {', '.join(others)}"


def _device(site: SiteSettings) -> str:
    import torch

    try:
        torch.empty(1, device=site.device)
    except (RuntimeError, AssertionError) as error:
        problem = str(error).splitlines()[0]
        raise FedekdError(f'device {site.device!r} does not work here ({problem}); set device = "cpu"') from None
    return f"{site.device} works"


# --- data and model ------------------------------------------------------------------------------------------------


def _joining(site: SiteSettings, path: Path) -> Iterator[CheckResult]:
    """Load and build all that joining would, by the same code; the server's terms alone are not known yet."""
    from fedekd.flower.protocol.schema import Schema

    try:
        schema = Schema.read(path)
    except FedekdError as error:
        yield CheckResult("schema", "wrong", str(error))
        for name in ("data", "model", *(["privacy"] if site.dp else [])):
            yield CheckResult(name, "unknown", "not checked: it needs the schema")
        return
    inputs = f"{len(schema.columns)} columns" if schema.columns else f"rows of shape {schema.shape}"
    yield CheckResult("schema", "ok", f"{path} has {inputs} and {_kind(schema.task, schema.outputs)}")
    yield from _built(replace(site, dp=None), path, schema)
    if dp := site.dp:
        yield _result("privacy", lambda: _privacy(site, dp, schema))


def _built(site: SiteSettings, path: Path, schema: Schema) -> Iterator[CheckResult]:
    from fedekd import verdicts
    from fedekd.runs import choosing

    try:
        work = _work(site, schema)
    except Failed as failure:
        if failure.code == StatusCode.DATA:
            yield CheckResult("data", "wrong", _line(failure))
            yield CheckResult("model", "unknown", "not checked: it is tried on the data, which cannot be used")
        else:
            yield CheckResult("data", "ok", f"all rows fit {path}")
            yield CheckResult("model", "wrong", _line(failure))
        return
    sizes = [len(work.client.rows[split]) for split in ("train", "val", "test")]
    count = sum(p.numel() for p in work.client.models["private"].parameters())
    name = f"the private model {site.private}" if site.private else "the built-in private model"
    split = f"{sizes[0]} to train, {sizes[1]} to validate, {sizes[2]} to test"
    dataset = work.client.job.federation.dataset
    notes = [note for note in dataset.notes if "left out" in note]
    if dataset.labels and (dataset.y == dataset.y[0]).all():
        notes.append(f"every row is {dataset.labels[dataset.y[0]]!r}, so that any model that says so is always right")
    notes += [
        f"federation {name}, which has not ended here, began with other rows and needs those back"
        for name in _with_other_rows(site, schema, work.rows)
    ]
    if sizes[2] < verdicts.FEW:
        notes.append(f"with fewer than {verdicts.FEW} test rows the verdict can only be undecided")
    elif sizes[1] < choosing.FEW:
        notes.append(
            f"with fewer than {choosing.FEW} validation rows joining is compared with plain training alone only"
        )
    yield CheckResult("data", "ok", "; ".join([f"all {sum(sizes)} rows fit {path}: {split}", *notes]))
    yield CheckResult("model", "ok", f"{name} has {count:,} parameters")


def _with_other_rows(site: SiteSettings, schema: Schema, rows: str) -> Iterator[str]:
    """The federations of this schema that the site has joined with other rows, and whose end it has not heard of."""
    for path in sorted(site.state.glob("*/agreement.json")):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # `site run` tells of a damaged one
            agreement = json.loads(path.read_text())
            going_on = agreement.get("schema") == schema.text() and not (path.parent / ENDED).exists()
            if going_on and agreement.get("rows", rows) != rows:
                yield path.parent.name


def _work(site: SiteSettings, schema: Schema) -> SiteTrainer:
    from fedekd.flower.protocol.terms import Terms
    from fedekd.flower.site.trainer import SiteTrainer

    spent = sorted(site.state.glob("*/spent.json"))  # of a federation that is going on: budgets are for one
    work = SiteTrainer(site, spent[0].parent if spent else site.state / "none", Terms.usual(), schema, number=0)
    work.try_out()
    return work


def _privacy(site: SiteSettings, dp: Privacy, schema: Schema | None) -> str:
    if importlib.util.find_spec("opacus") is None:
        raise FedekdError("[dp] needs Opacus; get it with: pip install 'fedekd[dp]'")
    if schema is None:
        raise NotChecked("whether there is noise for it depends on the rows; give --schema FILE")
    try:
        _work(site, schema)
    except Failed as failure:
        raise FedekdError(_line(failure)) from None
    bare = f", not for what `share` lets out: {', '.join(site.share)}" if site.share else ""
    return f"epsilon {dp.epsilon:g} at delta {dp.delta:g} for the models that leave{bare}"


def _alone(site: SiteSettings) -> Iterator[CheckResult]:
    """What can be seen without the schema."""
    yield _result("data", lambda: _data(site))
    yield CheckResult(
        "schema", "unknown", "not checked: give the federation's, with --schema FILE, to see if the rows fit it"
    )
    yield _result("model", lambda: _model(site))
    if dp := site.dp:
        yield _result("privacy", lambda: _privacy(site, dp, None))


def _data(site: SiteSettings) -> str:
    from fedekd.data import load_dataset
    from fedekd.data.own import Whole
    from fedekd.data.partition import SMALLEST_SITE
    from fedekd.flower.protocol.schema import as_in_settings

    try:
        data = load_dataset(
            site.data, target=site.target, task=site.task, part_of=Whole(), reading=site.reading, group=site.group
        )
    except FedekdError as error:
        as_in_settings(error)
    if len(data.y) < SMALLEST_SITE:
        raise FedekdError(f"{site.data} has {len(data.y)} rows; give at least {SMALLEST_SITE}")
    return f"{len(data.y)} rows of shape {tuple(data.x.shape[1:])}, {_kind(data.task, data.outputs)}"


def _model(site: SiteSettings) -> str:
    from fedekd import models
    from fedekd.flower.site.trainer import models_file

    models.factory("private", site.private)
    if site.local != "train":
        models_file(site.local)
    raise NotChecked("it is built for rows as the schema has them; give --schema FILE")


def _kind(task: str, outputs: int) -> str:
    return f"{outputs} classes" if task == "classification" else "a regression"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


# --- a server ------------------------------------------------------------------------------------------------------


def check_schema(server: ServerSettings, file: str | Path) -> None:
    """Raise for a schema that is not there or is none."""
    from fedekd.flower.protocol.schema import Schema

    remedy = "make one with `fedekd site schema` at one of the sites"
    if server.schema is None:
        raise FedekdError(f"{file} names no `schema`; {remedy}")
    try:
        Schema.read(server.schema)
    except FedekdError as error:
        raise FedekdError(f"{error}; {remedy} and put it there") from None


def check_method(server: ServerSettings, where: str | Path) -> None:
    """Raise for a method or parameter that does not exist or sends nothing."""
    from fedekd import methods
    from fedekd.methods.base import exchanges

    try:
        method = methods.get(server.method, **server.parameters)
    except FedekdError as error:
        raise FedekdError(f"{where}: {error}") from None
    if not exchanges(method, server.rounds):
        raise FedekdError(
            f"{where}: {server.method} sends nothing, so there is nothing to federate; name another method"
        )
    if server.aggregation == "secure":
        from fedekd.flower.protocol import masking

        try:
            masking.refuse(method, server.method, server.rounds)
        except FedekdError as error:
            raise FedekdError(f"{where}: {error}") from None
    if method.public and server.public is None:
        raise FedekdError(f"{where}: {server.method} needs public rows; name a file of them as `public`")
