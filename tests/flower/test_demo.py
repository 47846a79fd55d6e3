from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from fedekd.cli import main
from fedekd.errors import FedekdError
from fedekd.flower.settings import read_server, read_site
from fedekd.flower.setup.certificates import check_certificate
from fedekd.flower.setup.check import check_site
from fedekd.flower.supervise.demo import prepare, wait_for_server
from fedekd.flower.supervise.processes import Child, stopping
from fedekd.runs.verdict_text import STATES


def processes(folder: Path) -> list[int]:
    """Those that work in a folder, by their environment or command."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in text and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = Path(__file__).parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "demo"


def test_the_demo_reports_three_sites_and_stops_everything(folder: Path) -> None:
    line = [sys.executable, "-m", "fedekd", "federation", "demo", "--rounds", "1", "--out", str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("north", "south", "west"):
        row = next(line.split() for line in done.stdout.splitlines() if line.split()[:1] == [name])
        n, alone, joined, delta = (float(number) for number in row[1:5])
        assert " ".join(row[5:]) in STATES.values()
        assert n >= 60
        assert 1 < alone <= 100, "in percent, as `fedekd run` shows it"
        assert delta == pytest.approx(joined - alone, abs=0.151)
    assert "3 sites share a verdict: " in done.stdout
    assert "1 round of fedekd" in done.stdout
    assert processes(folder) == []


def test_folders_for_a_trial_elsewhere(tmp_path: Path) -> None:
    """They are mounted at other paths in containers, so nothing in them may name where they were made."""
    assert main(["federation", "prepare", str(tmp_path / "made"), "--address", "server:8000", "--rounds", "1"]) == 0
    assert main(["federation", "prepare", str(tmp_path / "made"), "--address", "server:8000"]) == 2
    (tmp_path / "made").rename(tmp_path / "moved")
    server = read_server(tmp_path / "moved" / "server" / "server.toml")
    check_certificate(server)
    assert (server.address, server.listen, server.rounds) == ("server:8000", "0.0.0.0", 1)
    assert sorted(path.name for path in server.nodes.iterdir()) == ["north.pub", "south.pub", "west.pub"]
    for name in ("north", "south", "west"):
        found = {one.name: one for one in check_site(tmp_path / "moved" / name / "site.toml", server.schema)}
        wrong = {one.name for one in found.values() if one.state == "wrong"}
        assert wrong <= {"connection", "port"}, found  # nobody is called `server` here
        assert str(tmp_path / "moved") in found["key"].text


def test_a_site_may_end_before_the_server_does(tmp_path: Path) -> None:
    def child(name: str, code: str) -> Child:
        return Child(name, [sys.executable, "-c", code], tmp_path / name)

    def ended(name: str, code: str) -> Child:
        one = child(name, code)
        one.process.wait(30)
        return one

    server = child("server", "import time; time.sleep(2)")
    wait_for_server([server, ended("north", "")], print)
    assert server.code == 0
    server = child("server", "import time; time.sleep(60)")
    with stopping([server]), pytest.raises(FedekdError, match="site south ended: no room"):
        wait_for_server([server, ended("south", "import sys; sys.exit('no room')")], print)


def test_a_site_that_cannot_join_ends_the_demo_with_its_own_reason(tmp_path: Path) -> None:
    """The server would wait for it, and nobody would read its log."""
    said = (
        "print('10:00:00 south cannot join: it refuses; its own log says why', flush=True); import time; time.sleep(60)"
    )
    server = Child("server", [sys.executable, "-c", said], tmp_path / "server")
    own = "print('10:00:00 site south: refused: no rows', flush=True); import time; time.sleep(60)"
    south = Child("south", [sys.executable, "-c", own], tmp_path / "south")
    with stopping([server, south]), pytest.raises(FedekdError, match=r"^site south: refused: no rows$"):
        wait_for_server([server, south], print)


def test_the_demos_sites_let_out_what_its_method_sends(tmp_path: Path) -> None:
    for method, leave in (("fedekd", ("proxy",)), ("fedavg", ("private",)), ("fedproto", ("prototypes",))):
        _, sites = prepare(tmp_path / method, {"method": method, "rounds": 2})
        assert {read_site(site).leave for site in sites} == {leave}


def test_an_interrupted_demo_leaves_nothing_behind(folder: Path) -> None:
    line = [sys.executable, "-m", "fedekd", "federation", "demo", "--rounds", "50", "--out", str(folder)]
    demo = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 120
    while len(processes(folder)) < 10:  # server, SuperLink, and three sites with a SuperNode and an executor each
        assert demo.poll() is None, demo.communicate()
        assert time.monotonic() < end
        time.sleep(0.2)
    demo.send_signal(signal.SIGINT)
    out, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "interrupted" in out
    assert processes(folder) == []
