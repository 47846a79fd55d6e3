"""fedekd federation: a whole federation on one machine, to see it work."""

from __future__ import annotations

import argparse
from typing import Any

from fedekd.commands.parser import command, console


def add(commands: Any) -> None:
    federation = command(commands, "federation", None, "try a real federation on this machine")
    actions = federation.add_subparsers(title="commands", metavar="COMMAND")
    demo = command(
        actions, "demo", run_demo, "run a server and three sites on data that comes with fedekd, with TLS and node keys"
    )
    demo.add_argument("--method", default="fedekd", metavar="NAME", help="what to train (default: fedekd)")
    demo.add_argument("--rounds", type=int, default=3, metavar="N", help="communication rounds (default: 3)")
    demo.add_argument("--out", metavar="DIR", help="keep everything in this new folder (default: nothing is kept)")

    prepare = command(actions, "prepare", prepare_trial, "only make the folders of the demo's server and sites")
    prepare.add_argument("folder", metavar="DIR", help="a new folder; SITE and server are folders in it")
    prepare.add_argument("--address", required=True, metavar="HOST:PORT", help="where the sites will reach the server")
    prepare.add_argument("--method", default="fedekd", metavar="NAME", help="what to train (default: fedekd)")
    prepare.add_argument("--rounds", type=int, default=3, metavar="N", help="communication rounds (default: 3)")


def prepare_trial(given: argparse.Namespace) -> None:
    from pathlib import Path

    from fedekd.flower import need_flower
    from fedekd.flower.supervise.demo import DIGITS, prepare

    need_flower()
    folder = Path(given.folder).expanduser().absolute()
    server, sites = prepare(folder, {**DIGITS, "method": given.method, "rounds": given.rounds}, given.address)
    print(f"start with: fedekd server run {server}")
    for site in sites:
        print(f"start with: fedekd site run {site}")


def run_demo(given: argparse.Namespace) -> None:
    from fedekd.flower.supervise.demo import run_demo
    from fedekd.report.federation import print_report

    print_report(console(), run_demo(given.out, method=given.method, rounds=given.rounds))
