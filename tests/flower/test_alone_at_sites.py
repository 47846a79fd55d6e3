"""What a site trains alone beside the federation: it is made up for, fails by itself, and stays at home."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")

from village import Hand, federate, make_server, parts, schema_of, state_of, write_sites

from fedekd import methods
from fedekd.cli import main
from fedekd.engines.job import Job, Training
from fedekd.flower.protocol.rows import of_site
from fedekd.flower.saved_state import SavedState
from fedekd.flower.settings import Privacy
from fedekd.flower.site.alone import AloneMenu
from fedekd.runs.plan import SMOOTH
from tiny import tiny_private, tiny_proxy

MENU = ["local", *SMOOTH, "fedekd@alone"]


def own_report(site):
    (path,) = site.state.glob("*/report.json")
    return json.loads(path.read_text())


def weights(kept, label):
    return kept[label]["engine"]["clients"][0]["models"]["private"]


def test_a_state_of_before_there_was_a_menu_goes_on(tmp_path, digits):
    """What the saved state lacks is trained from its beginning, to the same end."""
    schema, sites = schema_of(digits), write_sites(tmp_path / "a", digits, alone="menu")
    federate(make_server(tmp_path / "a", rounds=3, epochs=1), schema, sites)
    others = write_sites(tmp_path / "b", digits, alone="menu")
    forgotten = []

    def forget(name, kind, reply):
        if (name, kind) == ("birch", "visit") and len(forgotten) < 2:
            (folder,) = (file.parent for file in others[1].state.glob("*/agreement.json"))
            visit, state = SavedState(folder).load()
            forgotten.append(state.pop("alone"))
            SavedState(folder).save(visit, state)
        return reply

    federate(make_server(tmp_path / "b", rounds=3, epochs=1), schema, others, Hand(others, forget))
    assert len(forgotten) == 2
    for ours, theirs in zip(sites, others, strict=True):
        kept, again = state_of(ours)["alone"], state_of(theirs)["alone"]
        assert list(kept) == list(again) == MENU
        for label in MENU:
            other = weights(again, label)
            assert all(torch.equal(w, other[name]) for name, w in weights(kept, label).items())
            assert kept[label]["rounds"]["history"] == again[label]["rounds"]["history"]
        assert own_report(ours) == own_report(theirs)


def test_plain_alone_saves_the_menu(tmp_path, digits):
    schema, sites = schema_of(digits), write_sites(tmp_path, digits, alone="plain")
    federate(make_server(tmp_path, rounds=2, epochs=1), schema, sites)
    for site in sites:
        own = own_report(site)
        assert list(state_of(site)["alone"]) == [one["label"] for one in own["menu"]] == ["local"]
        assert own["alone"]["label"] == "local"
        assert "recipe" not in own
        assert own["verdict"]["recommendation"] in ("join", "stay alone", "undecided")


def test_a_setting_that_changes_in_the_middle(tmp_path, digits):
    schema, sites = schema_of(digits), write_sites(tmp_path, digits, alone="plain")

    class Changing(Hand):
        def send(self, node, kind, payload):
            if kind == "visit" and payload.words["visit"] == 1:
                self.sites[node] = replace(self.sites[node], alone="menu")
            super().send(node, kind, payload)

    federate(make_server(tmp_path, rounds=2, epochs=1), schema, sites, Changing(sites))
    for site in sites:
        kept = state_of(site)["alone"]
        assert [kept[label]["engine"]["round"] for label in MENU] == [2] * 5


def menu_of(digits, **training):
    rows = parts(digits, 3)[0]
    training = Training(**{"rounds": 2, "epochs": 1, "batch_size": 16, "lr": 3e-3, **training})
    federation = of_site(rows, schema_of(digits), "alder", 0, 1, None)
    return AloneMenu(Job(federation, methods.get("fedekd"), 0, training, tiny_private, tiny_proxy), "fedekd", 1)


def test_what_diverges_alone_is_told_to_the_site_only(digits, caplog):
    menu = menu_of(digits, lr=1e30, optimizer="sgd")
    menu.train(1)
    menu.train(2)
    assert [kept["stopped"] for kept in menu.state().values()] == [True] * 5
    assert sum("diverged" in line and "alone failed and ends here" in line for line in caplog.messages) == 5
    assert list(menu.results()) == ["local"], "plain Local is there as it began, for the Δ"
    assert all(bool(torch.isfinite(w).all()) for w in menu.local().weights("private").values())


def test_in_two_visits_as_in_one_and_saved_in_between(digits):
    whole, first, second = (menu_of(digits, participation=0.5) for _ in range(3))
    whole.train(2)
    first.train(1)
    second.restore(first.state())
    second.train(2)
    for label in MENU:
        other = weights(second.state(), label)
        assert all(torch.equal(w, other[name]) for name, w in weights(whole.state(), label).items()), label
        assert whole.state()[label]["rounds"]["history"] == second.state()[label]["rounds"]["history"]
        assert whole.state()[label]["engine"]["round"] == 2


def test_noise_is_for_what_leaves(tmp_path, digits):
    """With [dp] and without, a site does the same alone, the twin's proxy included."""
    pytest.importorskip("opacus", reason="pip install 'fedekd[dp]'")
    schema, kept = schema_of(digits), []
    for folder, dp in ((tmp_path / "plain", None), (tmp_path / "noisy", Privacy(epsilon=8.0))):
        sites = write_sites(folder, digits, dp=dp, alone="menu")
        federate(make_server(folder, rounds=2, epochs=1, batch_size=200), schema, sites)
        kept.append(state_of(sites[0]))
    for label in MENU:
        ours, theirs = (state["alone"][label]["engine"]["clients"][0]["models"] for state in kept)
        assert all(torch.equal(w, theirs[role][name]) for role in ours for name, w in ours[role].items())
    ours, theirs = (state["client"]["models"]["proxy"] for state in kept)
    assert not any(torch.equal(w, theirs[name]) for name, w in ours.items())


def test_a_person_reads_the_verdict(tmp_path, digits, capsys):
    schema, sites = schema_of(digits), write_sites(tmp_path, digits, alone="menu")
    server = make_server(tmp_path, rounds=2, epochs=1)
    _, report = federate(server, schema, sites)
    for site in sites:
        verdict = own_report(site)["verdict"]
        (folder,) = (file.parent for file in site.state.glob("*/agreement.json"))
        assert main(["report", str(folder)]) == 0
        said = capsys.readouterr().out
        assert f"{verdict['recommendation']}: {verdict['reason']}" in said
        assert ", federation " in said
    assert {site["state"] for site in report["sites"]} <= {"helped", "harmed", "equivalent", "undecided"}
    assert main(["report", str(server.state)]) == 0
    assert "3 sites share a verdict: " in (server.state / "report.html").read_text()
