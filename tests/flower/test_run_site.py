"""When a site ends by itself. Scripts that say what Flower's SuperNode says stand in for lost connections."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedekd[flower]'")

from fedekd.errors import FedekdError
from fedekd.flower import run_site
from fedekd.flower.processes import Child
from fedekd.flower.site_file import ENDED, Site

NAME = "0123456789abcdef"
UP, LOST = "INFO: SuperNode ID: 1", "WARNING: Connection attempt failed, retrying in 0.7 seconds"
REVOKED, REFUSED = "ERROR: 401 Unauthorized", "Failed to activate SuperNode"
END = "end"  # not said but done: the server's word that the federation is complete


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(run_site, "LOOK", 0.05)
    monkeypatch.setattr(run_site, "PAUSE", 0.05)
    (tmp_path / "state" / NAME).mkdir(parents=True)
    common = {"name": "north", "server": "fed.example.org:8000", "data": "digits", "give_up": 30.0}
    return Site(ca=tmp_path, key=tmp_path, state=tmp_path / "state", **common)


class Scripted(run_site._Supervisor):
    """Its SuperNodes say given lines and end; after the last of them there is only a server that does not answer."""

    def __init__(self, site: Site, *nodes: list[str]) -> None:
        self.said: list[str] = []
        super().__init__(site, site.state / "site.toml", "", self.said.append)
        self.nodes = iter(nodes)

    def _start_node(self) -> Child:
        word = shlex.quote(str(self.site.state / NAME / ENDED))
        lines = next(self.nodes, [LOST, LOST])
        log = shlex.quote(str(self.site.state / "log"))
        told = f"echo 2026-01-01 10:00:00 the end >> {log}; echo > {word}"
        steps = [told if line == END else f"echo {shlex.quote(line)}" for line in lines]
        return self._started("; ".join([*steps, "sleep 0.3", "exit 1"]))

    def _start_executor(self) -> Child:
        return self._started("sleep 99")

    def _started(self, script: str) -> Child:
        self.children.append(Child("script", ["sh", "-c", script], self.folder / "log"))
        return self.children[-1]


@pytest.mark.parametrize("nodes", [[[UP, END, LOST]], [[UP, END, REVOKED], [REFUSED], [LOST]]])
def test_a_site_ends_with_its_server(site: Site, nodes: list[list[str]]) -> None:
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
def test_else_it_stays_until_it_gives_up(site: Site, nodes: list[list[str]], reason: str) -> None:
    with pytest.raises(FedekdError, match=f"given up: {reason}"):
        Scripted(replace(site, give_up=1.2), *nodes).run()


def test_what_was_logged_before_is_not_said_again(site: Site) -> None:
    (site.state / "log").write_text("2026-01-01 09:00:00 of yesterday\n")
    supervisor = Scripted(site, [UP, END, LOST])
    supervisor.run()
    assert not any("yesterday" in line for line in supervisor.said)


def test_a_federation_of_the_past_is_no_end(site: Site) -> None:
    (site.state / NAME / ENDED).touch()
    with pytest.raises(FedekdError, match="given up: the server does not answer"):
        Scripted(replace(site, give_up=1.2), [UP, LOST]).run()
