"""Whoever reads of a federation is told that its server saw only sums, and which checks that cost."""

from __future__ import annotations

import io
import json

import pytest

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from masked_village import Watching, place
from rich.console import Console

from fedekd.cli import main
from fedekd.flower.server.secure_rounds import make_rounds
from fedekd.flower.server.watched import WatchedTransport
from fedekd.flower.site.audit import read_audit, told
from fedekd.flower.supervise.status import _audited
from fedekd.report.federation import print_report
from fedekd.report.html.progress import progress_page
from fedekd.report.monitoring import lines
from fedekd.runs.federation_report import read_report
from fedekd.runs.federation_status import read_status

SAW = "only sums of what sites sent, never a single site's upload (secure aggregation)"
SMALLEST = f"{SAW}; the smallest sum was of 3 uploads"
CHECKED = "no single upload: not its size, direction or history, and no robust combination"


@pytest.fixture
def federation(tmp_path, digits):
    """birch is gone before its last upload."""
    server, schema, sites = place(tmp_path, digits)
    post = Watching(sites, lambda name, at, visit: (name, at, visit) == ("birch", "visit", 1))
    watched = WatchedTransport(post, server.state)
    rounds = make_rounds(server, schema, watched, len(sites))
    with watched.following(rounds):
        report = rounds.run()
    return server, sites, report


def test_the_servers_report_its_page_and_its_status(federation):
    server, _, report = federation
    assert (report["aggregation"], report["smallest_sum"]) == ("secure", 3)
    assert main(["report", str(server.state)]) == 0
    page = (server.state / "report.html").read_text()
    for said in ("What the server saw", SMALLEST.replace("'", "&#39;"), CHECKED):
        assert said in page
    console = Console(file=io.StringIO(), width=300)
    print_report(console, read_report(server.state))
    assert f"the server saw {SMALLEST}; it checked {CHECKED}" in console.file.getvalue()
    status = read_status(server.state)
    assert status["aggregation"] == "secure"
    seen = "The server sees only sums of what sites send (secure aggregation)."
    assert seen in progress_page(status).hero.by[""].lines
    (server.state / "report.json").write_text(json.dumps({**report, "aggregation": "plain"}))
    assert main(["report", str(server.state)]) == 0
    page = (server.state / "report.html").read_text()
    assert "the upload of each site" in page
    assert SAW not in page


def test_a_sites_report_card_log_and_status(federation, tmp_path, capsys):
    _, sites, _ = federation
    (folder,) = (path.parent for path in sites[0].state.glob("*/report.json"))
    assert json.loads((folder / "report.json").read_text())["aggregation"] == "secure"
    assert main(["report", str(folder)]) == 0
    assert f"the server saw {SAW}" in capsys.readouterr().out
    assert main(["export", str(folder), "--client", "alder", "--to", str(tmp_path / "model.safetensors")]) == 0
    assert f"- the federation's server saw {SAW}" in (tmp_path / "model.card.md").read_text()
    entries = list(read_audit(sites[0].state))
    visits = [one for one in entries if one["event"] == "visit" and one["left"]["exchanged"]]
    assert [one["left"]["exchanged"][0].get("masked") for one in visits] == [True, True]
    shown = [told(one) for one in entries]
    assert sum("left: proxy (masked), " in line for line in shown) == 2
    assert [word for line in shown if "masking" in line for word in line.split()[3:4]] == [
        "keys", "shares", "confirm", "reveal", "keys", "shares", "confirm", "reveal",
    ]  # fmt: skip
    _, federations = _audited(sites[0].state)
    (one,) = federations.values()
    assert one["aggregation"] == "secure"
    status = {"kind": "site", "name": "alder", "running": False, "fedekd": "", "federations": federations, "audit": {}}
    status |= {"certificates": {}, "problems": [], "free_bytes": 1, "log": [], "refused_joins": 0}
    status["audit"] = {"entries": 1, "last": None}
    assert any("2 rounds of fedekd under secure aggregation, complete" in line for line in lines(status))
