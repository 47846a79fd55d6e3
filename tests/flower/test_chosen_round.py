"""A site ends with the model of the round that its validation rows prefer; the federation goes on from the last."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from village import federate, make_server, schema_of, state_of, write_sites

from fedekd.cli import main
from fedekd.flower.saved_state import SavedState
from fedekd.runs import choosing


def report_of(site):
    (path,) = site.state.glob("*/report.json")
    return path.parent, json.loads(path.read_text())


@pytest.fixture
def eager(monkeypatch):
    """Any round with a lower validation loss is preferred, however little lower."""
    monkeypatch.setattr(choosing, "_clearly_better", lambda *_: True)


def test_an_earlier_round_that_validation_prefers_is_what_a_site_ends_with(tmp_path, digits, eager):
    sites = write_sites(tmp_path, digits)
    federate(make_server(tmp_path, method="fedekd", rounds=4, epochs=4, lr=0.2), schema_of(digits), sites)
    earlier = []
    for site in sites:
        folder, report = report_of(site)
        measured, last = state_of(site)["rounds"], state_of(site)["client"]["models"]["private"]
        losses = [row[0][1] for row in measured["history"]["validation"][0]]
        assert len(losses) == 4
        assert report["joined"]["round"] == 1 + losses.index(min(losses))
        assert report["joined"]["value"] == measured["history"]["curves"][0][report["joined"]["round"] - 1][0]
        assert report["value"] == measured["history"]["curves"][0][-1][0]
        assert report["gain"] == pytest.approx(report["joined"]["value"] - report["alone"]["value"])
        to = tmp_path / f"{site.name}.safetensors"
        assert main(["export", str(folder), "--client", site.name, "--to", str(to)]) == 0
        given, kept = load_file(to), measured["best"]["models"]["private"]
        assert all(torch.equal(kept[name], w) for name, w in given.items())
        if report["joined"]["round"] < 4:
            earlier.append(site.name)
            assert any(not torch.equal(last[name], w) for name, w in given.items())
    assert earlier


def test_a_federation_that_measured_no_rounds_ends_with_the_last(tmp_path, digits, eager):
    """One that an older version began."""
    from village import Hand

    sites = write_sites(tmp_path, digits)

    def forget(name, kind, reply):
        if (name, kind) == ("birch", "visit"):
            (folder,) = (file.parent for file in sites[1].state.glob("*/agreement.json"))
            visit, state = SavedState(folder).load()
            if state.pop("rounds", None) is not None:
                SavedState(folder).save(visit, state)
        return reply

    federate(make_server(tmp_path, rounds=3, epochs=1), schema_of(digits), sites, Hand(sites, forget))
    _, report = report_of(sites[1])
    assert report["joined"]["round"] == 3
    assert report["joined"]["value"] == report["value"]


def test_the_best_alone_is_kept_as_it_was_in_its_round(tmp_path, digits, eager, monkeypatch):
    """What a site that should stay alone exports and predicts with."""
    best = "fedekd@alone"
    monkeypatch.setattr(
        "fedekd.flower.site.report.best_on_validation", lambda options, *_: {o.label: o for o in options}[best]
    )
    (site, *_) = sites = write_sites(tmp_path, digits, alone="menu")
    federate(make_server(tmp_path, method="fedekd", rounds=3, epochs=2, lr=0.4), schema_of(digits), sites)
    folder, report = report_of(site)
    rounds = state_of(site)["alone"][best]["rounds"]
    losses = [row[0][1] for row in rounds["history"]["validation"][0]]
    assert report["alone"]["label"] == best
    assert report["alone"]["round"] == 1 + losses.index(min(losses)) < 3
    to = tmp_path / "m.safetensors"
    assert main(["export", str(folder), "--client", site.name, "--method", "alone", "--to", str(to)]) == 0
    kept = rounds["best"]["models"]["private"]
    assert all(torch.equal(kept[name], w) for name, w in load_file(to).items())
    card, value = (tmp_path / "m.card.md").read_text(), 100 * report["alone"]["value"]
    assert f"| this model: after round {report['alone']['round']} of 3 | {value:.1f} % |" in card
    advice = f"{report['verdict']['recommendation'].capitalize()}: {report['verdict']['reason']}."
    assert (
        f"This is the best model the client trained alone, by its validation rows. Should this client join? {advice}"
        in card
    )
    names = sorted(path.name.removeprefix(folder.name) for path in (folder / "models").iterdir())
    assert names == ["", "-alone", "-local"]
