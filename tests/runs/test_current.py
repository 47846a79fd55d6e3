"""Runs in one folder whose models, data or code differ are not compared, and a later run replaces an earlier one."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import fedekd
from fedekd import methods
from fedekd.cli import main
from fedekd.data import Dataset
from fedekd.errors import FedekdError
from fedekd.methods.fedavg import FedAvg
from fedekd.runs.aggregate import usual_settings
from fedekd.runs.current import current
from fedekd.runs.run_key import algorithm, own_code
from made_records import make_record

SMALL = {"rounds": 1, "epochs": 1, "progress": False}


def own_data(seed=0, name="ours"):
    rng = np.random.default_rng(seed)
    return Dataset(name, "classification", rng.normal(size=(120, 4)).astype(np.float32), np.arange(120) % 2, 2)


def run(tmp_path, dataset=None, **settings):
    return fedekd.run(dataset or "heart", out=tmp_path / "out", **SMALL | settings)


def test_methods_are_compared_with_local_of_their_own_model(tmp_path, capsys):
    run(tmp_path, methods=["fedprox"], private="linear")
    run(tmp_path, methods=["fedavg"], private="mlp-large")
    latest = run(tmp_path, methods=["fedavg", "fedprox"], private="linear")
    found = fedekd.load(tmp_path / "out")
    assert [(row["label"], row["seeds"]) for row in found.summary] == [
        ("local", [0]), ("fedprox", [0]), ("local", [0]), ("fedavg", [0]), ("fedavg", [0]),
    ]  # fmt: skip
    (ours,) = (one for one in found.transfer if one.label == "fedprox")
    (alone,) = (one for one in latest.transfer if one.label == "fedprox")
    assert ours.summary["gain"]["mean"] == alone.summary["gain"]["mean"]
    frame = found.to_frame()
    assert set(frame["private"]) == {"linear", "mlp-large"}
    main(["table", str(tmp_path / "out")])
    assert "left out: 2 runs" in capsys.readouterr().out.lower()


def test_proxies_are_told_apart_too(tmp_path):
    for proxy in ("linear", "mlp-large"):
        run(tmp_path, methods=["fedekd"], proxy=proxy)
    sent = {row["bytes_up"] for row in fedekd.load(tmp_path / "out").summary if row["label"] == "fedekd"}
    assert len(sent) == 2


def test_runs_on_changed_data_replace_those_before(tmp_path, capsys):
    run(tmp_path, own_data(0), methods=["fedavg"], seeds=[0, 1], clients=2)
    last = run(tmp_path, own_data(1), methods=["fedavg"], seeds=[0], clients=2)
    found = fedekd.load(tmp_path / "out")
    assert found.replaced == 4
    assert [record["key"] for record in found.records] == [record["key"] for record in last.records]
    capsys.readouterr()
    main(["table", str(tmp_path / "out"), "--only", "Avg Δ"])
    assert "left out: 4 runs made again since" in capsys.readouterr().err


def test_what_is_asked_for_again_holds_again(tmp_path):
    first = run(tmp_path, own_data(0), methods=["fedavg"], clients=2)
    run(tmp_path, own_data(1), methods=["fedavg"], clients=2)
    again = run(tmp_path, own_data(0), methods=["fedavg"], clients=2)
    assert [record["key"] for record in again.records] == [record["key"] for record in first.records]
    found = fedekd.load(tmp_path / "out")
    assert [record["key"] for record in found.records] == [record["key"] for record in first.records]
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    run(tmp_path, own_data(0), methods=["fedavg"], clients=2)
    assert (tmp_path / "out" / "results.jsonl").read_text().splitlines() == lines


def test_records_that_lack_what_is_told_now_are_completed_when_asked_for(tmp_path):
    settings = {"methods": ["fedavg"], "clients": 2, "private": "linear"}
    run(tmp_path, own_data(), **settings)
    file = tmp_path / "out" / "results.jsonl"
    older = [json.loads(line) for line in file.read_text().splitlines()]
    stripped = [{k: v for k, v in record.items() if k not in ("private", "data")} for record in older]
    file.write_text("".join(json.dumps(record) + "\n" for record in stripped))
    run(tmp_path, own_data(), **settings | {"methods": ["fedavg", "fedprox"]})
    found = fedekd.load(tmp_path / "out")
    assert found.replaced == 0
    assert [row["label"] for row in found.summary] == ["local", "fedavg", "fedprox"]
    assert all(record["data"] == older[0]["data"] for record in found.records)


def test_data_of_ones_own_may_have_the_name_of_a_registered_set(tmp_path):
    made = own_data(name="heart")
    assert all("data" in record for record in run(tmp_path, made, methods=["fedavg"], clients=2).records)


def test_data_with_a_name_are_not_marked(tmp_path):
    assert all("data" not in record and "private" not in record for record in run(tmp_path, methods=["fedavg"]).records)


def made(strength, seeds, **more):
    """Two methods of one name whose code differs, as after an edit."""
    found = [make_record("mine", [strength] * 6, seed=seed) | {"code": f"{strength}"} for seed in seeds]
    return [record | {"key": f"{strength} {record['seed']}"} | more for record in found]


def test_of_changed_code_only_the_newest_counts():
    local = [make_record("local", seed=seed) for seed in range(4)]
    assert [r["seed"] for r in current([*local, *made(0.1, range(3)), *made(0.2, [3])]) if r["method"] == "mine"] == [3]
    both = current([*local, *made(0.1, range(3)), *made(0.2, range(4))])
    assert [(r["code"], r["seed"]) for r in both if r["method"] == "mine"] == [("0.2", seed) for seed in range(4)]


def test_what_was_measured_against_a_local_that_was_trained_again_is_left_out():
    before = [make_record(name, [0.1] * 6) for name in ("local", "fedekd", "fedavg")]
    after = [make_record(name, [0.1] * 6, local=0.5) for name in ("local", "fedekd")]
    again = [record | {"key": f"{record['key']} again"} for record in after]
    assert current([*before, *again]) == again
    assert current(before) == before
    assert current([*before, *before]) == before


def test_of_equally_frequent_settings_the_latest_are_shown():
    slow, fast = ([make_record(m) | {"key": f"{m} {lr}"} for m in ("local", "fedavg")] for lr in (0.1, 0.2))
    fast = [record | {"params": record["params"] | {"lr": 0.2}} for record in fast]
    assert usual_settings([*slow, *fast]) == fast
    assert usual_settings([*fast, *slow]) == slow
    assert usual_settings([*slow, *fast[:1]]) == slow


def test_two_methods_of_one_name_are_refused(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Stronger(FedAvg):
        pass

    with pytest.raises(FedekdError, match="two methods are called 'fedavg'"):
        run(tmp_path, methods=["fedavg", Stronger()])
    assert run(tmp_path, methods=["fedavg", "fedavg", FedAvg()]).records


def notebook(body, default=0):
    """A class whose text Python cannot find, as one from a notebook's cell."""
    space = {"FedAvg": FedAvg, "dataclass": dataclasses.dataclass, "__name__": "__main__"}
    steps = f"    def steps(self, round, more={default}):\n        return {body}\n"
    checked = f"    def __post_init__(self):\n        assert {body!r} or 1 in {{1, 2, 3}}\n"
    exec(f"@dataclass(frozen=True)\nclass Mine(FedAvg):\n{steps}{checked}", space)
    return space["Mine"]()


def test_code_that_only_a_notebook_knows_counts_too():
    one, same, other = (notebook(body) for body in ("super().steps(round)", "super().steps(round)", "()"))
    assert algorithm(one) == algorithm(same) != algorithm(other)
    assert own_code(one) == own_code(same) != own_code(other)
    assert own_code(one) != own_code(notebook("super().steps(round)", default=1))
    assert own_code(methods.get("fedavg")) is None


def test_only_a_folder_is_loaded():
    with pytest.raises(FedekdError, match="load takes the folder of a run, got None"):
        fedekd.load(None)
