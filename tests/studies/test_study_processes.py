"""A study over processes and over Ray, killed and resumed, and twice on one folder."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time

import pytest

from fedekd.errors import FedekdError
from fedekd.report.paper_tables import make_tables
from fedekd.report.table_formats import render
from fedekd.runs import answers
from fedekd.runs.observers import Observer
from fedekd.runs.processes import over_processes
from fedekd.runs.progress_file import condition, read
from fedekd.runs.store import Store, read_records
from fedekd.scores import SCORES
from fedekd.studies import load_study, run_study
from fedekd.studies.over_ray import _on_node
from fedekd.studies.study_plan import plan_study
from repeats import numbers_in
from small_study import RUNS, make_home, start

GO = """
from fedekd.studies import load_study, run_study
if __name__ == "__main__":
    run_study(load_study("study.toml", only="seed=0"), "out", workers=1)
"""
BARE = """
import sys
for name in ("rich", "pandas", "sklearn", "scipy", "tqdm", "pooch", "h5py", "PIL", "threadpoolctl"):
    sys.modules[name] = None  # as if it were not installed
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    return make_home(tmp_path, monkeypatch)


def table(folder):
    return render(make_tables(read_records(folder / "results.jsonl")), "csv")


def test_processes_give_the_same_records_and_outlive_one_that_dies(home):
    text = (home / "study.toml").read_text()
    (home / "study.toml").write_text(text.replace('"constant"]', '"studyparts:Deadly", "constant"]'))
    outcome = run_study(load_study("study.toml", only="seed=0"), "out", Observer(), workers=2)
    (failure,) = outcome.failed
    assert failure.label == "studyparts:Deadly"
    assert "ended with status 7" in failure.error
    assert len(outcome.records) == RUNS // 2
    seen = read(home / "out")
    assert (condition(seen), seen["ended"], seen["failed"], seen["now"]) == ("done", RUNS // 2 + 1, 1, [])
    assert len(seen["finished"]) == RUNS // 2
    (home / "study.toml").write_text(text)
    run_study(load_study("study.toml", only="seed=0"), "alone", Observer(), workers=1)
    assert numbers_in(home / "out") == numbers_in(home / "alone")


def test_when_it_is_stopped_its_processes_stop(home):
    store, view = Store("out"), plan_study(load_study("study.toml"), Observer(), keep=lambda cell: False)
    items = over_processes(view.items[:2], store, Observer(), workers=1)
    next(items)
    assert len(multiprocessing.active_children()) == 1
    items.close()
    assert multiprocessing.active_children() == []


def test_killed_in_the_middle_it_goes_on_to_the_same_table(home):
    text = (home / "study.toml").read_text()
    (home / "study.toml").write_text(text.replace('"fedavg"', '"studyparts:Slow"'))
    results = home / "out" / "results.jsonl"
    process = start(home, GO)
    while not results.exists() or results.read_bytes().count(b"\n") < 4:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = results.read_bytes().count(b"\n")
    assert 4 <= done < RUNS // 2
    results.write_bytes(results.read_bytes() + b'{"half a li')
    study = load_study("study.toml", only="seed=0")
    outcome = run_study(study, "out", Observer(), workers=1)
    assert (outcome.fresh, outcome.complete) == (RUNS // 2 - done, True)
    run_study(study, "whole", Observer(), workers=1)
    assert table(home / "out") == table(home / "whole")
    assert not list(home.glob("out/checkpoints/*.pt"))


def test_two_processes_share_a_folder_and_nothing_is_done_twice(home):
    for process in [start(home, GO), start(home, GO)]:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    keys = [record["key"] for record in read_records(home / "out" / "results.jsonl")]
    assert len(keys) == len(set(keys)) == RUNS // 2
    assert not (home / "out" / "failures.jsonl").exists()


def test_it_runs_with_torch_and_numpy_alone(home):
    run_study(load_study("study.toml", only="seed=0"), "here", Observer(), workers=1)
    process = start(home, BARE + GO)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert numbers_in(home / "out") == numbers_in(home / "here")
    assert "left)" in err


def test_ray_gives_the_same_records(home):
    pytest.importorskip("ray")
    outcome = run_study(load_study("study.toml"), "out", Observer(), workers=2, ray="local")
    assert (outcome.complete, outcome.fresh) == (True, RUNS)
    run_study(load_study("study.toml"), "here", Observer(), workers=1)
    assert numbers_in(home / "out") == numbers_in(home / "here")
    assert run_study(load_study("study.toml"), "out", Observer(), ray="local").fresh == 0


def test_a_node_gives_back_what_was_answered_on_the_test_rows(home):
    (home / "nll.toml").write_text('dataset = "digits-small.npz"\nmetric = "nll"\nmethods = ["fedavg"]\nrounds = 1\n')
    plan = plan_study(load_study("nll.toml"), Observer(), keep=lambda cell: False)
    (item,) = plan.items
    records = [(outcome, rows) for outcome, rows in _on_node(item, ()) if isinstance(outcome, dict)]
    assert len(records) == len(item.runs)
    for record, rows in records:
        answers.put(home / "out", record["key"], rows)
        for position, client in enumerate(record["clients"]):
            own = answers.read(home / "out", record["key"], position)
            assert SCORES["nll"].of(own) == pytest.approx(client["value"])


def test_without_ray_it_says_what_to_install(home, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(FedekdError, match=r"pip install 'fedekd\[ray\]'"):
        run_study(load_study("study.toml", only="alpha=0.3,seed=0"), "out", Observer(), ray="local")
