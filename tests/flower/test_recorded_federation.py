"""A server's and two sites' folders, as version 0.1 left them in the middle of a federation, go on to the end.

``recorded/v0.1/federation`` was written by the code before any module moved: three rounds of FedeKD packed as int8,
one of the sites with differential privacy. Two visits of four are complete; in the third ``alder`` has answered, and
the server was killed before it saved that. ``report_when_complete.json`` is what that version made of the rest.
Keys and certificates are left out: they expire, and nothing here connects.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from village import Hand

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")
pytest.importorskip("opacus", reason="pip install 'fedekd[dp]'")

from fedekd.flower.protocol.schema import Schema
from fedekd.flower.saved_state import SavedState
from fedekd.flower.server.rounds import Rounds
from fedekd.flower.settings import read_server, read_site

RECORDED = Path(__file__).parents[1] / "recorded" / "v0.1" / "federation"
NUMBERS = ("local", "value", "delta", "low", "high")


@pytest.fixture
def recorded(tmp_path):
    return Path(shutil.copytree(RECORDED, tmp_path / "recorded"))


def test_a_recorded_federation_goes_on_where_it_stood(recorded):
    server = read_server(recorded / "server" / "server.toml")
    sites = [read_site(recorded / name / "site.toml") for name in ("alder", "birch")]
    spent = json.loads(next(sites[1].state.glob("*/spent.json")).read_text())["spent"]
    assert [SavedState(next(site.state.iterdir())).load()[0] for site in sites] == [2, 1]
    post = Hand(sites)
    report = Rounds(server, Schema.read(server.schema), post, 2).run()
    visits = [(name, kind) for name, kind, _ in post.sent if kind != "end"]
    assert visits == [(name, "visit") for name in ("alder", "birch")] * 2, "nobody joins again, no visit is repeated"
    known = json.loads((recorded / "report_when_complete.json").read_text())
    pairs = list(zip(report.pop("sites"), known.pop("sites"), strict=True))
    for ours, theirs in pairs:
        assert {**ours, **dict.fromkeys(NUMBERS)} == {**theirs, **dict.fromkeys(NUMBERS)}
        same = ("local", "value", "delta")
        assert [ours[name] for name in same] == pytest.approx([theirs[name] for name in same], abs=1e-4)
        assert ours["low"] <= theirs["low"] <= theirs["high"] <= ours["high"], "a later version's interval is wider"
    spends = report.pop("privacy")["birch"], known.pop("privacy")["birch"]
    ours, theirs = spends
    assert {**ours, "epsilon": 0} == {**theirs, "epsilon": 0}
    assert 0.8 < ours["epsilon"] / theirs["epsilon"] < 0.9, "a finer accountant finds that the same noise spent less"
    (words, *_) = (reply.words for name, kind, reply in post.sent if (name, kind) == ("birch", "visit"))
    without = {name: word for name, word in words.items() if name != "privacy"}
    known["bytes_up"] += len(json.dumps(words)) - len(json.dumps(without))  # its budget, told before the end as well
    for names, told in ((NUMBERS, pairs), (("epsilon",), [spends])):  # numbers differ a little, and so do their digits
        known["bytes_up"] += sum(
            len(repr(ours[name])) - len(repr(theirs[name])) for ours, theirs in told for name in names
        )
    assert {**report, "seconds": 0} == {**known, "seconds": 0, "aggregation": "plain"}  # a later version says which
    after = json.loads(next(sites[1].state.glob("*/spent.json")).read_text())["spent"]
    assert len(spent) == 2
    assert len(after) == 3, "what was paid for is not paid for again"
    assert spent.items() <= after.items()
