"""A federation of real processes on this machine, for the tests: supervisors that run the relay app."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedekd.data import load_dataset
from fedekd.flower.protocol.schema import Schema
from fedekd.flower.setup.init import init_server, init_site
from fedekd.flower.supervise.processes import Child, free_port

SITE = "import sys; from fedekd.flower.supervise.run_site import run_site; run_site(sys.argv[1], app='relay:app')"
SERVER = (
    "import sys; from fedekd.flower.supervise.run_server import run_server; "
    "print(run_server(sys.argv[1], server_app='relay:server', client_app='nowhere:app'))"
)


class Loopback:
    """Folders of a server and of ``sites``; nothing runs until it is started."""

    def __init__(self, folder: Path, sites: int, **settings: Any) -> None:
        self.folder, self.children = folder, list[Child]()
        self.address = f"localhost:{free_port()}"
        here = {"listen": "127.0.0.1", "deadline": 120.0, "give_up": 400.0, "min_sites": sites}
        init_server(folder / "server", self.address, settings={**here, **settings})
        self.state = folder / "server" / "state"
        np.savez(folder / "rows.npz", x=np.zeros((6, 2), np.float32), y=np.arange(6) % 2)
        Schema.of(load_dataset(folder / "rows.npz")).write(folder / "server" / "schema.json")
        for number in range(sites):
            self.add_site(f"site{number}")

    def add_site(self, name: str, *, known: bool = True, ca: Path | None = None, **settings: Any) -> None:
        ca = ca or self.folder / "server" / "certificates" / "ca.crt"
        own = {"port": free_port(), "threads": 1, "give_up": 400.0, **settings}
        init_site(self.folder / name, name, self.address, str(self.folder / "rows.npz"), ca=str(ca), settings=own)
        if known:
            shutil.copy(self.folder / name / "keys" / f"{name}.pub", self.folder / "server" / "nodes")

    def start(self, *names: str, **env: str) -> None:
        for name in names:
            code, file = (SERVER, "server.toml") if name == "server" else (SITE, "site.toml")
            self.children.append(
                Child(
                    name,
                    [sys.executable, "-c", code, str(self.folder / name / file)],
                    self.folder / f"{name}.out",
                    {**os.environ, **env},
                )
            )

    def child(self, name: str) -> Child:
        return next(child for child in reversed(self.children) if child.name == name)

    def visits(self, name: str) -> list[str]:
        path = self.folder / name / "state" / "visits"
        return path.read_text().splitlines() if path.exists() else []

    def errors(self) -> list[str]:
        """What sites whose app raised told the server of it."""
        path = self.state / "errors"
        return path.read_text().splitlines() if path.exists() else []

    def rounds(self) -> int:
        return len(list((self.state / "rounds").glob("*.npy")))

    def wait(self, condition: Callable[[], Any], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"no {what} within {seconds} s\n{self.told()}")
            time.sleep(0.2)

    def told(self) -> str:
        return "\n".join(f"--- {child.name}\n" + "\n".join(child.lines()[-30:]) for child in self.children)

    def processes(self, name: str = "", containing: str = "") -> list[int]:
        """Flower's processes of this federation (of one of its members), by their environment and command."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environ, command = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
            except OSError:
                continue
            mark = f"FLWR_HOME={self.folder / name}/" if name else f"FLWR_HOME={self.folder}/"
            if mark.encode() in environ and containing.encode() in command:
                found.append(int(folder.name))
        return found

    def kill(self, name: str, containing: str, with_signal: int = signal.SIGKILL) -> None:
        victims = self.processes(name, containing)
        assert victims, f"{name} has no {containing}\n{self.told()}"
        for pid in victims:
            os.kill(pid, with_signal)

    def stop(self) -> None:
        """By force, as Flower takes five seconds to end on request. What they have started ends with them."""
        for child in self.children:
            child.reap()
        self.wait(lambda: not self.processes(), 60, "end of all processes")
