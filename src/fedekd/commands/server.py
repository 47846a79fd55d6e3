"""fedekd server: prepare and run the server of a federation."""

from __future__ import annotations

import argparse
from typing import Any

from fedekd.commands.parser import command, console
from fedekd.commands.status import add_status, show
from fedekd.errors import FedekdError

CERTIFICATES = ("ca", "certificate", "key")


def add(commands: Any) -> None:
    server = command(commands, "server", None, "prepare and run the server of a real federation")
    actions = server.add_subparsers(title="commands", metavar="COMMAND")
    init = command(actions, "init", init_server, "make a server's folder: certificates, settings, systemd unit")
    init.add_argument("folder", metavar="DIR", help="a new or empty folder")
    init.add_argument("--address", required=True, metavar="HOST:PORT", help="the address that sites will use")
    init.add_argument("--ca", metavar="FILE", help="your authority's certificate (default: make one, for trials)")
    init.add_argument("--certificate", metavar="FILE", help="your own certificate for the address")
    init.add_argument("--key", metavar="FILE", help="its private key")
    init.add_argument("--method", metavar="NAME", help="what to train (default: fedekd)")
    init.add_argument("--rounds", type=int, metavar="N", help="communication rounds (default: 10)")
    init.add_argument("--min-sites", type=int, metavar="N", help="sites that a round needs (default: 2)")
    init.add_argument("--user", default="fedekd", metavar="NAME", help="user of the systemd unit (default: fedekd)")
    run = command(actions, "run", run_server, "run the federation to its end and print the report")
    run.add_argument("file", metavar="SERVER.toml", help="as `fedekd server init` made it")
    renew = command(actions, "renew", renew_certificate, "renew the server's certificate before it expires")
    renew.add_argument("file", metavar="SERVER.toml", help="as `fedekd server init` made it")
    renew.add_argument("--ca-key", metavar="FILE", help="the authority's key (default: ca.key next to its certificate)")
    renew.add_argument(
        "--authority", action="store_true", help="renew the authority's certificate as well; give every site a copy"
    )
    add_status(actions, show_status, "server", "show how far the federation is: rounds, sites, lateness, bytes, errors")
    finish = command(actions, "finish", finish_server, "give sites that were away at the end their model and verdict")
    finish.add_argument("file", metavar="SERVER.toml", help="as `fedekd server init` made it")
    finish.add_argument(
        "--wait", type=float, default=86_400.0, metavar="SECONDS", help="how long to wait for them (default: a day)"
    )


def init_server(given: argparse.Namespace) -> None:
    own = [getattr(given, name) for name in CERTIFICATES]
    if any(own) and not all(own):
        raise FedekdError("your own certificate needs all three of --ca, --certificate and --key")
    from fedekd.flower.setup import init

    settings = {name: getattr(given, name) for name in ("method", "rounds", "min_sites")}
    for line in init.init_server(
        given.folder, given.address, certificates=(own[0], own[1], own[2]) if all(own) else None, user=given.user,
        settings={name: value for name, value in settings.items() if value is not None},
    ):  # fmt: skip
        print(line)


def renew_certificate(given: argparse.Namespace) -> None:
    from fedekd.flower.setup import renewal

    for line in renewal.renew_certificate(given.file, given.ca_key, authority=given.authority):
        print(line)


def finish_server(given: argparse.Namespace) -> None:
    if not 0 < given.wait < 1e9:
        raise FedekdError(f"--wait must be a number of seconds > 0, got {given.wait:g}")
    from fedekd.flower.supervise import run_server
    from fedekd.report.federation import print_report

    print_report(console(), run_server.run_server(given.file, finish=given.wait))


def show_status(given: argparse.Namespace) -> None:
    from fedekd.flower.settings import read_server
    from fedekd.flower.supervise.processes import is_held
    from fedekd.flower.supervise.status import server_status
    from fedekd.report.page import federation_text

    def page() -> str:
        state = read_server(given.file).state
        return federation_text(state, running=is_held(state))

    show(given, lambda: server_status(given.file), page)


def run_server(given: argparse.Namespace) -> None:
    from fedekd.flower.supervise import run_server
    from fedekd.report.federation import print_report

    print_report(console(), run_server.run_server(given.file))
