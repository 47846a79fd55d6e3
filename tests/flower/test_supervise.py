"""Real SuperLinks and SuperNodes on loopback with TLS and node authentication: who gets in, and what a kill does."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from loopback import Loopback

from fedekd.errors import FedekdError
from fedekd.flower.setup.certificates import make_authority
from fedekd.flower.setup.keys import renew_node_key
from fedekd.flower.supervise.run_server import run_server
from fedekd.flower.supervise.run_site import run_site
from time_limit import in_time

HERE = Path(__file__).parent
Make = Callable[..., Loopback]


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    source = HERE.parents[1] / "src"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(source), os.environ.get("PYTHONPATH", "")]))
    made: list[Loopback] = []

    def make(sites: int, **settings: Any) -> Loopback:
        made.append(Loopback(tmp_path, sites, **settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()
        assert one.processes() == []


def test_a_federation_runs_to_its_end_and_strangers_stay_outside(federation: Make, tmp_path: Path) -> None:
    here = federation(2, rounds=2)
    here.add_site("unknown", known=False)
    here.add_site("fooled", ca=make_authority(tmp_path / "other")[0])
    here.start("server", "site0", "site1", "unknown", "fooled")
    refusals = {"unknown": "does not let this site in", "fooled": "not signed by this site's `ca`"}
    for name, words in refusals.items():
        here.wait(lambda n=name, w=words: any(w in line for line in here.child(n).lines()), 150, f"word from {name}")
        here.child(name).reap()  # else it would start one SuperNode after another

    here.wait(lambda: here.child("server").code is not None, 200, "end")
    assert here.child("server").code == 0, here.told()
    assert "complete=True" in here.child("server").lines()[-1]
    np.testing.assert_array_equal(np.load(here.state / "rounds" / "0002.npy"), [2, 2, 2])

    for name in ("site0", "site1"):
        children, parents = zip(*(line.split() for line in here.visits(name)), strict=True)
        assert len(set(children)) == 2  # a process for each message
        assert len(set(parents)) == 1  # from one that has everything imported
        mine = [path for path in (here.folder / name / "state").rglob("*") if path.is_file()]
        assert mine
        assert not [path for path in mine if path.stat().st_mode & 0o077], "others can read it"
    assert not here.visits("unknown")
    assert not here.visits("fooled")

    for name in ("site0", "site1"):
        os.kill(here.child(name).process.pid, signal.SIGTERM)  # the supervisor alone, not its group
    here.wait(lambda: not here.processes(), 30, "end of all sites")

    here.start("server")  # again: nothing is left to do
    here.wait(lambda: here.child("server").code is not None, 60, "second end")
    assert "complete already" in here.child("server").lines()[0]


def test_what_is_killed_comes_back_and_no_finished_round_is_lost(federation: Make) -> None:
    """One federation for all kills: Flower keeps a killed SuperNode out for a while, in which the rest happens."""
    here = federation(2, rounds=100, min_sites=1, deadline=30.0)
    here.start("server", "site0", "site1")
    here.wait(lambda: here.visits("site0") and here.visits("site1"), 150, "visits")
    here.kill("site0", "launch\0supernode")
    before, rounds = len(here.visits("site0")), here.rounds()
    here.wait(lambda: here.rounds() > rounds, 150, "round without the killed site")

    (here.folder / "site1" / "state" / "fail").touch()
    here.wait(here.errors, 150, "error of an app")
    (here.folder / "site1" / "state" / "fail").unlink()
    assert set(here.errors()) == {"None"}, "that something failed leaves, not what"

    here.kill("site1", "fedekd.flower.supervise.executor")
    visits = len(here.visits("site1"))
    here.wait(lambda: len(here.visits("site1")) > visits, 150, "visit after the executor's death")

    here.kill("server", "launch\0superlink")
    rounds = here.rounds()
    here.wait(lambda: here.rounds() > rounds, 150, "round after the SuperLink's death")
    assert any("starting again" in line for line in here.child("server").lines())

    here.wait(lambda: len(here.visits("site0")) > before, 150, "visit after the SuperNode's death")
    assert sum("connected" in line for line in here.child("site0").lines()) >= 2, here.told()

    assert len(here.processes()) >= 7
    for child in here.children:
        os.kill(child.process.pid, signal.SIGKILL)  # the supervisor alone, not its group
    here.wait(lambda: not here.processes(), 60, "end of all processes with their supervisors")
    told = (here.state / "log").read_text().splitlines()
    assert told == [f"round {n} of 100" for n in range(1, len(told) + 1)]  # each once, in order


def test_a_key_that_was_taken_out_and_put_back_stops_nobody_else(federation: Make) -> None:
    here = federation(2, rounds=1000, min_sites=1, deadline=30.0)
    here.start("server", "site0", "site1")
    here.wait(lambda: here.visits("site0") and here.visits("site1"), 150, "visits")
    public, nodes = here.folder / "site1" / "keys" / "site1.pub", here.folder / "server" / "nodes"

    def told(text: str) -> int:
        return sum(text in line for line in here.child("server").lines())

    (nodes / "site1.pub").unlink()
    here.wait(lambda: told("site1 may no longer join"), 60, "word that it may not join")
    shutil.copy(public, nodes)
    (nodes / "rubbish.pub").write_text("ecdsa-sha2-nistp384 AAAA")
    here.wait(lambda: told("site1 needs a new key") and told("rubbish.pub is not"), 60, "word of both keys")
    rounds = here.rounds()
    here.wait(lambda: here.rounds() > rounds + 1, 150, "rounds without it")

    visits = len(here.visits("site1"))
    shutil.copy(renew_node_key(public.with_suffix("")), nodes)
    here.wait(lambda: len(here.visits("site1")) > visits, 150, "visit with the new key")
    assert (told("site1 needs a new key"), told("rubbish.pub")) == (1, 1), here.told()
    assert not told("starting again"), here.told()

    shutil.copy(public.with_suffix(".pub.old"), nodes / "again.pub")
    (nodes / "rubbish.pub").unlink()
    os.kill(here.child("server").process.pid, signal.SIGTERM)
    here.wait(lambda: here.child("server").code is not None, 60, "end of the server")
    rounds = here.rounds()
    here.start("server")
    here.wait(lambda: here.rounds() > rounds, 150, "round after the restart")
    assert told("site again needs a new key") == 1, here.told()


# In this process: no part of what follows is about a process of one's own, whose imports take a second.


def serve(here: Loopback, app: str = "server") -> None:
    with in_time(150):
        run_server(here.folder / "server" / "server.toml", server_app=f"relay:{app}", client_app="nowhere:app")


def test_a_site_gives_up_in_the_end(federation: Make) -> None:
    here = federation(0, min_sites=1)
    here.add_site("lonely", give_up=4.0)
    with in_time(60), pytest.raises(FedekdError, match="given up: the server does not answer"):
        run_site(here.folder / "lonely" / "site.toml", app="relay:app")


def test_a_port_in_use_is_said(federation: Make) -> None:
    here = federation(0, min_sites=1)
    port = int(here.address.rpartition(":")[2])
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        with pytest.raises(FedekdError, match=f"another program uses port {port}"):
            serve(here)


def test_an_address_of_another_machine_is_said(federation: Make) -> None:
    here = federation(0, min_sites=1, listen="192.0.2.7")  # of the block that is for examples only
    with pytest.raises(FedekdError, match=r"`listen` is 192\.0\.2\.7, which is no address of this machine"):
        serve(here)


def test_no_report_is_made_up(federation: Make) -> None:
    with pytest.raises(FedekdError, match="left no report"):
        serve(federation(0, min_sites=1), "idle")


def test_a_hopeless_run_ends(federation: Make) -> None:
    """Whatever the app writes meanwhile: only a finished round is progress."""
    here = federation(0, min_sites=1, deadline=1.0)
    with pytest.raises(FedekdError, match="failed 3 times without progress"):
        serve(here)
    assert (here.state / "attempts").read_text() == "...", "and each of them has written"


def test_a_full_disk_ends_the_run_at_once(federation: Make) -> None:
    with pytest.raises(FedekdError, match=r"disk full: there is no room for .*state; make room there"):
        serve(federation(0, min_sites=1), "full")
