"""A federation of real processes on loopback, with TLS and node authentication, that trains on digits."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from loopback import Loopback
from village import parts, schema_of, simulate

from fedekd.flower.saved_state import SavedState
from fedekd.flower.settings import read_server, read_site
from fedekd.flower.supervise.processes import Child

SITE = (  # with less patience than is usual, for a quick end
    "import sys; from fedekd.flower.supervise import run_site; run_site.LOST = 20; "
    "run_site.run_site(sys.argv[1], app=sys.argv[2])"
)
SERVER = "import sys; from fedekd.flower.supervise.run_server import run_server; print(run_server(sys.argv[1]))"
OWN = "fedekd.flower.client_app:app"
SETTINGS = {"rounds": 2, "epochs": 2, "batch_size": 16, "lr": 3e-3, "proxy": "tiny:tiny_proxy"}


class Town(Loopback):
    """A server and sites that run fedekd's own app, with digits dealt out to them."""

    def __init__(self, folder: Path, digits, **settings) -> None:
        super().__init__(folder, 0, **{**SETTINGS, "min_sites": 3, "deadline": 240.0, "give_up": 600.0, **settings})
        self.apps: dict[str, str] = {}
        self.schema = schema_of(digits)
        self.schema.write(folder / "server" / "schema.json")
        self.parts = iter(parts(digits, 5))

    def site(self, name: str, app: str = OWN, **settings) -> None:
        self.apps[name] = app
        tiny = {"private": "tiny:tiny_private", "trusts": ["tiny:tiny_proxy"], "give_up": 300.0}
        self.add_site(name, **{"data": "rows.npz", **tiny, **settings})
        if part := next(self.parts, None):
            np.savez(self.folder / name / "rows.npz", x=part.x, y=part.y)

    def start(self, *names: str, **env: str) -> None:
        for name in names:
            server = name == "server"
            line = [SERVER, str(self.folder / name / "server.toml")] if server else [SITE, str(self.file(name))]
            line += [] if server else [self.apps[name]]
            out = self.folder / f"{name}.out"
            self.children.append(Child(name, [sys.executable, "-c", *line], out, {**os.environ, **env}))

    def file(self, name: str) -> Path:
        return self.folder / name / "site.toml"

    def log(self, name: str = "server") -> str:
        path = self.folder / name / "state" / "log"
        return path.read_text() if path.exists() else ""

    def finish(self, seconds: float) -> dict:
        self.wait(lambda: self.child("server").code is not None, seconds, "end")
        assert self.child("server").code == 0, self.told()
        return json.loads((self.state / "report.json").read_text())

    def saved(self, name: str) -> list[dict]:
        """What a site has on its disk: its newest state and the one before."""
        (folder,) = (f.parent for f in (self.folder / name / "state").glob("*/state.pt"))
        kept = SavedState(folder)
        newest, state = kept.load()
        return [state, kept.load(newest - 1)[1]]

    def equals_the_simulation(self, report: dict, *names: str) -> None:
        server = replace(read_server(self.folder / "server" / "server.toml"), private="tiny:tiny_private")
        engine = simulate(server, self.schema, [read_site(self.file(name)) for name in names])
        told = {site["name"]: site for site in report["sites"]}
        for client in engine.clients:
            ours = self.saved(client.name)[0]["client"]["models"]["private"]
            for name, weights in client.models["private"].state_dict().items():
                assert torch.allclose(ours[name], weights, atol=1e-5, rtol=0), (client.name, name)
            assert told[client.name]["value"] == pytest.approx(client.score(), abs=1e-6)
