"""Runs: records hold what they promise, interruption loses nothing, the same seed gives the same bits."""

from __future__ import annotations

import importlib
import json
import linecache
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import fedekd
from fedekd import methods
from fedekd.cli import main
from fedekd.data import federate
from fedekd.engines.job import bf16_warning
from fedekd.engines.serial import Serial
from fedekd.errors import FedekdError
from fedekd.export.predict import predict
from fedekd.runs import execution
from fedekd.runs.plan import choose_methods, left_out, plan
from fedekd.runs.runner import run
from fedekd.runs.saved_models import read_metadata
from fedekd.runs.store import read_records
from fedekd.settings import NEWER, make_settings
from interruption import Stop
from lines import Notes
from repeats import numbers
from tiny import tiny_private, tiny_proxy

KEYS = """dataset alpha seed method params task metric clients avg_delta worst_delta tail_delta mean worst
bytes_up bytes_down seconds partition versions""".split()  # noqa: SIM905
OF_CLIENTS = ("val", "val_loss", "val_error", "chosen", "curve", "rows", "scores", "floor")
CLIENT = ("id", "model", "n_train", "n_val", "n_test", "local", "value", "delta")
SMALL = {"clients": 3, "alpha": 0.5, "rounds": 2, "epochs": 1, "batch_size": 16, "private": tiny_private}
SMALL |= {"proxy": tiny_proxy, "lr": 1e-3}


def small(dataset, out, **more):
    return fedekd.run(dataset, out=str(out), progress=False, **{**SMALL, **more})


def test_a_record_has_every_promised_key(digits, tmp_path):
    result = small(digits, tmp_path, methods=["fedekd", "fedavg"])
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["method"] for line in lines] == ["local", "fedekd", "fedavg"]
    for record in map(json.loads, lines):
        assert set(KEYS) <= set(record)
        for client in record["clients"]:
            assert set(client) == {*CLIENT, *OF_CLIENTS}
            assert client["delta"] == client["value"] - client["local"]
    local, fedekd_, fedavg = result.records
    assert all(c["delta"] == 0 for c in local["clients"])
    assert [c["local"] for c in fedekd_["clients"]] == [c["value"] for c in local["clients"]]
    assert (local["bytes_up"], local["bytes_down"]) == (0, 0)
    assert fedavg["bytes_up"] == 2 * 3 * 4 * sum(w.numel() for w in tiny_private((1, 8, 8), 10).parameters())
    assert fedekd_["bytes_up"] == 2 * 3 * 4 * sum(w.numel() for w in tiny_proxy((1, 8, 8), 10).parameters())
    assert [t["round"] for t in fedekd_["trust"]] == [1, 2]
    assert all(sum(t["histogram"]) == sum(c["n_train"] for c in local["clients"]) for t in fedekd_["trust"])


def test_regression_looks_to_the_upper_tail(diabetes, tmp_path):
    result = small(diabetes, tmp_path, methods="paper")
    assert {r["method"] for r in result.records} == {
        "local",
        "fedekd",
        "fedavg",
        "fedprox",
        "feddyn",
        "fml",
        "constant",
    }
    for record in result.records:
        deltas = [c["delta"] for c in record["clients"]]
        assert record["worst_delta"] == max(deltas)
        assert record["worst"] == max(c["value"] for c in record["clients"])
        assert record["tail_delta"] == pytest.approx(np.percentile(deltas, 90))
        assert np.isfinite(deltas).all()


def test_the_constant_predictor_is_the_training_mean(diabetes, tmp_path):
    result = small(diabetes, tmp_path, methods=["constant"])
    federation = plan(make_settings({"dataset": "diabetes", "out": str(tmp_path), **SMALL}), diabetes)[0].job.federation
    for client, split in zip(result.records[1]["clients"], federation.clients, strict=True):
        error = diabetes.y[split.test] - diabetes.y[split.train].mean()
        assert client["value"] == pytest.approx(float(np.sqrt((error**2).mean())), rel=1e-5)


def test_finished_runs_are_not_repeated_and_new_settings_are_new_runs(digits, tmp_path):
    first = small(digits, tmp_path, methods=["fedavg"])
    again = small(digits, tmp_path, methods=["fedavg", "fml"])
    assert again.records[:2] == first.records
    small(digits, tmp_path, methods=["fedavg"], lr=2e-3)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 5


def test_the_same_seed_gives_the_same_bits(digits, tmp_path):
    a, b = (small(digits, tmp_path / name, methods="paper") for name in "ab")
    assert list(map(numbers, a.records)) == list(map(numbers, b.records))


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("name", ["fedekd", "feddyn", "fedtype", "fedekd-feature"])
def test_an_interrupted_run_ends_with_the_same_bits(digits, tmp_path, name, engine):
    given = {**SMALL, "dataset": "digits", "methods": [name], "rounds": 3, "engine": engine}
    whole = run(make_settings({**given, "out": str(tmp_path / "whole")}), dataset=digits)
    settings = make_settings({**given, "out": str(tmp_path / "cut")})
    for after in (8, 5, 7):  # each time somewhere else
        with pytest.raises(KeyboardInterrupt):
            run(settings, Stop(after), digits)
    cut = run(settings, dataset=digits)
    assert list(map(numbers, cut.records)) == list(map(numbers, whole.records))
    assert not list((tmp_path / "cut").glob("checkpoints/*"))


def test_a_killed_command_goes_on(tmp_path):
    small = ["--dataset", "heart", "--rounds", "15", "--epochs", "1", "--methods", "fedekd"]
    command = ["run", *small, "--quiet", "--no-report", "--out"]
    cut, env = tmp_path / "cut", {**os.environ, "OMP_NUM_THREADS": "1"}
    longer = [*command, str(cut), "--seeds", "0-9", "--workers", "1"]  # it cannot end first; seed 0 is as without them
    process = subprocess.Popen([sys.executable, "-m", "fedekd", *longer], env=env, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(cut.glob("checkpoints/*.pt")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was in the middle"
    for out in (cut, tmp_path / "whole"):
        assert main([*command, str(out)]) == 0
    found = (fedekd.load(tmp_path / name).records for name in ("cut", "whole"))
    cut_, whole = ([numbers(r) for r in records if r["seed"] == 0] for records in found)
    assert [r["method"] for r in whole] == ["local", "fedekd"]
    assert cut_ == whole


@dataclass(frozen=True)
class Own(methods.Method):
    """A user's method passed as an object"""

    strength: float = 0.5

    def steps(self, round):
        return methods.Train(("private",), self.loss), methods.Exchange("private")

    def loss(self, batch):
        return self.strength * batch.supervised("private")


def test_a_method_may_be_an_object_and_a_model_a_function_of_the_client(digits, tmp_path):
    def private(shape, outputs, client):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 4 + client), nn.Linear(4 + client, outputs))

    result = small(digits, tmp_path, methods=[Own(0.1)])
    assert [r["method"] for r in result.records] == ["local", "own"]
    mixed = small(digits, tmp_path, methods=["fedekd"], private=private)
    assert np.isfinite(mixed.records[1]["avg_delta"])
    sizes = [65 * wide + 10 * (wide + 1) for wide in (4, 5, 6)]
    assert [c["model"] for c in mixed.records[1]["clients"]] == [f"Sequential ({size:,} weights)" for size in sizes]
    with pytest.raises(FedekdError, match="averaged but client"):
        small(digits, tmp_path, methods=["fedavg"], private=private)


def test_each_configuration_of_a_method_given_as_an_object_runs_under_its_own_label(digits, tmp_path):
    given = [Own(0.1), Own(), Own(0.1), Own(1.0)]
    result = small(digits, tmp_path, methods=given, alone="menu", epochs=1)
    labels = [r["label"] for r in result.records if r["method"].startswith("own")]
    own = ["own (strength=0.1)", "own", "own (strength=1.0)"]
    assert sorted(labels) == sorted([*own, *(label.replace("own", "own@alone") for label in own)])
    assert len({r["key"] for r in result.records}) == len(result.records)
    assert [r["label"] for r in small(digits, tmp_path, methods=[Own], epochs=1).records] == ["local", "own"]
    with pytest.raises(FedekdError, match="takes names and instances of Method, got 3"):
        small(digits, tmp_path, methods=[3])


def test_result_tables(digits, tmp_path):
    result = small(digits, tmp_path, methods=["fedavg"], seeds=[0, 1])
    assert repr(result) == f"<4 runs in {tmp_path}: digits; local, fedavg>"
    frame = result.to_frame()
    assert len(frame) == 2 * 2 * 3
    assert frame["scores.auroc"].between(0, 1).all()
    assert (frame["params.lr"] == result.records[0]["params"]["lr"]).all()
    assert {"dataset", "alpha", "seed", "method", "id", "local", "value", "delta"} <= set(frame.columns)
    row = result.summary[1]
    assert row["method"] == "fedavg"
    assert row["avg_delta"]["mean"] == pytest.approx(np.mean([r["avg_delta"] for r in result.records[1::2]]))
    low, high = row["avg_delta"]["interval"]
    assert low <= row["avg_delta"]["mean"] <= high
    assert fedekd.load(tmp_path).records == result.records


def test_a_diverging_client_is_named(digits, tmp_path):
    with pytest.raises(FedekdError, match="diverged"):
        small(digits, tmp_path, methods=["fedavg"], lr=1e30)


@dataclass(frozen=True)
class Broken(methods.Method):
    """A server that gives NaN"""

    name = "broken"

    def steps(self, round):
        return methods.Train(("private",), lambda batch: batch.supervised("private")), methods.Exchange("private", nan)


def nan(uploads):
    return {name: math.nan * w for name, w in uploads.mean().items()}, {}


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_a_server_that_gives_nan_is_named(digits, diabetes, tmp_path, engine):
    for dataset in (digits, diabetes):
        with pytest.raises(FedekdError, match=r"broken: client \w+ predicts NaN after round 1; look at"):
            small(dataset, tmp_path, methods=[Broken()], engine=engine)


def test_unknown_parameters_and_tasks_are_refused(digits, diabetes, tmp_path):
    for dataset, given, text in (
        (digits, {"methods": ["fedprox"], "parameters": {"fedprox": {"nu": 1}}}, "did you mean 'mu'"),
        (
            digits,
            {"methods": ["fedavg"], "parameters": {"fedprox": {"mu": 1}}},
            "not among the methods of the run: fedavg,",
        ),
        (digits, {"methods": ["fedekd"], "beta": 0}, "beta must be > 0"),
        (digits, {"methods": ["fedekd"], "lambda_kd": -1}, "lambda_kd must be >= 0"),
        (digits, {"methods": ["fedekd"], "energy": "entropi"}, "did you mean 'entropy'"),
        (diabetes, {"methods": ["fedekd"], "energy": "entropy"}, "not defined for regression"),
        (diabetes, {"methods": ["fedtype"]}, "defined for classification"),
        (digits, {"methods": ["constant"]}, "defined for regression"),
        (digits, {"methods": ["fedekd"], "device": "cuda:0"}, "not available"),
        (digits, {"methods": ["fedekd"], "precision": "tf32"}, "NVIDIA"),
    ):
        if "device" in given and torch.cuda.is_available():
            continue
        with pytest.raises(FedekdError, match=text):
            small(dataset, tmp_path, **given)


def test_groups_hold_what_fits_the_task():
    names = [c.name for c in choose_methods(make_settings({"methods": "paper,controls,energies"}), "classification")]
    assert names[0] == "local"
    assert {"fedtype", "fedtype-prox", "fedekd-half", "fedekd-lse"} <= set(names)
    assert "constant" not in names


@pytest.fixture
def public_methods(monkeypatch):
    """A small registry with two methods that need public rows, the second with their labels."""
    monkeypatch.setattr(methods, "_REGISTRY", {name: methods.get(name) for name in ("local", "fedavg")})
    for name, needs in (("needy", "rows"), ("needier", "labels")):
        kind = type(name.title(), (type(methods.get("local")),), {"__doc__": "Needs public rows", "public": needs})
        methods.register(name, family="distillation")(dataclass(frozen=True)(kind))


@pytest.mark.usefixtures("public_methods")
def test_a_group_leaves_out_what_lacks_public_rows_and_says_so(digits, tmp_path):
    def asked(**given):
        watching = Notes()
        settings = make_settings({**SMALL, "dataset": "digits", "out": str(tmp_path), "rounds": 1, **given})
        names = {record["method"] for record in run(settings, watching, digits).records}
        return names & {"needy", "needier"}, [line for line in watching.lines if "public" in line]

    assert asked(methods="all") == (set(), ["needier, needy need public rows (--public 0.1): left out"])
    assert asked(methods="fedavg") == (set(), [])
    assert asked(methods="needy,needier", public=0.2) == ({"needy", "needier"}, [])
    with pytest.raises(FedekdError, match="method 'needy' needs public rows"):
        asked(methods="distillation,needy")


@pytest.mark.usefixtures("public_methods")
def test_labels_of_public_rows_are_another_need(digits):
    settings = make_settings({"methods": "distillation,fedavg"})
    bare = federate(digits, clients=3, partition="iid", public=0.1)
    unlabelled = replace(bare, public_labelled=False)
    assert {c.name for c in choose_methods(settings, "classification", "rows")} & {"needy", "needier"} == {"needy"}
    assert left_out(settings, unlabelled) == "needier needs public rows with labels: left out"
    assert left_out(settings, bare) == ""


def test_batch_norm_buffers_travel(digits, tmp_path):
    def private(shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, outputs))

    settings = make_settings(
        {**SMALL, "dataset": "digits", "methods": ["fedavg"], "private": private, "out": str(tmp_path)}
    )
    engine = Serial(plan(settings, digits)[1].job)
    engine.round()
    means = [client.models["private"][1].running_mean for client in engine.clients]
    assert all(torch.equal(m, means[0]) for m in means)
    assert means[0].abs().sum() > 0


@pytest.mark.parametrize("what", ["details", "models"])
def test_a_run_whose_details_cannot_be_written_is_kept(digits, tmp_path, what):
    (tmp_path / what).write_text("in the way")
    settings, notes = (
        make_settings({**SMALL, "dataset": "digits", "methods": ["fedavg"], "out": str(tmp_path)}),
        Notes(),
    )
    assert len(run(settings, notes, digits).records) == 2
    assert [line.partition(":")[0] for line in notes.lines] == ["local", "fedavg"]
    assert all(f"cannot write {tmp_path / what}" in line for line in notes.lines)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


@dataclass(frozen=True)
class Forgetful(methods.Method):
    """Forgets to exchange"""

    name = "forgetful"

    def steps(self, round):
        return (methods.Train(("private",), lambda batch: batch.supervised("private")),)


def test_an_own_method_that_exchanges_nothing_is_said_to_train_alone(digits, tmp_path):
    given = {**SMALL, "dataset": "digits", "methods": [Forgetful(), Own(), "local-smooth"], "out": str(tmp_path)}
    notes = Notes()
    run(make_settings(given), notes, digits)
    assert notes.lines == ["forgetful: its steps have no Exchange, so this is training alone and gets no verdict"]


@pytest.mark.parametrize(("flags", "lines"), [("avx2 avx512f", 1), ("avx2 avx512_bf16", 0), (None, 0)])
def test_bf16_on_a_cpu_without_it_is_said_to_be_slow(digits, tmp_path, monkeypatch, flags, lines):
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr("fedekd.engines.job.CPUINFO", cpuinfo)
    if flags:
        cpuinfo.write_text(f"flags\t\t: fpu sse2 {flags}\n")
    given = {**SMALL, "dataset": "digits", "methods": ["fedavg"], "out": str(tmp_path), "precision": "bf16"}
    notes = Notes()
    run(make_settings(given), notes, digits)
    slow = "this CPU has no bf16 instructions: bf16 is emulated here, often many times slower than fp32"
    assert notes.lines == [slow] * lines
    assert bf16_warning("fp32", "cpu") == bf16_warning("bf16", "cuda") == ""


def test_a_checkpoint_of_the_other_engine_is_started_anew(digits, tmp_path):
    given = {**SMALL, "dataset": "digits", "methods": ["fedekd"], "rounds": 3}
    whole = run(make_settings({**given, "out": str(tmp_path / "whole")}), dataset=digits)
    with pytest.raises(KeyboardInterrupt):
        run(make_settings({**given, "engine": "stacked", "out": str(tmp_path / "cut")}), Stop(16), digits)
    (checkpoint,) = (tmp_path / "cut").glob("checkpoints/*.pt")
    old = torch.load(checkpoint, weights_only=True)
    for saved in ({**old, "format": -1}, {**old, "engine": {}}, [1, 2], old):
        torch.save(saved, checkpoint)
        notes = Notes()
        if saved is not old:
            notes.on_client_trained = Stop(1).on_client_trained
            with pytest.raises(KeyboardInterrupt):
                run(make_settings({**given, "out": str(tmp_path / "cut")}), notes, digits)
        else:
            cut = run(make_settings({**given, "out": str(tmp_path / "cut")}), notes, digits)
        assert notes.lines == ["fedekd: starts anew, since its checkpoint is of another version or engine"]
    assert numbers(cut.records[1]) == numbers(whole.records[1])  # Local was trained by the other engine


def flat(shape, outputs, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, outputs))


def test_another_model_under_the_same_name_is_another_run(digits, tmp_path):
    given = {"methods": ["fedekd"], "log_to": "none"}
    makers = [partial(flat, width=4), partial(flat, width=5), lambda *s: flat(*s, 4), lambda *s: flat(*s, 5)]
    for _ in range(2):
        for make in makers:
            small(digits, tmp_path, private=make, **given)
        assert len({r["key"] for r in read_records(tmp_path / "results.jsonl")}) == 8


def test_a_run_that_two_processes_did_counts_once(digits, tmp_path):
    small(digits, tmp_path, methods=["fedavg"])
    lines = (tmp_path / "results.jsonl").read_text()
    (tmp_path / "results.jsonl").write_text(lines + lines)
    assert [len(row["seeds"]) for row in fedekd.load(tmp_path).summary] == [1, 1]
    (tmp_path / "results.jsonl").write_text(lines + "{}\n")
    with pytest.raises(FedekdError, match="is not a record"):
        fedekd.load(tmp_path)


@dataclass(frozen=True)
class Majority(methods.Method):
    """Trains a proxy for others to look at, and answers with the client's commonest class"""

    name = "majority"
    roles = answers = ("proxy",)

    def steps(self, round):
        return methods.Train(("proxy",), lambda batch: batch.supervised("proxy")), methods.Exchange("proxy")

    def predict(self, batch):
        return nn.functional.one_hot(batch.counts.argmax(), 10).expand(batch.outputs["proxy"].shape).float()


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_a_method_without_a_private_model_leaves_what_it_answers_with(digits, tmp_path, engine):
    result = small(digits, tmp_path, methods=[Majority()], engine=engine)
    record = result.records[1]
    assert record["bytes_up"] > 0
    kept = sorted((tmp_path / "models" / record["key"]).iterdir())
    assert len(kept) == len(record["clients"])
    np.savez(tmp_path / "rows.npz", x=digits.x)
    code = {"proxy": "tiny:tiny_proxy", "method": f"{__name__}:Majority"}
    for path in kept:
        assert (predict(path, tmp_path / "rows.npz", **code).values.argmax(1) == majority_of(path)).all()


def majority_of(path):
    return int(np.argmax(read_metadata(path).answers.counts))


def test_a_method_without_a_model_leaves_none(diabetes, tmp_path):
    result = small(diabetes, tmp_path, methods=["constant"])
    assert not (tmp_path / "models" / result.records[1]["key"]).exists()


CODE = """
from dataclasses import asdict, dataclass, replace
from fedekd.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Own(FedAvg):
    def begin(self, client):
        return {}
"""


EXTENDED = (
    CODE.replace("Own(", "Basis(")
    + """
class Own(Basis):
    pass
"""
)


@pytest.mark.parametrize("code", [CODE, EXTENDED])
def test_a_method_whose_code_has_changed_is_another_run(digits, tmp_path, monkeypatch, code):
    monkeypatch.syspath_prepend(tmp_path)
    keys = []
    for text in (code, code, code.replace("{}", "{'seen': 1}")):
        (tmp_path / "ownmethod.py").write_text(text)
        monkeypatch.delitem(sys.modules, "ownmethod", raising=False)
        importlib.invalidate_caches()
        linecache.clearcache()
        settings = make_settings({**SMALL, "dataset": "digits", "methods": ["ownmethod:Own"], "out": str(tmp_path)})
        keys.append([run.key for run in plan(settings, digits)])
    assert keys[0] == keys[1]
    assert keys[0][0] == keys[2][0]
    assert keys[0][1] != keys[2][1]


def test_the_keys_of_kept_runs_stay_as_they_are():
    """A key that changes orphans every folder that holds a run under the old one."""
    keys = {run.label: run.key for run in plan(make_settings({"dataset": "digits"}))}
    assert keys == {"local": "7381b9176187ea4e", "fedekd": "bb142a62dd7f6c39", "fedavg": "d9bc41805ae25ae2"}


NEWER_VALUES = {
    "participation": (1, 0.5, 0.25),
    "weight_decay": (0, 0.01, 0.1),
    "lr_schedule": ("constant", "cosine"),
    "augment": ("none", "flip-crop"),
    "choose_rounds": (False, True),
    "metric": (None, "auroc", "nll"),
    "measure_every": (1, 2, 3),
    "combine": ("mean", "median", "krum"),
}


@pytest.mark.parametrize("name", NEWER)
def test_a_newer_setting_counts_in_a_key_only_where_it_is_not_at_its_default(digits, name):
    def keys(**given):
        runs = plan(make_settings({**SMALL, "dataset": "digits", "methods": "local", **given}), digits)
        assert all(getattr(run.job.training, key) == value for run in runs for key, value in given.items())
        return [run.key for run in runs]

    default, *others = NEWER_VALUES[name]
    assert keys() == keys(**{name: default})
    assert len({*keys(), *(key for value in others for key in keys(**{name: value}))}) == 1 + len(others)


def test_a_fraction_is_another_run_and_all_of_the_rows_the_same(digits):
    def keys(**given):
        return [run.key for run in plan(make_settings({**SMALL, "dataset": "digits", **given}), digits)]

    assert keys() == keys(fraction=1) == keys(fraction=1.0)
    assert not set(keys()) & set(keys(fraction=0.5))


@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_a_split_seed_gives_all_seeds_the_same_rows_and_other_weights(name, tmp_path):
    given = {**SMALL, "dataset": name, "seeds": "3-4", "methods": "fedavg", "alpha": 1.0}
    fixed = plan(make_settings({**given, "split_seed": 3}))
    apart = plan(make_settings(given))
    rows = [[part.tolist() for own in run.job.federation.clients for part in vars(own).values()] for run in fixed]
    assert all(one == rows[0] for one in rows)
    assert [run.job.seed for run in fixed] == [3, 3, 4, 4]
    assert not {run.key for run in fixed} & {run.key for run in apart}
    assert len({run.key for run in fixed}) == 4
    assert {run.job.federation.partition["seed"] for run in fixed} == {3}
    assert [run.job.federation.partition.get("fixed") for run in apart] == [None] * 4
    same = fixed[0].job.federation.partition["fingerprint"]
    assert [run.job.federation.partition["fingerprint"] == same for run in apart] == [True, True, False, False]

    if name == "digits":
        first, second = (Serial(run.job).clients[0].weights("private") for run in (fixed[0], fixed[2]))
        assert not any(torch.equal(first[n], second[n]) for n in first)


def test_seeds_on_one_split_are_recorded_as_such(digits, tmp_path):
    records = small(digits, tmp_path, seeds="0-1", methods="fedavg", split_seed=5).records
    assert [(r["seed"], r["partition"]["seed"], r["partition"]["fixed"]) for r in records] == [
        (0, 5, True), (0, 5, True), (1, 5, True), (1, 5, True),
    ]  # fmt: skip
    assert len(fedekd.load(tmp_path).summary) == 2


def test_public_rows_are_set_aside_for_every_method(digits, tmp_path):
    given = {**SMALL, "dataset": "digits", "seeds": "0-1"}
    np.savez(tmp_path / "open.npz", x=digits.x[:5])
    np.savez(tmp_path / "more.npz", x=digits.x[:6])
    files = [str(tmp_path / name) for name in ("open.npz", "more.npz")]
    keys = set()
    for public in (None, 0.1, "0.1", "0.10", 0.2, *files):
        runs = plan(make_settings({**given, "public": public}), digits)
        keys |= {run.key for run in runs}
        assert len({id(run.job.federation.dataset) for run in runs}) == 1
        for seed in (0, 1):
            federations = [run.job.federation for run in runs if run.job.seed == seed]
            assert all(one is federations[0] for one in federations)  # Local among them
    assert len(keys) == 5 * 6  # None, 0.1, 0.2 and the two files; two seeds of three methods


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_methods_without_a_use_for_a_file_of_public_rows_train_as_before(digits, tmp_path, engine):
    np.savez(tmp_path / "open.npz", x=digits.x[:5])
    public = str(tmp_path / "open.npz")
    alone, beside = (small(digits, tmp_path, methods=["fedavg"], engine=engine, public=p) for p in (None, public))
    assert [r["clients"] for r in alone.records] == [r["clients"] for r in beside.records]
    assert [r["partition"].get("public", {}).get("rows") for r in (*alone.records, *beside.records)] == [None] * 2 + [
        5
    ] * 2


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_gpu_clients_are_stacked(monkeypatch, device):
    monkeypatch.setattr(execution, "pick_device", lambda name: torch.device(device))
    (planned,) = plan(make_settings({"dataset": "digits", "methods": ("local",)}))
    assert execution.stacks(planned, "auto") == (device == "cuda")
    assert execution.stacks(planned, "stacked")
    assert not execution.stacks(planned, "serial")
