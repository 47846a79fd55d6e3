"""The whole thing as real processes on loopback: SuperLink and SuperNodes with TLS and node authentication.

Each run costs a minute or so, so each shows several things at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from loopback import Loopback
from recorder import Recorder
from village import parts, schema_of, simulate

from fedekd.flower.processes import Child
from fedekd.flower.saved_state import SavedState
from fedekd.flower.schema import Schema
from fedekd.flower.server_file import read_server
from fedekd.flower.site_file import read_site

HERE = Path(__file__).parent
SITE = (  # with less patience than is usual, for a quick end
    "import sys; from fedekd.flower import run_site; run_site.LOST, run_site.STAY = 20, 5; "
    "run_site.run_site(sys.argv[1], app=sys.argv[2])"
)
SERVER = "import sys; from fedekd.flower.run_server import run_server; print(run_server(sys.argv[1]))"
OWN = "fedekd.flower.client_app:app"
SETTINGS = {"rounds": 2, "epochs": 2, "batch_size": 16, "lr": 3e-3, "proxy": "tiny:tiny_proxy"}
HONEST = ("north", "south", "west")


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

    def equals_the_simulation(self, report: dict) -> None:
        server = replace(read_server(self.folder / "server" / "server.toml"), private="tiny:tiny_private")
        engine = simulate(server, self.schema, [read_site(self.file(name)) for name in HONEST])
        told = {site["name"]: site for site in report["sites"]}
        for client in engine.clients:
            ours = self.saved(client.name)[0]["client"]["models"]["private"]
            for name, weights in client.models["private"].state_dict().items():
                assert torch.allclose(ours[name], weights, atol=1e-5, rtol=0), (client.name, name)
            assert told[client.name]["value"] == pytest.approx(client.score(), abs=1e-6)


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits) -> Iterator[Callable[..., Town]]:
    paths = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made: list[Town] = []

    def make(**settings) -> Town:
        made.append(Town(tmp_path, digits, **settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()
        assert one.processes() == []


def test_a_federation_with_bad_neighbours(town) -> None:
    """Three honest sites, one with NaN, one with wrong shapes, one with corrupt data; two of them are listened to."""
    here = town()
    port = int(here.address.rpartition(":")[2])
    ears = {name: Recorder(here.folder / "server", port) for name in ("north", "z-corrupt")}
    for name in HONEST:
        here.site(name, **({"server": f"localhost:{ears[name].port}"} if name in ears else {}))
    here.site("x-nan", "evil:nan")
    here.site("y-shape", "evil:shape")
    here.site("z-corrupt", server=f"localhost:{ears['z-corrupt'].port}")
    (here.folder / "z-corrupt" / "rows.npz").write_bytes(b"PK\x03\x04 no archive at all")
    here.start("server", *HONEST, "x-nan", "y-shape", "z-corrupt")
    report = here.finish(300)

    assert report["complete"]
    assert report["counted"][:2] == [list(HONEST)] * 2
    assert sorted({(r["site"], r["reason"].split()[1]) for r in report["refused"]}) == [
        ("x-nan", "has"),
        ("y-shape", "has"),
    ]
    assert "x-nan does not count: body.0.weight has NaN or infinite numbers" in here.log()
    assert "y-shape does not count: body.0.weight has shape" in here.log()
    assert "z-corrupt cannot join: its data cannot be read or does not fit the schema" in here.log()
    here.equals_the_simulation(report)
    only_what_is_declared_leaves(here, ears["north"].up)

    assert "rows.npz" in here.log("z-corrupt"), "the site itself is told what is wrong"
    for text in (b"rows.npz", b"archive", b"Traceback", b"Error", b"numpy.savez", str(here.folder).encode()):
        assert text not in ears["z-corrupt"].up
        assert text not in ears["north"].up
    assert b"z-corrupt" in ears["z-corrupt"].up, "its name did leave, so the ear was at the right door"

    here.wait(lambda: here.child("south").code is not None, 90, "end of a site after the server's")
    (own,) = (here.folder / "south" / "state").glob("*/report.json")
    assert here.child("south").code == 0, here.told()
    assert f"federation {own.parent.name} is complete, its report is {own}" in here.child("south").lines()[-1]
    assert here.child("z-corrupt").code is None, "it has seen no federation's end"


def only_what_is_declared_leaves(here: Town, sent: bytes) -> None:
    """The proxy is in what north sent; its private model, its baseline, its rows and its labels are not."""
    states = here.saved("north")
    reply = states[1]["reply"]["models"]["proxy"]["arrays"]
    for array in reply.values():
        assert array.numpy().tobytes() in sent, "the recorder does see what leaves"
    for state in states:
        for part in ("client", "local"):
            for name, weights in state[part]["models"]["private"].items():
                assert not traces(weights.numpy(), sent), f"{part} {name}"
    site = read_site(here.file("north"))
    data = Schema.read(here.folder / "server" / "schema.json").load(site.data)
    for image in data.x:
        assert image.tobytes() not in sent
        assert image.astype(np.float32).tobytes() not in sent
        assert (image.astype(np.float32) * np.float32(2 / 16) - 1).tobytes() not in sent
    for kind in (np.int64, np.int32, np.uint8, np.float32):
        assert not traces(data.y.astype(kind), sent, least=24)


def traces(array: np.ndarray, sent: bytes, least: int = 16) -> bool:
    """Whether any aligned stretch of an array, of at least so many bytes, is in what was sent."""
    raw = np.ascontiguousarray(array).tobytes()
    stretches = {raw[k : k + least] for k in range(0, max(1, len(raw) - least + 1), least)}
    return any(one in sent for one in stretches if len(set(one)) > 4 and len(one) == least)


def test_kills_cost_no_finished_round(town) -> None:
    """A site with all its processes and the SuperLink are killed in one visit; the same commands go on to the end."""
    here = town()
    for name in HONEST:
        here.site(name)
    here.start("server", *HONEST)
    here.wait(lambda: "visit 1 of 3" in here.log(), 150, "first visit")
    here.kill("south", "")
    here.child("south").process.kill()
    here.kill("server", "fedekd.flower.superlink")
    here.wait(lambda: here.child("south").code is not None, 20, "end of a killed site")
    here.start("south")
    report = here.finish(420)
    assert report["complete"]
    assert report["counted"] == [list(HONEST)] * 3
    assert "going on after" in here.log()
    here.equals_the_simulation(report)
