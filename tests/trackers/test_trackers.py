"""Each tracker's own store holds what was trained, once, whatever happens in between."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

import fedekd
from fedekd import trackers
from fedekd.errors import FedekdError
from fedekd.runs import details
from fedekd.runs.observers import Observer, ObserverGroup
from fedekd.runs.runner import run
from fedekd.settings import make_settings
from fedekd.trackers.experiment import Experiment, tags
from tiny import tiny_private, tiny_proxy

SMALL = {"clients": 3, "alpha": 0.5, "rounds": 3, "epochs": 1, "batch_size": 16, "methods": "fedekd", "lr": 1e-3}
SMALL |= {"private": tiny_private, "proxy": tiny_proxy, "models": "none"}


class StopsAt(Observer):
    """Ctrl-C in a round of a run, after the trackers have seen it and before it is saved."""

    def __init__(self, label, round):
        self.place = (label, round)

    def on_round_measured(self, event):
        if (event.label, event.round) == self.place:
            raise KeyboardInterrupt


def go(digits, out, tracker, *more, **changes):
    settings = make_settings({"dataset": digits.name, "out": str(out), **SMALL, **changes})
    (one,) = trackers.choose(tracker, settings)
    with one:
        return run(settings, ObserverGroup([one, *more]), digits)


def check(points, record, found):
    """All rounds, each once, and the figures of the record."""
    names = [client["id"] for client in record["clients"]]
    for k, name in enumerate(names):
        assert points[f"metric/{name}"] == [(r, pytest.approx(v[k])) for r, v in enumerate(found["curve"], 1)]
        for what in ("value", "local", "delta"):
            ((_, value),) = points[f"final_{what}/{name}"]
            assert value == pytest.approx(record["clients"][k][what])
    for what in ("avg_delta", "worst_delta", "tail_delta", "bytes_up", "bytes_down", "seconds"):
        ((_, value),) = points[f"final/{what}"]
        assert value == pytest.approx(record[what])
    gated = {tag for tag in points if tag.startswith("trust/")}
    if record["method"] == "local":
        assert not gated
        return
    assert gated == {f"trust/{name}" for name in names}
    for k, name in enumerate(names):
        assert [step for step, _ in points[f"trust/{name}"]] == [1, 2, 3]
        for (_, counts), (_, mean), entry in zip(
            points[f"trust/{name}"], points[f"trust_mean/{name}"], found["trust"], strict=True
        ):
            assert counts == entry["clients"][k]["histogram"]
            assert mean == pytest.approx(entry["clients"][k]["mean"])


def check_all(out, result, read):
    runs, found = read(out), details.read(out)
    held = dict(runs)
    assert len(runs) == len(held) == len(result.records)
    for record in result.records:
        check(held[f"{record['label']} seed {record['seed']}"], record, found[record["key"]])


def test_a_run_is_in_the_trackers_store(tracker, digits, out, read):
    result = fedekd.run(digits, progress=False, log_to=tracker, out=str(out), **SMALL)
    check_all(out, result, read)


def test_a_resumed_run_goes_on_and_logs_nothing_twice(tracker, digits, out, read, capsys):
    with pytest.raises(KeyboardInterrupt):
        go(digits, out, tracker, StopsAt("fedekd", 2))
    result = go(digits, out, tracker)
    check_all(out, result, read)
    go(digits, out, tracker)
    check_all(out, result, read)
    assert "goes on" not in capsys.readouterr().err, "nothing failed"


def test_a_run_that_starts_anew_replaces_what_was_interrupted(tracker, digits, out, read):
    with pytest.raises(KeyboardInterrupt):
        go(digits, out, tracker, StopsAt("local", 2))
    shutil.rmtree(out / "checkpoints")
    result = go(digits, out, tracker)
    if tracker == "wandb":  # what lies in an offline run cannot be taken back
        assert sorted(name for name, _ in read(out)) == ["fedekd seed 0", "local seed 0", "local seed 0"]
    else:
        check_all(out, result, read)


def test_runs_that_ended_without_a_tracker_are_caught_up(tracker, digits, out, read):
    result = fedekd.run(digits, progress=False, out=str(out), **SMALL)
    go(digits, out, tracker)
    check_all(out, result, read)


def test_other_settings_are_other_runs(tracker, digits, out, read):
    go(digits, out, tracker)
    go(digits, out, tracker, epochs=2)
    assert sorted(name for name, _ in read(out)) == ["fedekd seed 0"] * 2 + ["local seed 0"] * 2
    assert all([step for step, _ in points["metric/0"]] == [1, 2, 3] for _, points in read(out))


def test_a_failing_tracker_costs_a_line(tracker, digits, out, capsys):
    """Its folder becomes a file after the first run, as good as a disk that is gone."""
    home = out / {"mlflow": "mlruns"}.get(tracker, tracker)

    class Breaks(Observer):
        def on_run_finished(self, event):
            if home.is_dir():
                shutil.rmtree(home)
                home.touch()

    result = go(digits, out, tracker, Breaks())
    assert [record["method"] for record in result.records] == ["local", "fedekd"]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "nothing more is logged" in line]
    assert line.startswith(f"{tracker}: ")
    assert line.endswith("the training goes on")


def test_a_store_that_cannot_be_opened_is_said_before_training(tracker, digits, out):
    home = out / {"mlflow": "mlruns"}.get(tracker, tracker)
    shutil.rmtree(home, ignore_errors=True)
    home.touch()
    with pytest.raises(FedekdError, match=f"--log-to {tracker}: "):
        go(digits, out, tracker)
    assert not (out / "results.jsonl").exists()


def test_several_at_once_in_a_stack(tracker, digits, out, read):
    result = go(digits, out, tracker, engine="stacked", seeds="0-1")
    held = dict(read(out))
    assert len(held) == len(result.records) == 4
    assert all([step for step, _ in points["metric/0"]] == [1, 2, 3] for points in held.values())


# Without any of them


@pytest.mark.parametrize("name", trackers.NEEDS)
def test_a_missing_package_is_one_line(name, monkeypatch):
    for package in trackers.NEEDS[name]:
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(FedekdError, match=rf"pip install 'fedekd\[{name}\]'"):
        trackers.choose(name, make_settings({}))


def test_names():
    assert trackers.choose("none", make_settings({})) == []
    with pytest.raises(FedekdError, match="did you mean 'tensorboard'"):
        trackers.choose("tensorbord", make_settings({}))
    with pytest.raises(FedekdError, match="got ','"):
        trackers.choose(",", make_settings({}))


def test_a_group_is_named_by_what_decides_the_numbers():
    name = Experiment.of(make_settings({})).name
    assert name.startswith("digits-alpha0.1-")
    same = {
        "methods": "fedavg",
        "seeds": "3",
        "out": "elsewhere",
        "models": "all",
        "parameters": {"fedavg": {}},
        "chosen_by": "loss",
    }
    assert Experiment.of(make_settings(same)).name == name
    for other in ({"rounds": 3}, {"lr": 0.1}, {"alpha": 0.5}, {"private": tiny_private}):
        assert Experiment.of(make_settings(other)).name != name
    assert json.loads(json.dumps(Experiment.of(make_settings({"private": tiny_private})).params))


def test_every_client_has_a_tag_of_its_own():
    assert tags(["St. Mary's", "St. Mary/s", "..", "", "a b"]) == {
        "St. Mary's": "St._Mary_s",
        "St. Mary/s": "St._Mary_s_2",
        "..": "_",
        "": "__2",
        "a b": "a_b",
    }
