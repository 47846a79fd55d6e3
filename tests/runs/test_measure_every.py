"""Clients that are measured after some rounds only, and runs with very many clients."""

from __future__ import annotations

import pytest
from rich.console import Console

from fedekd.engines.serial import Serial
from fedekd.report.clients import LINES, print_clients, worst_and_best
from fedekd.report.page import write_page
from fedekd.runs import execution, history
from fedekd.runs.observers import Observer
from fedekd.runs.plan import make_job, plan
from fedekd.runs.run_key import run_key
from fedekd.runs.runner import run
from fedekd.settings import make_settings
from fedekd.units import Unit
from lines import Notes
from tiny import tiny_private, tiny_proxy

GIVEN = {"dataset": "digits", "clients": 3, "alpha": 0.5, "rounds": 5, "epochs": 1, "lr": 1e-2, "batch_size": 32}
GIVEN |= {"methods": ["fedavg"], "private": tiny_private, "proxy": tiny_proxy}


def settings(folder, **more):
    return make_settings({**GIVEN, **more, "out": str(folder)})


@pytest.mark.parametrize("choose", [False, True])
def test_only_some_rounds_are_measured(digits, tmp_path, choose):
    watcher = Notes()
    often = run(settings(tmp_path / "often", choose_rounds=choose), watcher, digits).records
    seldom = run(settings(tmp_path / "seldom", measure_every=2, choose_rounds=choose), watcher, digits).records
    for one, other in zip(often, seldom, strict=True):
        assert one["key"] != other["key"]
        for all_, some in zip(one["clients"], other["clients"], strict=True):
            assert some["curve"]["round"] == [2, 4, 5]
            assert "round" not in all_["curve"]
            assert [all_["curve"]["val_loss"][k - 1] for k in (2, 4, 5)] == some["curve"]["val_loss"]
            assert some["chosen"]["round"] in (2, 4, 5)
            if not choose:
                assert some["value"] == all_["value"]
    assert "Learning" in write_page(tmp_path / "seldom").read_text()


def test_the_default_is_every_round_but_for_very_many_clients(digits, tmp_path, monkeypatch):
    first = plan(settings(tmp_path), digits)[0]
    assert first.job.training.measure_every == 1
    same = make_job(settings(tmp_path, measure_every=1), first.job.federation, first.job.method, 0)
    assert run_key(same, "data") == run_key(first.job, "data"), "as before there was the setting"
    monkeypatch.setattr("fedekd.runs.plan.MANY", 3)
    assert plan(settings(tmp_path), digits)[0].job.training.measure_every == 5
    assert plan(settings(tmp_path, choose_rounds=True), digits)[0].job.training.measure_every == 1


def test_of_very_many_clients_a_run_leaves_its_record_alone(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "MANY", 3)
    monkeypatch.setattr(history, "MANY", 3)
    watcher = Notes()
    records = run(settings(tmp_path), watcher, digits).records
    assert all("curve" not in client and "rows" in client for record in records for client in record["clients"])
    assert not (tmp_path / "models").exists()
    assert not (tmp_path / "details").exists()
    assert any("3 clients: neither their models nor details" in line for line in watcher.lines)
    write_page(tmp_path)


def test_of_very_many_clients_no_state_is_held_for_its_best_round(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "MANY", 3)
    kept, keep = [], history.History.keep
    monkeypatch.setattr(history.History, "keep", lambda *given: kept.append(keep(*given)))
    many = run(settings(tmp_path / "many", choose_rounds=True), Observer(), digits).records
    assert not kept
    monkeypatch.setattr(execution, "MANY", 4)
    few = run(settings(tmp_path / "few", choose_rounds=True), Observer(), digits).records
    assert kept
    assert [one["clients"] for one in many] == [one["clients"] for one in few]


def test_a_table_of_clients_stays_short(digits, tmp_path):
    records = run(settings(tmp_path, rounds=1), Observer(), digits).records
    crowd = []
    for record in records:
        many = [{**record["clients"][k % 3], "id": f"client-{k}", "delta": (k * 37 % 1000) / 1000} for k in range(1000)]
        crowd.append({**record, "clients": many})
    console = Console(record=True, width=100)
    print_clients(console, crowd, Unit.of(crowd))
    text = console.export_text()
    assert len(text.splitlines()) < LINES + 8
    assert "that lose and gain most, of 1,000" in text
    shown = worst_and_best([[client["delta"] for client in crowd[-1]["clients"]]])
    assert len(shown) == LINES
    assert f"client-{shown[0]}" in text


def test_of_very_many_clients_those_are_shown_that_any_method_moves(digits, tmp_path):
    """Not those that happen to be first and last where most gain nothing."""
    records = run(settings(tmp_path, rounds=1, methods=["fedavg", "fedekd"]), Observer(), digits).records

    def crowd(moved):
        many = [{**records[0]["clients"][0], "id": f"client-{k}", "delta": 0.0} for k in range(1000)]
        return [
            {
                **record,
                "clients": [{**one, "delta": moved.get((record["method"], k), 0.0)} for k, one in enumerate(many)],
            }
            for record in records
        ]

    def said(records):
        console = Console(record=True, width=100)
        print_clients(console, records, Unit.of(records))
        return console.export_text()

    text = said(crowd({("fedavg", 500): -0.8, ("fedekd", 700): 0.1}))
    assert "the 2 that lose and gain most, of 1,000" in text
    assert "client-500" in text
    assert "client-700" in text
    assert "client-0" not in text
    assert said(crowd({})) == "none of 1,000 loses or gains; all of them are in results.jsonl\n\n"


def test_on_a_cpu_models_are_made_for_those_of_very_many_clients_that_take_part(digits, tmp_path, monkeypatch):
    engines, begin = [], Serial.__init__

    def kept(self, *given, **more):
        begin(self, *given, **more)
        engines.append(self)

    monkeypatch.setattr(Serial, "__init__", kept)
    for place in ("fedekd.runs.plan.MANY", "fedekd.runs.execution.MANY"):
        monkeypatch.setattr(place, 8)
    run(settings(tmp_path, clients=8, rounds=2, participation=0.25), Notes(), digits)
    method = next(engine for engine in engines if engine.method.name == "fedavg")
    assert 2 <= len(method.clients.made) <= 4
