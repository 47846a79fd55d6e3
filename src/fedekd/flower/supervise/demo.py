"""``fedekd federation demo``: a server and three sites on this machine, as processes of their own, on digits."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedekd.errors import FedekdError
from fedekd.flower import need_flower
from fedekd.flower.settings import read_server
from fedekd.flower.setup.init import init_server, init_site
from fedekd.flower.supervise.processes import Child, command, free_port, say, stopping
from fedekd.runs.federation_report import FederationReport, read_report
from fedekd.units import count

SITES = ("north", "south", "west")
LIMIT = 1800.0  # seconds for all of it
DIGITS = {"epochs": 2, "batch_size": 32, "lr": 1e-3}
ALPHA = 0.5
ECHO = 2.0  # seconds until a site has said itself what the server says of it


def run_demo(out: str | Path | None = None, *, method: str = "fedekd", rounds: int = 3) -> FederationReport:
    """Start everything, wait for the report, stop everything. Without ``out`` nothing stays on disk."""
    need_flower()
    folder = Path(out).expanduser().absolute() if out else Path(tempfile.mkdtemp(prefix="fedekd-demo-"))
    children: list[Child] = []
    try:
        server, sites = prepare(folder, {**DIGITS, "method": method, "rounds": rounds})
        kept = "" if out else ", which is removed in the end; --out DIR keeps all"
        say(f"three sites with TLS and node keys, {count(rounds, 'round')} of {method}, in {folder}{kept}")
        with stopping(children):
            children.append(Child("server", command("fedekd", "server", "run", str(server)), folder / "server.out"))
            for site in sites:
                children.append(Child(site.parent.name, command("fedekd", "site", "run", str(site)), _out(site)))
            wait_for_server(children, say)
        report = read_report(server.parent / "state")
        if report is None:
            raise FedekdError(f"the server left no report; see {folder / 'server.out'}")
        return report
    finally:
        if not out:
            shutil.rmtree(folder, ignore_errors=True)


def prepare(folder: Path, settings: dict[str, Any], address: str = "") -> tuple[Path, list[Path]]:
    """The folders of a server and its sites, with digits dealt out to the sites; returns their settings files.

    Without ``address`` (host:port of the server) all of them are to run on this machine.
    """
    from fedekd import methods
    from fedekd.data import load_dataset
    from fedekd.flower.protocol.schema import Schema
    from fedekd.methods.base import exchanges

    server, apart, address = folder / "server", bool(address), address or f"localhost:{free_port()}"
    here = {"listen": "0.0.0.0" if apart else "127.0.0.1", "min_sites": len(SITES), "deadline": 300.0, "give_up": 900.0}
    init_server(server, address, settings={**here, **settings})
    x, y, parts = deal_digits(len(SITES))
    np.savez(folder / "digits.npz", x=x, y=y)
    Schema.of(load_dataset(folder / "digits.npz")).write(server / "schema.json")
    asked = read_server(server / "server.toml")
    leave = sorted(exchanges(methods.get(asked.method, **asked.parameters), asked.rounds))  # what it has sites send
    files = []
    for name, rows in zip(SITES, parts, strict=True):
        own = {
            "data": "digits.npz",
            "threads": 1,
            "give_up": 300.0,
            "leave": leave,
            **({} if apart else {"port": free_port()}),
        }
        init_site(folder / name, name, address, "digits", ca=str(server / "certificates" / "ca.crt"), settings=own)
        np.savez(folder / name / "digits.npz", x=x[rows], y=y[rows])
        shutil.copy(folder / name / "keys" / f"{name}.pub", server / "nodes")
        files.append(folder / name / "site.toml")
    return server / "server.toml", files


def deal_digits(sites: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """All images and labels, and each site's rows: unlike in number and in what digits they show."""
    from fedekd.data import load_dataset
    from fedekd.data.partition import dirichlet

    data = load_dataset("digits")
    x = np.round(data.x[:, 0] * (255 / 16)).astype(np.uint8)
    return x, data.y, dirichlet(data.y, sites, ALPHA, np.random.default_rng(0), min_samples=100)


def wait_for_server(children: list[Child], say: Callable[[str], None]) -> None:
    """Until the server ends; its lines are said as they come."""
    server, sites = children[0], children[1:]
    end = time.monotonic() + LIMIT
    told = 0
    while True:
        code = server.code
        lines = server.lines()
        for line in lines[told:] if code != 0 else []:
            if line[:2].isdigit():
                say(line.partition(" ")[2])
        refused = [line.split()[1] for line in lines[told:] if " cannot join: " in line]
        told = len(lines)
        if code is not None:
            break
        for site in sites:
            if site.name in refused:
                time.sleep(ECHO)
                raise FedekdError(
                    site.lines()[-1].partition(" ")[2] if site.lines() else f"site {site.name} cannot join"
                )
        for site in sites:
            if site.code:  # one that ends well has seen the SuperLink end, just before the server itself does
                raise FedekdError(f"site {site.name} ended: {(site.lines() or ['no output'])[-1]}")
        if time.monotonic() > end:
            raise FedekdError(f"the demo is not done after {LIMIT:.0f} s, given up; --out DIR keeps its logs")
        time.sleep(0.5)
    if code != 0:
        raise FedekdError((lines or [f"the server ended with status {code}"])[-1].removeprefix("fedekd: "))


def _out(site: Path) -> Path:
    return site.with_name("site.out")
