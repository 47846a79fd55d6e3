"""What a run leaves for its report, and the models it keeps."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import astuple, dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from fedekd.data import load_dataset
from fedekd.errors import FedekdError
from fedekd.methods import Train
from fedekd.methods.fedekd import FedeKD
from fedekd.runs import details, saved_models
from fedekd.runs.observers import Observer
from fedekd.runs.runner import run
from fedekd.settings import make_settings
from tiny import tiny_private, tiny_proxy

SMALL = {"rounds": 3, "epochs": 1, "clients": 3, "alpha": 1.0, "private": tiny_private, "proxy": tiny_proxy}


def settings(out, **given):
    return make_settings({**SMALL, "dataset": "digits", "methods": "fedekd,fedavg", "out": str(out), **given})


class Heard(Observer):
    def __init__(self):
        self.rounds = []

    def on_round_measured(self, event):
        self.rounds.append(astuple(event))


@pytest.fixture(scope="module", params=["serial", "stacked"])
def finished(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    heard = Heard()
    result = run(settings(out, engine=request.param, thumbnails=True), heard)
    return out, {r["method"]: r for r in result.records}, heard


def test_every_round_is_measured_and_told(finished):
    out, records, heard = finished
    found = details.read(out)
    assert set(found) == {r["key"] for r in records.values()}
    for method, record in records.items():
        curve = found[record["key"]]["curve"]
        told = [entry for entry in heard.rounds if entry[0] == method]
        assert [entry[2] for entry in told] == [1, 2, 3]
        assert [list(entry[3].values()) for entry in told] == curve
        assert curve[-1] == [client["value"] for client in record["clients"]]
        assert all((entry[4] is not None) == (method == "fedekd") for entry in told)


def test_trust_of_the_clients_adds_up_to_that_of_the_record(finished):
    out, records, _ = finished
    record = records["fedekd"]
    trust = details.read(out)[record["key"]]["trust"]
    assert [entry["round"] for entry in trust] == [entry["round"] for entry in record["trust"]] == [1, 2, 3]
    for entry, whole in zip(trust, record["trust"], strict=True):
        assert "clients" not in whole
        assert np.sum([c["histogram"] for c in entry["clients"]], 0).tolist() == whole["histogram"]
        assert sum(sum(c["histogram"]) for c in entry["clients"]) == sum(c["n_train"] for c in record["clients"])
    assert details.read(out)[records["fedavg"]["key"]]["trust"] == []


def test_answers_by_class_add_up_to_the_result(finished):
    out, records, _ = finished
    for record in records.values():
        for matrix, client in zip(details.read(out)[record["key"]]["confusion"], record["clients"], strict=True):
            assert np.sum(matrix) == client["n_test"]
            assert np.trace(matrix) == pytest.approx(client["value"] * client["n_test"])


def test_calibration_counts_every_test_row_and_those_that_were_right(finished):
    out, records, _ = finished
    for record in records.values():
        kept = details.read(out)[record["key"]]["calibration"]
        for one, client in zip(kept, record["clients"], strict=True):
            assert sum(one["count"]) == client["n_test"]
            assert sum(one["right"]) == round(client["value"] * client["n_test"])
            held = [
                (k / 10, sure) for k, (count, sure) in enumerate(zip(one["count"], one["sure"], strict=True)) if count
            ]
            assert all(low - 1e-4 <= sure <= low + 0.1001 for low, sure in held)
            error = sum(abs(n * sure - right) for n, sure, right in zip(*one.values(), strict=True)) / client["n_test"]
            assert error == pytest.approx(client["scores"]["ece"], abs=0.05), "in ten bins here, and fifteen there"


def test_the_training_loss_is_kept_by_round_where_clients_train_one_by_one(finished, request):
    out, records, _ = finished
    for record in records.values():
        kept = details.read(out)[record["key"]].get("train_loss")
        if "stacked" in request.node.name:
            assert kept is None
            continue
        assert [len(losses) for losses in kept] == [3, 3, 3]
        if record["method"] == "local":
            assert np.mean(kept[-1]) < np.mean(kept[0])
            assert np.mean(kept[-1]) < np.mean([client["val_loss"] for client in record["clients"]])


def test_bytes_of_the_rounds_add_up(finished):
    out, records, _ = finished
    for record in records.values():
        found = details.read(out)[record["key"]]
        assert sum(r["up"] for r in found["exchange"]) == record["bytes_up"]
        assert sum(r["down"] for r in found["exchange"]) == record["bytes_down"]


def test_partition_counts_every_sample(finished):
    out, records, _ = finished
    found = details.read(out)[records["local"]["key"]]
    for row, client in zip(found["partition"], records["local"]["clients"], strict=True):
        assert sum(row["counts"]) == sum(client[n] for n in ("n_train", "n_val", "n_test"))


def test_doubted_samples_are_shown_with_what_the_models_say(finished):
    out, records, _ = finished
    digits = load_dataset("digits")
    shown = details.read(out)[records["fedekd"]["key"]]["distrusted"]
    assert len(shown) == details.DOUBTED
    weights = [one["trust"] for one in shown]
    assert weights == sorted(weights)
    assert weights[0] < 0.3
    for one in shown:
        assert one["label"] == str(digits.y[one["row"]])
        picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(one["image"]))))
        assert picture.shape == (8, 8)
        assert picture.argmax() == digits.x[one["row"]].argmax()


def test_reliability_covers_the_test_samples_in_order(finished):
    out, records, _ = finished
    found = details.read(out)[records["fedekd"]["key"]]["reliability"]
    assert sum(found["count"]) == sum(c["n_test"] for c in records["fedekd"]["clients"])
    assert found["energy"] == sorted(found["energy"])
    private = np.average(found["private"], weights=found["count"])
    right = sum(c["value"] * c["n_test"] for c in records["fedekd"]["clients"]) / sum(found["count"])
    assert private == pytest.approx(right)
    assert details.read(out)[records["local"]["key"]]["reliability"] is None


@dataclass(frozen=True)
class Swayed(FedeKD):
    """FedeKD that tunes its private model before it answers, and asks the proxy too"""

    name = "swayed"
    answers = ("private", "proxy")

    def personalise(self):
        return (Train(("private",), self.alone),)

    def predict(self, batch):
        return batch.outputs["private"] - 3 * batch.outputs["proxy"]


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_reliability_is_that_of_the_answers(tmp_path, engine):
    result = run(settings(tmp_path, engine=engine, methods=[Swayed()]))
    record = result.records[-1]
    found = details.read(tmp_path)[record["key"]]
    right = sum(c["value"] * c["n_test"] for c in record["clients"]) / sum(found["reliability"]["count"])
    assert np.average(found["reliability"]["private"], weights=found["reliability"]["count"]) == pytest.approx(right)
    confusion = np.sum(found["confusion"], 0)
    assert np.trace(confusion) / confusion.sum() == pytest.approx(right)
    names = [one["private"] for one in found["distrusted"]]
    assert set(names) <= set(found["classes"])
    assert {one["image"] for one in found["distrusted"]} == {None}  # for nobody has asked for thumbnails


def test_both_engines_leave_the_same(tmp_path):
    results = {}
    for engine in ("serial", "stacked"):
        result = run(settings(tmp_path / engine, engine=engine, methods="fedekd"))
        results[engine] = details.read(tmp_path / engine)[result.records[-1]["key"]]
    ours, theirs = results.values()
    assert ours["curve"] == pytest.approx(np.array(theirs["curve"]), abs=1e-4)
    assert ours["reliability"]["energy"] == pytest.approx(theirs["reliability"]["energy"], rel=1e-2)
    assert [one["row"] for one in ours["distrusted"][:5]] == [one["row"] for one in theirs["distrusted"][:5]]


def test_regression_speaks_in_the_users_units(tmp_path):
    result = run(settings(tmp_path, dataset="diabetes", methods="fedekd"))
    found = details.read(tmp_path)[result.records[-1]["key"]]
    assert found["classes"] == []
    assert len(found["edges"]) == 11
    assert all(25 <= one["label"] <= 346 and one["image"] is None for one in found["distrusted"])
    rmse = np.sqrt(np.average(np.square(found["reliability"]["private"]), weights=found["reliability"]["count"]))
    assert 20 < rmse < 400


def test_an_interrupted_run_leaves_the_same_details(tmp_path):
    class Stop(Observer):
        def on_round_measured(self, event):
            if (event.label, event.round) == ("fedekd", 3):
                raise KeyboardInterrupt

    whole, cut = settings(tmp_path / "whole", methods="fedekd"), settings(tmp_path / "cut", methods="fedekd")
    key = run(whole).records[-1]["key"]
    with pytest.raises(KeyboardInterrupt):
        run(cut, Stop())
    run(cut)
    assert details.read(tmp_path / "cut")[key] == details.read(tmp_path / "whole")[key]


# --- models --------------------------------------------------------------------------------------------------


def test_models_are_kept_with_what_it_takes_to_use_them(tmp_path):
    digits = load_dataset("digits")
    result = run(settings(tmp_path, methods="fedekd", seeds="0-1"))
    kept = saved_models.find_models(tmp_path)
    assert {one.about["seed"] for one in kept} == {0}
    assert len(kept) == 2 * 3
    record = next(r for r in result.records if r["method"] == "fedekd" and r["seed"] == 0)
    mine = [one for one in kept if one.about["key"] == record["key"]]
    for one, client in zip(mine, record["clients"], strict=True):
        assert one.about["delta"] == client["delta"]
        module = tiny_private((1, 8, 8), 10)
        module.load_state_dict({n: torch.from_numpy(t) for n, t in load_file(one.path).items()})
        gain, shift = (np.asarray(one.about[name], np.float32) for name in ("gain", "shift"))
        out = module(torch.from_numpy(digits.x.astype(np.float32) * gain + shift)).argmax(-1).numpy()
        assert (out == digits.y).mean() > 0.12


@pytest.mark.parametrize(("which", "seeds"), [("all", {0, 1}), ("none", set())])
def test_which_models_are_kept(tmp_path, which, seeds):
    run(settings(tmp_path, methods="fedekd", seeds="0-1", rounds=1, models=which))
    files = (tmp_path / "models").glob("*/*.safetensors")
    assert {saved_models.read_metadata(path).seed for path in files} == seeds


def test_a_corrupt_file_is_one_line(tmp_path):
    for path in (tmp_path / "details" / "k.json", tmp_path / "models" / "k" / "0.safetensors"):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\x08\0\0\0\0\0\0\0{oops")
    with pytest.raises(FedekdError, match=r"k\.json"):
        details.read(tmp_path)
    with pytest.raises(FedekdError, match=r"0\.safetensors"):
        saved_models.find_models(tmp_path)
    assert json.dumps(details.read(tmp_path / "nothing")) == "{}"


def test_only_the_details_that_are_asked_for_must_be_whole(finished):
    out, records, _ = finished
    key = records["fedekd"]["key"]
    for text in ("{", "[]", '{"key": 1}'):
        (out / "details" / "other.json").write_text(text)
        assert set(details.read(out, {key})) == {key}
        with pytest.raises(FedekdError, match=r"other\.json.*remove it to do without"):
            details.read(out)
    (out / "details" / "other.json").unlink()
