"""fedekd site: prepare, check and run one site of a federation."""

from __future__ import annotations

import argparse
import os
from typing import Any

from fedekd.commands.parser import command
from fedekd.commands.status import add_status, show
from fedekd.errors import FedekdError


def add(commands: Any) -> None:
    site = command(commands, "site", None, "prepare, check and run one site of a real federation")
    actions = site.add_subparsers(title="commands", metavar="COMMAND")
    init = command(actions, "init", init_site, "make a site's folder: key, settings, systemd unit")
    init.add_argument("folder", metavar="DIR", help="a new or empty folder")
    init.add_argument("--name", required=True, metavar="NAME", help="the site's name, as others see it")
    init.add_argument("--server", required=True, metavar="HOST:PORT", help="the server's address")
    init.add_argument(
        "--data", required=True, metavar="PATH", help="the site's rows: a table, .npz, folder or dataset name"
    )
    init.add_argument("--target", metavar="COLUMN", help="column of a table to predict")
    init.add_argument("--group", metavar="COLUMN", help="column or array that says which patient each row is from")
    init.add_argument("--task", metavar="NAME", help="classification or regression, if the data does not tell")
    init.add_argument("--private", metavar="NAME", help="your own private model, package.module:function")
    init.add_argument("--ca", metavar="FILE", help="the server's ca.crt, if you have it already")
    init.add_argument("--port", type=int, metavar="N", help="a free port on this machine (default: 9094)")
    init.add_argument("--user", default="fedekd", metavar="NAME", help="user of the systemd unit (default: fedekd)")
    key = command(
        actions, "key", new_key, "make a new key, if the old one is lost or no longer valid (the old files are kept)"
    )
    key.add_argument("file", metavar="SITE.toml", help="as `fedekd site init` made it")
    check = command(actions, "check", check_site, "check data, model, key, certificate, connection and clock")
    check.add_argument("file", metavar="SITE.toml", help="as `fedekd site init` made it")
    check.add_argument(
        "--schema", metavar="FILE", help="the federation's schema: try data and model out as joining will"
    )
    schema = command(
        actions, "schema", write_schema, "describe the layout of the data, without rows, for all sites to agree on"
    )
    schema.add_argument("file", metavar="SITE.toml", help="as `fedekd site init` made it")
    schema.add_argument("--out", default="schema.json", metavar="FILE", help="the file to write (default: schema.json)")
    schema.add_argument(
        "--extend", metavar="FILE", help="add this site's categories and labels to another site's schema"
    )
    schema.add_argument(
        "--with-scaling", action="store_true",
        help="include this data's means and standard deviations, for all to scale by (default: each site uses its own)",
    )  # fmt: skip
    accept = command(actions, "accept", accept_offer, "agree to a schema, or to new terms")
    accept.add_argument("file", metavar="SITE.toml", help="as `fedekd site init` made it")
    accept.add_argument(
        "offer", nargs="?", metavar="FINGERPRINT", help="accept this offer (default: only show the last one)"
    )
    accept.add_argument("--schema", metavar="FILE", help="accept this schema, with the first terms that come with it")
    add_status(
        actions, show_status, "site", "show whether the site is connected, what left it, errors and certificates"
    )
    audit = command(
        actions, "audit", show_audit, "show what the site was asked and what left it, and verify the audit log"
    )
    audit.add_argument("file", metavar="SITE.toml", help="as `fedekd site init` made it")
    audit.add_argument("--json", action="store_true", help="the entries as they are kept, one JSON object per line")
    audit.add_argument("--expect", metavar="HASH", help="fail unless an entry has this hash, which you noted earlier")
    verify = command(actions, "verify", verify_result, "verify the server's signature of the final model and report")
    verify.add_argument("file", metavar="SITE.toml", help="as `fedekd site init` made it")
    verify.add_argument(
        "--report", metavar="FILE", help="the server's report.json, as its administrator gave it to you"
    )
    run = command(actions, "run", run_site, "join the federation and stay connected until it is over")
    run.add_argument("file", metavar="SITE.toml", help="as `fedekd site init` made it")


def init_site(given: argparse.Namespace) -> None:
    from fedekd.flower.setup import init

    settings = {name: getattr(given, name) for name in ("target", "group", "task", "private", "port")}
    for line in init.init_site(
        given.folder, given.name, given.server, given.data, ca=given.ca, user=given.user,
        settings={name: value for name, value in settings.items() if value is not None},
    ):  # fmt: skip
        print(line)


def new_key(given: argparse.Namespace) -> None:
    from fedekd.flower.settings import read_site
    from fedekd.flower.setup.keys import renew_node_key
    from fedekd.flower.site.audit import record

    site = read_site(given.file)
    public = renew_node_key(site.key)
    record(site.state, "key", public=public.read_text().strip())
    print(f"send {public} to the server's administrator, to replace the old one")


def check_site(given: argparse.Namespace) -> None:
    from fedekd.flower.setup import check

    wrong, unknown = 0, list[str]()
    for one in check.check_site(given.file, given.schema):
        print(f"{one.name:<12} {'ok: ' if one.state == 'ok' else 'WRONG: ' if one.state == 'wrong' else ''}{one.text}")
        wrong += one.state == "wrong"
        unknown += [one.name] if one.state == "unknown" else []
    if wrong:
        raise FedekdError(f"{wrong} of the checks failed; fix what they name and check again")
    print(f"nothing wrong was found; not checked: {', '.join(unknown)}" if unknown else "ready to join")


def write_schema(given: argparse.Namespace) -> None:
    from dataclasses import replace

    from fedekd.data import load_dataset
    from fedekd.flower.protocol.scaling import Scaling
    from fedekd.flower.protocol.schema import Schema, as_in_settings, categories_of
    from fedekd.flower.settings import read_site

    site = read_site(given.file)
    if given.extend:
        before = Schema.read(given.extend)
        dataset = before.read_rows(site.data, site.target, site.reading, site.group)
        schema = before.extended(dataset)
        new = [name for name in (*schema.columns, *schema.labels) if name not in (*before.columns, *before.labels)]
        print(f"added to {given.extend}: {', '.join(new) or 'nothing'}")
        if given.with_scaling:
            schema = replace(schema, scaling=Scaling.of(schema.fit(dataset)))
    else:
        try:
            dataset = load_dataset(
                site.data, target=site.target, task=site.task, reading=site.reading, group=site.group
            )
        except FedekdError as error:
            as_in_settings(error)
        schema = Schema.of(dataset, Scaling.of(dataset) if given.with_scaling else Scaling.public(dataset))
    schema.write(given.out)
    if schema.labels:
        print(f"it shows the labels: {', '.join(schema.labels)}")
    for column, texts in categories_of(schema.columns).items():
        print(f"it shows the categories of column {column!r}: {', '.join(texts)}")
    if given.with_scaling and Scaling.public(dataset).own:
        print(f"it shows everyone the means and deviations of this site's {len(dataset.y)} rows")
    else:
        print("it holds no statistics of this site's rows")
    print(f"read {given.out}, then send it to the server's administrator")


def accept_offer(given: argparse.Namespace) -> None:
    from fedekd.flower.protocol.schema import Schema
    from fedekd.flower.settings import read_site
    from fedekd.flower.site.pins import Pins

    if given.offer and given.schema:
        raise FedekdError("accept an offer by its fingerprint, or a schema with --schema FILE, one at a time")
    state = read_site(given.file).state
    if state.exists() and state.stat().st_uid != os.getuid():
        raise FedekdError(f"{state} belongs to another user, who runs the site; run this as that one")
    pins = Pins(state)
    if given.schema:
        pins.accept_schema(Schema.read(given.schema))
        print(f"accepted: the schema {given.schema}, with the first terms that the server offers for it")
    elif given.offer:
        accepted = pins.accept(given.offer).fingerprint
        print(f"accepted: {accepted}; a site that runs connects again by itself, so that the server asks again")
    else:
        if count := pins.look_again():
            print(f"joins refused recently: {count}; new ones are considered again from now on")
        if (offer := pins.offered()) is None:
            print("there is no offer to accept")
            return
        print("the last offer that was refused:", *offer.lines(), sep="\n  ")
        print("what differs from what this site agreed to:", *pins.changes(), sep="\n  ")
        print(f"accept it with: fedekd site accept {given.file} {offer.fingerprint}")


def show_status(given: argparse.Namespace) -> None:
    from html import escape

    from fedekd.flower.supervise.status import site_status
    from fedekd.report.monitoring import lines

    def page() -> str:
        text = escape("\n".join(lines(site_status(given.file))))
        return f'<!doctype html><meta charset="utf-8"><title>fedekd site</title><pre>{text}</pre>\n'

    show(given, lambda: site_status(given.file), page)


def show_audit(given: argparse.Namespace) -> None:
    import json

    from fedekd.flower.settings import read_site
    from fedekd.flower.site.audit import AUDIT, read_audit, told

    state, hashes = read_site(given.file).state, list[str]()
    for entry in read_audit(state):
        print(json.dumps(entry) if given.json else told(entry))
        hashes.append(entry["hash"])
    if given.expect and given.expect not in hashes:
        raise FedekdError(f"no entry of {state / AUDIT} has the hash {given.expect}: entries were cut off, or replaced")
    if not given.json:
        print(f"{len(hashes)} entries, none changed or missing in between; the last is {hashes[-1]}")


def verify_result(given: argparse.Namespace) -> None:
    import hashlib
    from pathlib import Path

    from fedekd.flower.settings import read_site
    from fedekd.flower.setup.folders import check_readable
    from fedekd.flower.setup.keys import read_bytes
    from fedekd.flower.setup.signing import SignedStatement
    from fedekd.flower.site.results import compared, verified
    from fedekd.runs.federation_report import SIGNED

    site, report = read_site(given.file), Path(given.report) if given.report else None
    check_readable(site.state)
    found = sorted(site.state.glob(f"*/{SIGNED}"))
    if not found:
        raise FedekdError(
            f"{site.state} holds no result signed by the server; there is one when a federation is complete"
        )
    content, reports = read_bytes(report) if report else b"", dict[str, str]()
    for path in found:
        statement = verified(site, path.parent, SignedStatement.read(path))
        print(f"federation {path.parent.name}: {statement['rounds']} rounds of {statement['method']}, signed on "
              f"{statement['time']} by the server {site.server}")  # fmt: skip
        for line in compared(path.parent, statement):
            print(f"  {line}")
        reports[statement["report"]] = path.parent.name
    if report:
        own = hashlib.sha256(content).hexdigest()
        if own not in reports:
            raise FedekdError(
                f"{report} is not the report that the server had signed when it told this site of the end"
            )
        print(f"{report} is the report of federation {reports[own]} that the server has signed")


def run_site(given: argparse.Namespace) -> None:
    from fedekd.flower.supervise import run_site

    run_site.run_site(given.file)
