"""--choose-rounds: a client ends with the model of its best round on validation rows, in its record and its file."""

from __future__ import annotations

import math

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedekd
from fedekd.data import federate
from fedekd.errors import FedekdError
from fedekd.export.predict import predict
from fedekd.runs import choosing, details, packing
from fedekd.runs.choosing import option
from fedekd.runs.runner import run
from fedekd.runs.saved_models import read_metadata
from fedekd.runs.store import read_records
from fedekd.runs.summary import as_html
from fedekd.settings import make_settings
from interruption import Stop
from repeats import numbers
from tiny import tiny_private, tiny_proxy

ROUNDS = 8
SETTINGS = {"clients": 3, "alpha": 0.5, "rounds": ROUNDS, "epochs": 1, "batch_size": 16, "lr": 0.1}
SETTINGS |= {"private": tiny_private, "proxy": tiny_proxy, "seeds": (1,), "choose_rounds": True}
NAMES = {"private": "tiny:tiny_private", "proxy": "tiny:tiny_proxy"}


def trained(dataset, out, **given):
    return fedekd.run(dataset, out=str(out), progress=False, **{**SETTINGS, **given}).records


def rounds_of(records):
    return [[client["chosen"]["round"] for client in record["clients"]] for record in records]


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_a_record_is_of_the_round_with_the_lowest_validation_loss(name, engine, request, tmp_path):
    dataset = request.getfixturevalue(name)
    records = trained(dataset, tmp_path / "chosen", methods=["fedekd", "fedavg-tuned"], engine=engine)
    plain = trained(dataset, tmp_path / "last", methods=["fedekd", "fedavg-tuned"], engine=engine, choose_rounds=False)
    assert any(at < ROUNDS for some in rounds_of(records) for at in some)
    for record, other in zip(records, plain, strict=True):
        assert record["params"]["choose_rounds"] is True
        for client, then in zip(record["clients"], other["clients"], strict=True):
            at, curve = client["chosen"]["round"], client["curve"]
            assert at == 1 + int(np.argmin(curve["val_loss"]))
            assert client["value"] == client["chosen"]["value"] == pytest.approx(curve["value"][at - 1], rel=1e-5)
            assert client["val_loss"] == client["chosen"]["val_loss"] == min(then["chosen"]["val_loss"], math.inf)
            assert client["rows"] == {"last": then["rows"].get("chosen", then["rows"]["last"])}
            assert client["curve"] == then["curve"]
            assert then["value"] == pytest.approx(curve["value"][-1], rel=1e-5)
        assert [c["local"] for c in record["clients"]] == [c["value"] for c in records[0]["clients"]]
        assert record["key"] != other["key"]


@pytest.fixture(scope="module", params=["serial", "stacked"])
def several(request, tmp_path_factory, digits):
    """Records by method, and their folder."""
    out = tmp_path_factory.mktemp(request.param)
    records = trained(digits, out, methods=["fedekd", "fedavg-tuned", "apfl", "knnper"], engine=request.param)
    return {record["method"]: record for record in records}, out


@pytest.mark.parametrize("method", ["local", "fedekd", "fedavg-tuned", "apfl", "knnper"])
def test_the_kept_model_gives_the_answers_of_the_record(digits, several, tmp_path, method):
    record, out = several[0][method], several[1]
    federation = federate(digits, clients=3, alpha=0.5, seed=1)
    confusion = details.read(out)[record["key"]]["confusion"]
    assert any(at < ROUNDS for at in rounds_of([record])[0])
    for position, (client, split) in enumerate(zip(record["clients"], federation.clients, strict=True)):
        np.savez(tmp_path / "rows.npz", x=digits.x[split.test])
        path = out / "models" / record["key"] / f"{position}.safetensors"
        right = predict(path, tmp_path / "rows.npz", **NAMES).values.argmax(1) == digits.y[split.test]
        known = packing.unpack(client["rows"]["last"], client["n_test"], "accuracy").astype(bool)
        assert (right == known).all()
        assert right.mean() == pytest.approx(client["value"])
        assert np.trace(confusion[position]) == known.sum()


@pytest.mark.parametrize(("method", "engine"), [("local", "serial"), ("fedavg-tuned", "serial"), ("fedavg", "stacked")])
def test_without_it_the_kept_model_is_of_the_round_that_verdicts_take(digits, tmp_path, monkeypatch, method, engine):
    """A record tells of the last round; verdicts, and what is exported, of an earlier one that is clearly better."""
    monkeypatch.setattr(choosing, "_clearly_better", lambda *_: True)
    record = trained(digits, tmp_path, methods=[method], engine=engine, choose_rounds=False)[-1]
    confusion = details.read(tmp_path)[record["key"]]["confusion"]
    federation, rounds = federate(digits, clients=3, alpha=0.5, seed=1), []
    for position, (client, split) in enumerate(zip(record["clients"], federation.clients, strict=True)):
        taken = option(record, position)
        np.savez(tmp_path / "rows.npz", x=digits.x[split.test])
        path = tmp_path / "models" / record["key"] / f"{position}.safetensors"
        right = predict(path, tmp_path / "rows.npz", **NAMES).values.argmax(1) == digits.y[split.test]
        assert (right == taken.rows.astype(bool)).all()
        about = read_metadata(path).about
        assert (about["round"], about["rounds"], about["value_at_round"]) == (taken.round, ROUNDS, taken.value)
        assert (about["value"], about["delta"]) == (client["value"], client["delta"])
        assert np.trace(confusion[position]) / client["n_test"] == pytest.approx(client["value"])
        rounds.append(taken.round)
    assert min(rounds) < ROUNDS


def test_engines_choose_alike(digits, tmp_path):
    methods = ["fedekd", "fedavg-tuned"]
    serial, stacked = (trained(digits, tmp_path / e, methods=methods, engine=e, lr=0.02) for e in ("serial", "stacked"))
    assert rounds_of(serial) == rounds_of(stacked)
    for one, other in zip(serial, stacked, strict=True):
        values = [[c["value"] for c in record["clients"]] for record in (one, other)]
        assert values[0] == pytest.approx(values[1], abs=0.05)


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_an_interrupted_choice_ends_with_the_same_bits(digits, tmp_path, engine):
    given = {**SETTINGS, "dataset": "digits", "methods": ["fedekd", "fedavg-tuned"], "engine": engine}
    whole = run(make_settings({**given, "out": str(tmp_path / "whole")}), dataset=digits).records
    settings = make_settings({**given, "out": str(tmp_path / "cut")})
    for after in (13, 11, 17, 14):
        with pytest.raises(KeyboardInterrupt):
            run(settings, Stop(after), digits)
    cut = run(settings, dataset=digits).records
    assert list(map(numbers, cut)) == list(map(numbers, whole))
    for record in whole:
        for position in range(3):
            files = [tmp_path / out / "models" / record["key"] / f"{position}.safetensors" for out in ("whole", "cut")]
            one, other = map(load_file, files)
            assert all((one[name] == other[name]).all() for name in one)


def test_a_client_without_validation_rows_keeps_the_last_round(tmp_path):
    """A share of the rows that leaves nobody any to validate on."""
    draw = np.random.default_rng(0)
    y = np.arange(60) % 2
    np.savez(tmp_path / "few.npz", x=draw.normal(size=(60, 3)) + y[:, None], y=y)
    given = {**SETTINGS, "clients": 2, "alpha": 10.0, "fraction": 0.05, "methods": ["fedavg"]}
    records = trained(str(tmp_path / "few.npz"), tmp_path / "out", **given)
    for client in (c for record in records for c in record["clients"] if not c["n_val"]):
        assert "chosen" not in client
    assert read_records(tmp_path / "out" / "results.jsonl") == records


def test_a_verdict_is_on_the_chosen_round(digits, tmp_path):
    records = trained(digits, tmp_path, methods=["fedavg"], choose_rounds=True)
    record = records[-1]
    for position, client in enumerate(record["clients"]):
        one = option(record, position)
        assert (one.round, one.value) == (client["chosen"]["round"], client["value"])
        assert one.rows.mean() == pytest.approx(client["value"])
    told = as_html(records)
    assert "minus Local, both after the round of the lowest validation loss" in told
    assert "Method and alone are each taken at the round of the lowest validation loss." in told
    assert "last round" not in told


def test_choosing_is_on_or_off():
    with pytest.raises(FedekdError, match="choose_rounds must be true or false"):
        make_settings({"choose_rounds": "yes"})
