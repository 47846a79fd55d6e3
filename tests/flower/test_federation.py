"""The whole thing as real processes on loopback: SuperLink and SuperNodes with TLS and node authentication.

Each run costs a minute or so, so each shows several things at once.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from recorder import Recorder

from fedekd.flower.protocol.schema import Schema
from fedekd.flower.settings import read_site
from fedekd.flower.site.audit import read_audit
from fedekd.flower.supervise.status import server_status, site_status
from fedekd.report.page import federation_text
from fedekd.runs.plan import SMOOTH

if TYPE_CHECKING:
    from town import Town

HONEST = ("north", "south")


def test_a_federation_with_bad_neighbours(town) -> None:
    """Two honest sites, one with NaN and one with corrupt data; two of them are listened to."""
    here = town(min_sites=2)
    port = int(here.address.rpartition(":")[2])
    ears = {name: Recorder(here.folder / "server", port) for name in ("north", "z-corrupt")}
    for name in HONEST:
        listened = {"server": f"localhost:{ears[name].port}"} if name in ears else {"alone": "plain"}
        here.site(name, **listened)
    here.site("x-nan", "evil:nan")
    here.site("z-corrupt", server=f"localhost:{ears['z-corrupt'].port}")
    (here.folder / "z-corrupt" / "rows.npz").write_bytes(b"PK\x03\x04 no archive at all")
    here.start("server", *HONEST, "x-nan", "z-corrupt")
    report = here.finish(300)

    assert report["complete"]
    assert report["counted"][:2] == [list(HONEST)] * 2
    assert {r["site"] for r in report["refused"]} == {"x-nan"}
    assert "x-nan does not count: body.0.weight has NaN or infinite numbers" in here.log()
    assert "z-corrupt cannot join: it refuses; its own log says why" in here.log()
    here.equals_the_simulation(report, *HONEST)
    only_what_is_declared_leaves(here, ears["north"].up)
    entries = [one for one in read_audit(here.folder / "north" / "state") if one["event"] == "visit"]
    assert [[sent["name"] for sent in one["left"]["exchanged"]] for one in entries] == [["proxy"], ["proxy"], []]

    assert "rows.npz" in here.log("z-corrupt"), "the site itself is told what is wrong"
    for text in (b"rows.npz", b"archive", b"Traceback", b"Error", b"numpy.savez", str(here.folder).encode()):
        assert text not in ears["z-corrupt"].up
        assert text not in ears["north"].up
    assert b"z-corrupt" in ears["z-corrupt"].up, "its name did leave, so the ear was at the right door"

    here.wait(lambda: here.child("south").code is not None, 90, "end of a site after the server's")
    (own,) = (here.folder / "south" / "state").glob("*/report.json")
    assert here.child("south").code == 0, here.told()
    assert f"federation {own.parent.name} is complete; see {own}" in "\n".join(here.child("south").lines())
    assert "the server has signed the result" in here.log("south")
    assert "is the one that this site holds" in here.log("south")
    assert any("rows.npz" in line for line in here.child("z-corrupt").lines()), "its administrator is told why"
    assert here.child("z-corrupt").code is None, "it has seen no federation's end"


def only_what_is_declared_leaves(here: Town, sent: bytes) -> None:
    """The proxy is in what north sent; its private model, its baseline, its rows and its labels are not."""
    states = here.saved("north")
    reply = states[1]["reply"]["models"]["proxy"]["arrays"]
    for array in reply.values():
        assert array.numpy().tobytes() in sent, "the recorder does see what leaves"
    for state in states:
        alone = {label: kept["engine"]["clients"][0] for label, kept in state["alone"].items()}
        assert set(alone) == {"local", *SMOOTH, "fedekd@alone"}
        for part, client in {"client": state["client"], **alone}.items():
            for name, weights in client["models"]["private"].items():
                assert not traces(weights.numpy(), sent), f"{part} {name}"
    site = read_site(here.file("north"))
    data = Schema.read(here.folder / "server" / "schema.json").load(site.data)
    for image in data.x:
        assert image.tobytes() not in sent
        assert image.astype(np.float32).tobytes() not in sent
        assert (image.astype(np.float32) * np.float32(2 / 16) - 1).tobytes() not in sent
    for kind in (np.int64, np.int32, np.uint8, np.float32):
        labels = data.y.astype(kind)
        assert not traces(labels, sent, least=24)
        assert traces(labels, b"before" + labels.tobytes() + b"after", least=24), "they would be found"


def traces(array: np.ndarray, sent: bytes, least: int = 4) -> bool:
    """Whether any stretch of so many numbers of an array, not nearly all of them equal, is in what was sent."""
    flat = np.ascontiguousarray(array).ravel()
    stretches = (flat[k : k + least] for k in range(0, len(flat) - least + 1, least))
    return any(one.tobytes() in sent for one in stretches if len(np.unique(one)) >= 4)


def test_kills_cost_no_finished_round(town) -> None:
    """A site with all its processes and the SuperLink are killed in one visit; the same commands go on to the end."""
    here, names, visits = town(min_sites=2, rounds=5), ["north", "south"], 6
    for name in names:
        here.site(name, alone="plain")
    here.start("server", *names)
    here.wait(lambda: f"visit 1 of {visits}" in here.log(), 150, "first visit")
    here.kill("south", "", signal.SIGSTOP)  # so that the visits do not end before all is killed
    told = server_status(here.folder / "server" / "server.toml")
    assert (told["running"], told["complete"], told["problems"]) == (True, False, [])
    assert f"of {visits} visits are done" in federation_text(here.state)
    told = site_status(here.file("north"))
    assert (told["running"], told["connected"], told["problems"]) == (True, True, [])
    here.kill("south", "")
    here.child("south").process.kill()
    here.kill("server", "launch\0superlink")
    here.wait(lambda: here.child("south").code is not None, 20, "end of a killed site")
    here.start("south")
    report = here.finish(420)
    assert report["complete"]
    assert report["counted"] == [names] * visits
    assert "going on after" in here.log()
    told = server_status(here.folder / "server" / "server.toml")
    assert (told["running"], told["complete"], told["federation"]["done"]) == (False, True, visits)
    assert {one["counted"] for one in told["federation"]["sites"].values()} == {visits}
    here.equals_the_simulation(report, *names)
