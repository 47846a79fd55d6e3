"""Doing a study: what is run, what it costs, and that nothing that fails takes anything else with it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fedekd.data import clusters
from fedekd.errors import FedekdError
from fedekd.methods.local import Local
from fedekd.runs import execution
from fedekd.runs.findings import findings, told
from fedekd.runs.observers import ClientTrained, Observer, RunFailed, RunFinished, RunsPlanned, RunStarted
from fedekd.runs.plan import Cell, plan
from fedekd.studies import Tally, describe, load_study, run_study
from fedekd.studies.study_plan import plan_study
from repeats import numbers_in
from small_study import RUNS, make_home


@pytest.fixture
def home(tmp_path, monkeypatch):
    return make_home(tmp_path, monkeypatch)


class Counting(Observer):
    def __init__(self):
        self.cost, self.planned, self.begun, self.fresh, self.kept, self.notes = 0, [], [], [], [], []

    def on_note(self, event):
        self.notes.append(event.line)

    def on_runs_planned(self, event):
        self.planned = event.runs

    def on_run_started(self, event):
        self.begun.append(event.label)

    def on_client_trained(self, event):
        self.cost += event.work

    def on_run_finished(self, event):
        (self.kept if event.cached else self.fresh).append(event.record)


def small(only="", **overrides):
    return load_study("study.toml", overrides, only)


def failures(folder):
    return [json.loads(line) for line in (folder / "failures.jsonl").read_text().splitlines()]


def test_every_run_is_done_once_and_costs_what_was_said(home):
    study, watcher = small(), Counting()
    said = describe(study, "out")
    assert not (home / "out").exists()
    assert (said.total.runs, said.total.done) == (RUNS, 0)
    outcome = run_study(study, "out", watcher, workers=1)
    records = outcome.records
    assert (len(records), outcome.fresh, outcome.planned, outcome.complete) == (RUNS, RUNS, RUNS, True)
    assert max(Counter((r["dataset"], r["alpha"], r["seed"], r["label"]) for r in records).values()) == 1
    assert said.total.traffic == sum(r["bytes_up"] + r["bytes_down"] for r in records) > 0
    width = {"digits-small": 64, "patients": 10}
    assert sum(part.samples * width[part.dataset] for part in said.parts) == watcher.cost
    assert sum(cost for *_, cost in watcher.planned) == watcher.cost
    assert all(r["avg_delta"] == 0 for r in records if r["method"] == "local")

    lines = told(findings(outcome.records))
    assert [line.split()[0] for line in lines if line[0] != " "] == ["fedekd", "fedavg"]
    assert outcome.text().endswith("\n".join(lines))

    again = Counting()
    outcome = run_study(study, "out", again, workers=1)
    assert (again.planned, again.fresh, len(again.kept), outcome.fresh) == ([], [], RUNS, 0)
    said = describe(study, "out")
    assert (said.total.done, said.total.samples, said.total.traffic) == (RUNS, 0, 0)
    assert said.text().splitlines()[-1].split() == ["in", "all", str(RUNS), str(RUNS), "0", "0", "0", "B"]

    part = small("alpha=0.5,method=fedavg,dataset=" + str(home / "digits-small.npz"))
    assert describe(part, "out").total.runs == 2 * 2
    changed = small(rounds=1)
    assert describe(changed, "out").total.done == 0


def test_a_run_that_fails_leaves_the_others_alone_and_is_tried_again(home, monkeypatch):
    text = (home / "study.toml").read_text().split("[[block]]")
    (home / "fail.toml").write_text(text[0] + "[[block]]" + text[1].replace('"fedavg"', '"studyparts:Fragile"'))
    for engine in ("serial", "stacked"):
        folder = home / engine
        study = load_study("fail.toml", {"engine": engine})
        told = []
        outcome = run_study(study, folder, Tally(told.append), workers=1)
        assert (len(outcome.records), outcome.planned) == (10, 12)
        assert {f["label"] for f in failures(folder)} == {"studyparts:Fragile"}
        assert {(f["seed"], f["alpha"]) for f in failures(folder)} == {(1, 0.3), (1, 0.5)}
        assert all(f["error"] == "RuntimeError: this seed is cursed" for f in failures(folder))
        assert not outcome.complete
        assert "2 failed" in outcome.text()
        assert any("12/12" in line for line in told)
        assert not list(folder.glob("checkpoints/*"))
        assert len(run_study(study, folder, Observer(), workers=1).failed) == 2
    monkeypatch.setattr("studyparts.Fragile.begin", lambda self, client: {})
    assert run_study(study, folder, Observer(), workers=1).complete


def test_what_this_process_planned_it_trains_without_planning_it_again(home, monkeypatch):
    planned, make = [], Cell.runs
    monkeypatch.setattr(Cell, "runs", lambda cell, federation=None: planned.append(cell) or make(cell, federation))
    for engine in ("serial", "stacked"):
        assert run_study(small("seed=0", engine=engine), engine, Observer(), workers=1).complete
        assert len(planned) == 3
        planned.clear()


def test_a_part_of_a_study_leaves_the_checkpoints_of_the_rest(home):
    class Stop(Observer):
        def on_run_started(self, event):
            self.label = event.label

        def on_client_trained(self, event):
            if (self.label, event.round) == ("fedavg", 1):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(small("seed=0,alpha=0.3"), "out", Stop(), workers=1)
    (left,) = home.glob("out/checkpoints/*.pt")
    run_study(small("seed=0,alpha=0.3,method=fedekd"), "out", Observer(), workers=1)
    assert left.exists()
    assert run_study(small("seed=0,alpha=0.3"), "out", Observer(), workers=1).fresh == 1
    assert not left.exists()


def test_where_local_fails_nothing_is_measured_against_it(home, monkeypatch):
    def fails(self, client):
        if len(client.targets) > 5:  # more than a client of the dry pass has
            raise FedekdError("no")
        return {}

    monkeypatch.setattr(Local, "begin", fails)
    outcome = run_study(small("seed=0,alpha=0.3"), "out", Observer(), workers=1)
    assert outcome.records == []
    assert [f.error for f in outcome.failed] == ["no"] + ["Local failed, and every Δ is measured against it"] * 2


def test_mistakes_in_methods_stop_a_study_before_it_trains(home):
    with pytest.raises(FedekdError, match="unknown method in --only 'fedekt'; did you mean 'fedekd'"):
        run_study(small("method=fedekt"), "out", Observer(), workers=1)
    with pytest.raises(FedekdError, match="unknown method 'fedavgg'"):
        run_study(small(methods="fedavgg"), "out", Observer(), workers=1)
    with pytest.raises(FedekdError, match="workers must be a whole number >= 1"):
        run_study(small(), "out", Observer(), workers=0)
    with pytest.raises(FedekdError, match="there is no file"):
        run_study(small(dataset="gone.npz"), "out", Observer(), workers=1)


def test_a_dataset_that_is_not_here_is_left_out(home):
    text = (home / "study.toml").read_text() + '\n[[block]]\ndataset = "octmnist"\nmethods = ["fedekd"]'
    (home / "more.toml").write_text(text)
    study = load_study("more.toml", only="seed=0")
    assert "octmnist is left out: OCTMNIST is not in" in describe(study, "out", Observer()).text()
    outcome = run_study(study, "out", Observer(), workers=1)
    assert len(outcome.records) == RUNS // 2
    assert list(outcome.absent) == ["octmnist"]
    (line,) = failures(home / "out")
    assert (line["dataset"], line["label"], line["seed"]) == ("octmnist", "every run", None)


def test_a_study_in_a_precision_that_the_cpu_lacks_says_so_once(home, monkeypatch):
    (home / "cpuinfo").write_text("flags\t\t: fpu sse2 avx2 avx512f\n")
    monkeypatch.setattr("fedekd.engines.job.CPUINFO", home / "cpuinfo")
    for precision, times in (("bf16", 1), ("fp32", 0)):
        watcher = Counting()
        describe(small(precision=precision), "out", watcher)
        assert sum("this CPU has no bf16 instructions: " in line for line in watcher.notes) == times


def test_a_study_without_any_of_its_datasets_says_so(home):
    (home / "gone.toml").write_text('dataset = "octmnist"\nmethods = ["fedekd"]')
    with pytest.raises(FedekdError, match=r"nothing of study gone can run: OCTMNIST is not in .*; run `fedekd"):
        run_study(load_study("gone.toml"), "out", Observer(), workers=1)
    assert not (home / "out" / "failures.jsonl").exists()


def test_a_cell_without_a_partition_is_recorded(home):
    outcome = run_study(small("seed=0", clients=17), "out", Observer(), workers=1)
    assert outcome.records == []
    cells_ = {(f.dataset, f.alpha) for f in outcome.failed}
    assert cells_ == {("digits-small", 0.3), ("digits-small", 0.5), ("patients", 0.5)}
    assert all("17 clients" in f.error for f in outcome.failed)


def test_stacks_are_cut_to_what_fits(home, monkeypatch):
    monkeypatch.setattr(execution, "MODELS", 8)  # two runs of three clients
    watcher = Counting()
    outcome = run_study(small("dataset=" + str(home / "digits-small.npz"), engine="stacked"), "out", watcher)
    assert (outcome.complete, len(outcome.records)) == (True, RUNS - 6)
    assert sorted(watcher.begun) == sorted(
        ["local and 1 more"] * 2 + ["fedavg and 1 more"] * 2
        + ["fedekd and 1 more"] * 2 + ["fedekd (beta=0.5) and 1 more", "fedekd (beta=2.0) and 1 more"]
    )  # fmt: skip


def test_the_tally_knows_how_long_it_takes(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    tally = Tally(told.append)
    tally.observe(RunsPlanned([("local", 0, 100), ("fedekd", 0, 200), ("fedavg", 0, 100)]))
    assert told == ["training 3 runs"]
    tally.observe(RunStarted("local", 0, 100, 4, 2))  # half of it was done before
    tally.observe(ClientTrained(2, "0", 25))
    now[0] = 50.0
    tally.observe(ClientTrained(3, "0", 25))
    assert tally.eta.seconds() == 600
    record = {"dataset": "d", "alpha": 0.5, "seed": 0, "label": "local", "method": "local", "mean": 0.5, "seconds": 50}
    record |= {"metric": "accuracy", "clients": []}
    tally.observe(RunFinished(record, cached=False))
    assert told[-1] == "1/3 d α=0.5 local, seed 0: mean accuracy 50.0 %, 50 s (about 10 min left)"
    tally.observe(RunFailed("fedekd", 0, 200, "d fedekd: diverged"))
    assert told[-1] == "2/3 FAILED d fedekd: diverged (about 3 min left)"
    now[0] += 61
    tally.observe(ClientTrained(0, "0", 50))
    assert told[-1].startswith("2/3 training (")


# --- clusters --------------------------------------------------------------------------------------------


def planned(study):
    return plan_study(study, Observer(), keep=lambda cell: False)


def patients(home):
    return small("dataset=" + str(home / "patients.npz"))


def test_clusters_are_kept_beside_the_data_and_checked(home, monkeypatch):
    first = describe(patients(home), "out")
    path = home / "data" / "clusters" / "patients-1.npz"
    assert sorted(p.name for p in path.parent.iterdir()) == ["patients-0.npz", "patients-1.npz"]
    good = path.read_bytes()
    asked = []
    found = clusters.input_clusters
    monkeypatch.setattr(clusters, "input_clusters", lambda dataset, seed: asked.append(seed) or found(dataset, seed))
    assert describe(patients(home), "out") == first
    assert asked == []
    with np.load(path) as saved:
        kept, checksum = saved["clusters"], saved["data"]
    np.savez(path, clusters=kept, data=np.array("other"))
    describe(patients(home), "out")
    np.savez(path, clusters=kept[:-1], data=checksum)
    describe(patients(home), "out")
    path.write_bytes(good[:100])
    assert describe(patients(home), "out") == first
    assert asked == [1, 1, 1]
    assert path.read_bytes() == good


def test_without_scikit_learn_the_clusters_are_asked_for(home, monkeypatch):
    def missing(dataset, seed):
        raise ImportError("No module named 'sklearn'")

    monkeypatch.setattr(clusters, "input_clusters", missing)
    outcome = run_study(patients(home), "out", Observer(), workers=1)
    assert {f.seed for f in outcome.failed} == {0, 1}
    assert "needs scikit-learn or its clusters in" in outcome.failed[0].error


def test_a_run_uses_the_clusters_of_a_study(home, monkeypatch):
    describe(patients(home), "out")
    known = [r.key for item in planned(patients(home)).items for r in item.runs]
    monkeypatch.setattr(clusters, "input_clusters", lambda dataset, seed: pytest.fail("found anew"))
    (settings,) = patients(home).grid
    assert [r.key for r in plan(settings)] == known


def test_a_cell_carries_its_clusters_and_gives_the_same_runs(home):
    (settings,) = patients(home).grid
    cell = Cell((replace(settings, seeds=(0,)),), 0)
    assert [r.key for r in cell.with_clusters().runs()] == [r.key for r in cell.runs()]


@pytest.mark.parametrize("public", ["0.1", "open.npz"])
def test_public_rows_are_those_of_a_run(home, monkeypatch, public):
    np.savez("open.npz", x=np.ones((4, 10)))
    without = [r.key for item in planned(patients(home)).items for r in item.runs]
    monkeypatch.setattr(clusters, "input_clusters", lambda dataset, seed: pytest.fail("found anew"))
    study = small("dataset=" + str(home / "patients.npz"), public=public)
    view, (settings,) = planned(study), study.grid
    keys = [r.key for item in view.items for r in item.runs]
    assert [r.key for r in plan(settings)] == keys
    assert not set(keys) & set(without)
    federations = [item.cells[0].federation() for item in view.items]
    assert [len(f.public) for f in federations] == [15 if public == "0.1" else 4] * 2
    assert federations[0].dataset is federations[1].dataset


def test_records_are_the_same_whatever_the_clusters_came_from(home):
    run_study(patients(home), "one", Observer(), workers=1)
    run_study(patients(home), "two", Observer(), workers=1)
    assert numbers_in(home / "one") == numbers_in(home / "two")
