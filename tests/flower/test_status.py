"""How far a federation is: as server and sites tell it on disk, on the terminal, to Prometheus and in a browser."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from village import Hand, make_server, schema_of, write_sites

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from fedekd.cli import main
from fedekd.commands.status import serve
from fedekd.errors import FedekdError
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.server.watched import NO_ANSWER, WatchedTransport
from fedekd.flower.settings import ENDED, NO_RESULT, read_server
from fedekd.flower.setup.init import init_server, init_site
from fedekd.flower.site.audit import AUDIT
from fedekd.flower.supervise.processes import free_port, is_held, sole_owner
from fedekd.flower.supervise.run_site import CONNECTION
from fedekd.flower.supervise.status import server_status, site_status
from fedekd.report.monitoring import metrics
from fedekd.report.page import federation_text
from fedekd.runs.federation_status import read_status

LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*\})? [-+0-9.e]+')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    init_server(tmp_path / "fed", f"localhost:{free_port()}")
    return tmp_path / "fed"


def rounds_of(folder: Path, digits, post: Hand) -> tuple[Rounds, WatchedTransport]:
    state = read_server(folder / "server.toml").state
    server = make_server(folder, epochs=1, state=state, deadline=2.0)
    watched = WatchedTransport(post, state)
    return Rounds(server, schema_of(digits), watched, 3), watched


def broken(name, kind, reply):
    """Birch sends a NaN, and cedar's first answer to a visit is lost."""
    if kind == "visit" and name == "birch" and reply.models:
        next(iter(reply.models["proxy"].arrays.values())).fill(float("nan"))
    if kind == "visit" and name == "cedar" and not broken.lost:
        broken.lost = True
        return None
    return reply


def test_who_answered_what_failed_and_how_far_it_is(folder, tmp_path, digits, capsys):
    file, broken.lost = folder / "server.toml", False
    assert server_status(file)["federation"] is None
    with pytest.raises(FedekdError, match="has not begun"):
        federation_text(read_server(file).state)
    post = Hand(write_sites(tmp_path, digits, alone="plain"), broken)
    rounds, watched = rounds_of(folder, digits, post)
    with watched.following(rounds):
        rounds.step()
        watched._write()
    status = read_status(rounds.server.state)
    assert (status["done"], status["visits"], status["stage"], status["complete"]) == (1, 3, "visit 1", False)
    sites = status["sites"]
    assert {name: (one["counted"], one["answers"], one["failures"]) for name, one in sites.items()} == {
        "alder": (1, 1, 0), "birch": (0, 1, 0), "cedar": (1, 1, 1),
    }  # fmt: skip
    assert "NaN" in sites["birch"]["error"]
    assert sites["cedar"]["error"] == NO_ANSWER
    sent = [reply.size for name, _, reply in post.sent if name == "alder"]
    assert sites["alder"]["bytes_up"] == sum(sent)
    assert sites["alder"]["seconds"] is not None

    shown = main(["server", "status", str(file)]), capsys.readouterr().out
    assert shown[0] == 0
    assert "1 of 3 visits done; visit 1, for" in shown[1]
    assert re.search(r"  birch: away, answered 0 of 1 visits, .*last error: visit 1: \S+ has NaN", shown[1])
    page = federation_text(rounds.server.state)
    assert "1 of 3 visits are done" in page
    assert "visit 1, birch" in page
    assert main(["report", str(folder)]) == 0
    stopped = (rounds.server.state / "report.html").read_text()
    assert "The server does not run; it was at: visit 1." in stopped
    assert "Now: visit 1" in page
    assert "0 of 3" in stopped
    with sole_owner(rounds.server.state):
        assert main(["report", str(folder)]) == 0
        assert "Now: visit 1" in (rounds.server.state / "report.html").read_text()

    broken.lost, post.spoil = True, lambda name, kind, reply: reply
    again, watched = rounds_of(folder, digits, post)
    with watched.following(again):
        again.run()
    status = read_status(rounds.server.state)
    assert status["complete"]
    assert {name: one["answers"] for name, one in status["sites"].items()} == dict.fromkeys(sites, 3), (
        "counted on after a restart"
    )
    assert server_status(file)["complete"]
    assert "Did joining help?" in federation_text(rounds.server.state)


def test_a_site_tells_of_itself(tmp_path, digits, capsys):
    init_site(tmp_path / "own", "alder", "fed.example.org:8000", "digits", ca=_ca(tmp_path))
    file = tmp_path / "own" / "site.toml"
    status = site_status(file)
    assert (status["running"], status["federations"], status["problems"]) == (False, {}, [])
    sites = write_sites(tmp_path, digits, alone="plain")
    sites[0] = replace(sites[0], state=tmp_path / "own" / "state")
    rounds = Rounds(make_server(tmp_path, epochs=1), schema_of(digits), Hand(sites), 3)
    rounds.step()
    (one,) = site_status(file)["federations"].values()
    assert (one["method"], one["visits"], one["complete"], one["failures"]) == ("fedekd", 1, False, 0)
    rounds.run()
    (one,) = site_status(file)["federations"].values()
    assert (one["visits"], one["complete"], one["result"]) == (3, True, True)
    assert one["bytes_up"] > 0
    assert main(["site", "status", str(file)]) == 0
    assert "2 rounds of fedekd, complete\n  3 visits done" in capsys.readouterr().out
    (ended,) = sites[0].state.glob(f"*/{ENDED}")
    ended.write_text(NO_RESULT)
    assert main(["site", "status", str(file)]) == 0
    assert "complete without this site's last visit" in capsys.readouterr().out
    log = tmp_path / "own" / "state" / AUDIT
    log.write_text(log.read_text().replace('"visit"', '"trip"', 1))
    broken = site_status(file)
    assert "was changed after it was written" in broken["problems"][0]
    assert "fedekd_audit_intact 0\n" in metrics(broken)


def test_a_site_that_gave_up_still_tells_why(tmp_path):
    init_site(tmp_path / "own", "alder", "fed.example.org:8000", "digits", ca=_ca(tmp_path))
    file, state = tmp_path / "own" / "site.toml", tmp_path / "own" / "state"
    about = {"connected": False, "since": 1.0, "problem": "the server does not answer"}
    (state / CONNECTION).write_text(json.dumps(about))
    status = site_status(file)
    assert (status["running"], status["connected"], status["since"]) == (False, False, None)
    assert status["problems"] == ["when it last ran: the server does not answer"]
    with sole_owner(state):
        assert site_status(file)["problems"] == ["the server does not answer"]


def _ca(folder: Path) -> str:
    from fedekd.flower.setup.certificates import make_authority

    return str(make_authority(folder / "authority")[0])


def test_whether_it_runs_is_asked_without_harm(tmp_path):
    assert not is_held(tmp_path)
    with sole_owner(tmp_path / "state"):
        assert is_held(tmp_path / "state")
    assert not is_held(tmp_path / "state")


def test_prometheus_and_a_browser(folder, tmp_path, digits):
    file = folder / "server.toml"
    post = Hand(write_sites(tmp_path, digits, alone="plain"))
    rounds, watched = rounds_of(folder, digits, post)
    with watched.following(rounds):
        rounds.step()
    with serving(file) as get:
        code, text = get("/metrics")
        assert code == 200
        assert all(line.startswith("# ") or LINE.fullmatch(line) for line in text.splitlines()), text
        assert 'fedekd_up{kind="server"} 0\n' in text
        assert "fedekd_visits_done 1\n" in text
        assert 'fedekd_site_answers_total{site="alder"} 1\n' in text
        assert len(re.findall("^# TYPE fedekd_site_online ", text, re.MULTILINE)) == 1
        assert json.loads(get("/status.json")[1])["federation"]["done"] == 1
        assert "1 of 3 visits are done" in get("/")[1]
        assert get("/nowhere")[0] == 404
        (read_server(file).state / "status.json").write_text("{")
        assert get("/metrics") == (503, f"cannot read {read_server(file).state}/status.json: Expecting property name "
                                   "enclosed in double quotes: line 1 column 2 (char 1); move it away, the server "
                                   "writes it anew\n")  # fmt: skip


@contextmanager
def serving(file: Path):
    """Gives a function of a path; the thread ends with the tests."""
    port, ready = free_port(), threading.Event()
    read, page = lambda: server_status(file), lambda: federation_text(read_server(file).state)
    threading.Thread(target=serve, args=(str(port), read, page, lambda _: ready.set()), daemon=True).start()
    assert ready.wait(10)

    def get(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    yield get


def test_what_cannot_be_is_one_line(folder, capsys):
    file = str(folder / "server.toml")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        for given, said in (
            (["--json", "--prometheus"], "choose one of --json, --prometheus and --serve"),
            (["--serve", "nonsense"], "--serve must look like"),
            (["--serve", str(other.getsockname()[1])], "in use; name another port with --serve"),
        ):
            assert main(["server", "status", file, *given]) == 2
            assert said in capsys.readouterr().err
