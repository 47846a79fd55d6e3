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
from fedekd.flower.site_file import Site

NAME = "0123456789abcdef"
ASKED, SENT, FAILED = "INFO: Receiving: train message", "INFO: Sent successfully", "ERROR: Failed to send message 1"
IGNORED = "INFO: Run ID 1 is not in `RUNNING` status. Ignoring reply message 2."
UP, LOST = "INFO: SuperNode ID: 1", "WARNING: Connection attempt failed, retrying in 0.7 seconds"
REVOKED, REFUSED = "ERROR: 401 Unauthorized", "Failed to activate SuperNode"
REPORT = "report"  # not said but done: the site's report is written


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(run_site, "LOOK", 0.05)
    monkeypatch.setattr(run_site, "PAUSE", 0.05)
    monkeypatch.setattr(run_site, "STAY", 0.4)
    (tmp_path / "state" / NAME).mkdir(parents=True)
    common = {"name": "north", "server": "fed.example.org:8000", "data": "digits", "give_up": 30.0}
    return Site(ca=tmp_path, key=tmp_path, state=tmp_path / "state", **common)


class Scripted(run_site._Supervisor):
    """Its SuperNodes say given lines and end; after the last of them there is only a server that does not answer."""

    def __init__(self, site: Site, *nodes: list[str]) -> None:
        self.told: list[str] = []
        super().__init__(site, site.state / "site.toml", "", self.told.append)
        self.nodes = iter(nodes)

    def _start_node(self) -> Child:
        report = shlex.quote(str(self.site.state / NAME / "report.json"))
        lines = next(self.nodes, [LOST, LOST])
        steps = [f"echo > {report}" if line == REPORT else f"echo {shlex.quote(line)}" for line in lines]
        return self._started("; ".join([*steps, "sleep 0.3", "exit 1"]))

    def _start_executor(self) -> Child:
        return self._started("sleep 99")

    def _started(self, script: str) -> Child:
        self.children.append(Child("script", ["sh", "-c", script], self.folder / "log"))
        return self.children[-1]


@pytest.mark.parametrize(
    "nodes",
    [
        [[UP, ASKED, SENT, ASKED, REPORT, SENT, LOST]],
        [[UP, ASKED, REPORT, SENT, LOST], [LOST], [LOST]],
        [[UP, ASKED, REPORT], [REFUSED], [UP, ASKED, SENT, LOST]],  # killed with the answer in hand, and asked again
        [[UP, ASKED, REPORT, IGNORED, LOST]],  # the server has gone on without it
    ],
)
def test_a_site_ends_with_its_federation(site: Site, nodes: list[list[str]]) -> None:
    supervisor = Scripted(site, *nodes)
    supervisor.run()
    report = site.state / NAME / "report.json"
    assert supervisor.told[-1] == (
        f"site north: federation {NAME} is complete, its report is {report}; "
        "the server has ended, and so does this site"
    )


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([[UP, ASKED, SENT, LOST]], "the server does not answer"),  # complete it is not
        ([[UP, ASKED, REPORT, LOST]], "the server does not answer"),  # the answer is not out
        ([[UP, ASKED, REPORT, LOST, FAILED, LOST]], "the server does not answer"),
        ([[UP, ASKED, REPORT, SENT, REVOKED], *[[REFUSED]] * 9], "the server does not let this site in"),  # it runs
    ],
)
def test_else_it_stays_until_it_gives_up(site: Site, nodes: list[list[str]], reason: str) -> None:
    with pytest.raises(FedekdError, match=f"given up: {reason}"):
        Scripted(replace(site, give_up=1.2), *nodes).run()


def test_a_federation_of_the_past_is_no_end(site: Site) -> None:
    (site.state / NAME / "report.json").touch()
    with pytest.raises(FedekdError, match="given up: the server does not answer"):
        Scripted(replace(site, give_up=1.2), [UP, ASKED, SENT, LOST]).run()
