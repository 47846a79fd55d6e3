"""When a site ends by itself. Scripts that say what Flower's SuperNode says stand in for lost connections."""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from fedekd.errors import FedekdError
from fedekd.flower.patches import SKIPPED
from fedekd.flower.settings import ENDED, NO_RESULT, OFFERED, SiteSettings
from fedekd.flower.supervise import diagnosis, run_site
from fedekd.flower.supervise.logs import Tail
from fedekd.flower.supervise.processes import Child, command, environment, free_port

NAME = "0123456789abcdef"
UP, LOST = "INFO: SuperNode ID: 1", "WARNING: Connection attempt failed, retrying in 0.7 seconds"
REVOKED, REFUSED = "ERROR: 401 Unauthorized", "Failed to activate SuperNode"
STAY = "and does not end"
END = "end"  # not said but done: the server's word that the federation is complete
WITHOUT = "end without"  # the same, where this site has no result


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteSettings:
    monkeypatch.setattr(run_site, "LOOK", 0.05)
    monkeypatch.setattr(run_site, "PAUSE", 0.05)
    (tmp_path / "state" / NAME).mkdir(parents=True)
    common = {"name": "north", "server": "fed.example.org:8000", "data": "digits", "give_up": 30.0}
    return SiteSettings(ca=tmp_path, key=tmp_path, state=tmp_path / "state", **common)


class Scripted(run_site.SiteSupervisor):
    """Its SuperNodes say given lines and end; after the last of them there is only a server that does not answer."""

    def __init__(self, site: SiteSettings, *nodes: list[str]) -> None:
        self.said: list[str] = []
        super().__init__(site, site.state / "site.toml", "", self.said.append)
        self.nodes = iter(nodes)

    def start_node(self) -> Child:
        word = shlex.quote(str(self.site.state / NAME / ENDED))
        lines = next(self.nodes, [LOST, LOST])
        log = shlex.quote(str(self.site.state / "log"))
        told = f"echo 2026-01-01 10:00:00 the end >> {log}; echo"
        ends = {END: f"{told} > {word}", WITHOUT: f"{told} {NO_RESULT} > {word}"}
        if lines[-1] == STAY:
            return self._started("; ".join([*(f"echo {shlex.quote(line)}" for line in lines), "sleep 99"]))
        steps = [ends.get(line, f"echo {shlex.quote(line)}") for line in lines]
        return self._started("; ".join([*steps, "sleep 0.3", "exit 1"]))

    def start_executor(self) -> Child:
        return self._started("sleep 99")

    def _started(self, script: str) -> Child:
        self.children.append(Child("script", ["sh", "-c", script], self.folder / "log"))
        return self.children[-1]


@pytest.mark.parametrize("nodes", [[[UP, END, LOST]], [[UP, END, REVOKED], [REFUSED], [LOST]]])
def test_a_site_ends_with_its_server(site: SiteSettings, nodes: list[list[str]]) -> None:
    supervisor = Scripted(site, *nodes)
    supervisor.run()
    assert supervisor.said.count("site north: the end") == 1, "what its log says, without the time"
    assert supervisor.said[-1] == "site north: the server has ended, and so does this site"


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([[UP, LOST]], "the server does not answer"),  # which has not said that the federation is complete
        ([[UP, END, REVOKED], *[[REFUSED]] * 9], "the server does not let this site in"),  # so it runs
    ],
)
def test_else_it_stays_until_it_gives_up(site: SiteSettings, nodes: list[list[str]], reason: str) -> None:
    with pytest.raises(FedekdError, match=f"given up: {reason}"):
        Scripted(replace(site, give_up=1.2), *nodes).run()


def test_an_accepted_offer_makes_a_running_site_connect_again(site: SiteSettings) -> None:
    """The server asks a site that refused only when it comes anew."""
    supervisor = Scripted(site, [UP, STAY], [UP, END, LOST])
    (site.state / OFFERED).write_text("{}")
    supervisor.offer = True
    accepting = threading.Timer(0.5, (site.state / OFFERED).unlink)
    accepting.start()
    supervisor.run()
    told = "site north: the offer was accepted; connecting again, so that the server asks"
    before, after = supervisor.said[: supervisor.said.index(told)], supervisor.said[supervisor.said.index(told) + 1 :]
    assert before[-1] == "site north: connected"
    assert "site north: connected" in after


def test_heartbeats_that_the_ended_server_does_not_answer_are_no_problem(site: SiteSettings) -> None:
    skipped = f"WARNING: {SKIPPED}: no answer"
    early = Scripted(site)
    early._hear(skipped)
    assert early.said == ["site north: the server does not accept this site's heartbeat (no answer); trying again"]
    late = Scripted(site)
    late.over = True
    late._hear(skipped)
    late._say_why("the server does not answer (timed out)")
    assert late.said == []
    assert late.known is None, "nothing for `fedekd site status` to name"


def causes(*errors: str) -> list[str]:
    return [line for error in errors for line in (f"WARNING: Connection attempt failed: {error}", LOST)]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (causes("[Errno -2] Name or service not known"), "does not answer (its name is not known"),
        (causes("timed out", "[Errno 111] Connection refused"), "does not answer (connection refused"),  # the newest
        (causes("timed out"), "does not answer (timed out"),
        ([LOST], "the server does not answer; trying again"),
        (causes("[SSL: WRONG_VERSION_NUMBER] wrong version number"), "does not speak TLS"),
    ],
)
def test_the_first_failed_attempt_is_told_with_its_cause(site: SiteSettings, lines: list[str], reason: str) -> None:
    supervisor = Scripted(replace(site, give_up=2.0), *[lines] * 9)
    with pytest.raises(FedekdError, match="given up"):
        supervisor.run()
    _, *told = supervisor.said
    assert len(told) == 1, "each reason once, though a new SuperNode has found it again"
    assert reason in told[0]
    assert f"`fedekd site check {supervisor.file}` says more" in told[0]


def test_a_reason_is_told_before_its_supernode_ends(site: SiteSettings) -> None:
    supervisor = Scripted(replace(site, give_up=1.0), [*causes("timed out"), STAY])
    with pytest.raises(FedekdError, match="timed out"):
        supervisor.run()
    assert len(supervisor.said) == 2


@pytest.mark.parametrize(("status", "words"), [(401, ("clock", "key")), (None, ("connection refused",))])
def test_flowers_own_supernode_tells_why(tmp_path: Path, status: int | None, words: tuple[str, ...]) -> None:
    """A server that answers everyone with 401, as Flower's does when the clock is wrong, and none at all."""
    with answering(status) as port:
        node = Child(
            "supernode",
            command(
                "fedekd.flower.supervise.launch",
                "supernode",
                *("--insecure", "--superlink", f"127.0.0.1:{port}", "--max-wait-time", "1"),
                *("--isolation", "process", "--port", str(free_port())),
            ),
            tmp_path / "log",
            environment(tmp_path / "home", Path(__file__).parents[2] / "src"),
        )
        node.process.wait(60)
        node.reap()
    why = diagnosis.why_supernode_ended(node)
    assert all(word in why for word in words), (why, node.lines())


@contextlib.contextmanager
def answering(status: int | None) -> Iterator[int]:
    if status is None:
        yield free_port()
        return

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_server_that_answers_with_a_fault_has_not_ended(site: SiteSettings) -> None:
    """Flower's does while it stops; that the SuperNode had found nobody at its own start is no sign either."""
    fault = "WARNING: Request refused: Server error '500 Internal Server Error' for url"
    supervisor = Scripted(
        replace(site, give_up=2.0), [*causes("[Errno 111] Connection refused"), UP, END, fault], [UP, LOST]
    )
    supervisor.run()
    assert supervisor.said.count("site north: connected") == 2
    assert any("the server has a fault of its own" in line for line in supervisor.said)


def test_what_was_logged_before_is_not_said_again(site: SiteSettings) -> None:
    (site.state / "log").write_text("2026-01-01 09:00:00 of yesterday\n")
    supervisor = Scripted(site, [UP, END, LOST])
    supervisor.run()
    assert not any("yesterday" in line for line in supervisor.said)


def test_a_log_that_is_begun_anew_is_read_from_its_start(tmp_path: Path) -> None:
    said: list[str] = []
    log = tmp_path / "log"
    log.write_text("a long line of yesterday\n")
    tail = Tail(log, said.append)
    log.write_text("new\n")
    tail.look()
    assert said == ["new"]


def test_a_federation_of_the_past_is_no_end(site: SiteSettings) -> None:
    (site.state / NAME / ENDED).touch()
    with pytest.raises(FedekdError, match="given up: the server does not answer"):
        Scripted(replace(site, give_up=1.2), [UP, LOST]).run()


def test_an_end_that_is_said_again_is_one(site: SiteSettings) -> None:
    """By `fedekd server finish`, to a site that was there at the first and had no result."""
    ended = site.state / NAME / ENDED
    ended.write_text(NO_RESULT)
    os.utime(ended, (0, 0))
    supervisor = Scripted(site, [UP, END, LOST])
    supervisor.run()
    assert supervisor.said[-1] == "site north: the server has ended, and so does this site"


def test_a_site_that_ends_without_a_result_has_failed(site: SiteSettings) -> None:
    with pytest.raises(FedekdError, match=f"no result of federation {NAME}; start it again, and ask"):
        Scripted(site, [UP, WITHOUT, LOST]).run()
