"""--metric: what Δ is taken in; every record carries all metrics of its task and the floor."""

from __future__ import annotations

import math
import re
from typing import get_args, get_type_hints

import numpy as np
import pytest
from sklearn import metrics as theirs

import fedekd
from fedekd import verdicts
from fedekd.cli import main
from fedekd.data import federate
from fedekd.errors import FedekdError
from fedekd.report.page import write_page
from fedekd.runs import answers
from fedekd.runs.records import Record
from fedekd.runs.store import read_records
from fedekd.runs.subgroups import by_subgroup
from fedekd.runs.transfer import analyse
from fedekd.scores import SCORES, of_task
from fedekd.units import GOOD, METRICS, Unit
from tiny import tiny_private, tiny_proxy

SETTINGS = {"clients": 3, "alpha": 1.0, "rounds": 3, "epochs": 1, "batch_size": 16, "lr": 0.01, "seeds": (1,)}
SETTINGS |= {"private": tiny_private, "proxy": tiny_proxy, "methods": ["fedavg"]}
BINARY = {"accuracy", "balanced_accuracy", "macro_f1", "auroc", "nll", "ece"}


def trained(dataset, out, **given):
    return fedekd.run(dataset, out=str(out), progress=False, **{**SETTINGS, **given}).records


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize(("name", "usual"), [("digits", "accuracy"), ("diabetes", "rmse")])
def test_every_record_has_all_scores_and_the_floor(name, usual, engine, request, tmp_path):
    dataset = request.getfixturevalue(name)
    federation = federate(dataset, clients=3, alpha=1.0, seed=1)
    for record in trained(dataset, tmp_path, engine=engine):
        for client, split in zip(record["clients"], federation.clients, strict=True):
            assert set(client["scores"]) == {score.name for score in of_task(record["task"])}
            assert client["scores"][usual] == pytest.approx(client["value"], rel=1e-5)
            test, train = dataset.y[split.test], dataset.y[split.train]
            if usual == "accuracy":
                assert client["floor"] == pytest.approx((test == np.bincount(train).argmax()).mean(), rel=1e-5)
            else:
                assert client["floor"] == pytest.approx(np.sqrt(((test - train.mean()) ** 2).mean()), rel=1e-5)


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize(
    ("name", "metric"),
    [("digits", "balanced_accuracy"), ("digits", "nll"), ("digits", "ece"), ("diabetes", "mae"), ("diabetes", "r2")],
)
def test_a_metric_is_what_the_record_is_in(name, metric, engine, request, tmp_path):
    dataset = request.getfixturevalue(name)
    usual = trained(dataset, tmp_path / "usual", engine=engine)
    records = trained(dataset, tmp_path / "other", engine=engine, metric=metric)
    higher = METRICS[metric].higher_is_better
    for record, other in zip(records, usual, strict=True):
        assert record["metric"] == metric
        assert record["key"] != other["key"]
        deltas = [client["delta"] for client in record["clients"]]
        assert record["worst_delta"] == (min if higher else max)(deltas)
        assert record["avg_delta"] == pytest.approx(np.mean(deltas))
        for position, (client, plain) in enumerate(zip(record["clients"], other["clients"], strict=True)):
            assert client["value"] == pytest.approx(plain["scores"][metric], rel=1e-5)
            assert client["scores"] == plain["scores"]
            assert client["val_loss"] == plain["val_loss"]
            assert client["curve"]["value"][-1] == pytest.approx(client["value"], rel=1e-5)
            assert client["chosen"]["round"] == plain["chosen"]["round"]
            last, chosen = (answers.read(tmp_path / "other", record["key"], position, c) for c in (False, True))
            assert SCORES[metric].of(last) == pytest.approx(client["value"], rel=1e-5)
            assert SCORES[metric].of(chosen) == pytest.approx(client["chosen"]["value"], rel=1e-5)
            assert "rows" not in client
    assert [c["local"] for c in records[1]["clients"]] == [c["value"] for c in records[0]["clients"]]
    assert read_records(tmp_path / "other" / "results.jsonl") == records
    assert METRICS[metric].title in write_page(tmp_path / "other").read_text()


def test_stored_answers_are_in_the_units_of_the_target(diabetes, tmp_path):
    record = trained(diabetes, tmp_path, metric="mae")[-1]
    federation = federate(diabetes, clients=3, alpha=1.0, seed=1)
    for position, (client, split) in enumerate(zip(record["clients"], federation.clients, strict=True)):
        rows = answers.read(tmp_path, record["key"], position)
        assert rows[:, 0] == pytest.approx(diabetes.y[split.test], rel=1e-4)
        assert client["value"] == pytest.approx(theirs.mean_absolute_error(*rows.T), rel=1e-5)


def test_a_chosen_round_is_of_the_metric_too(digits, tmp_path):
    record = trained(digits, tmp_path, metric="nll", choose_rounds=True, lr=0.05, rounds=6)[-1]
    assert any(client["chosen"]["round"] < 6 for client in record["clients"])
    for position, client in enumerate(record["clients"]):
        assert client["value"] == client["chosen"]["value"]
        assert client["scores"]["nll"] == pytest.approx(client["value"], rel=1e-5)
        assert SCORES["nll"].of(answers.read(tmp_path, record["key"], position)) == pytest.approx(client["value"])


@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_the_usual_metric_by_its_name_is_the_same_run(name, request, tmp_path):
    dataset = request.getfixturevalue(name)
    usual = {"digits": "accuracy", "diabetes": "rmse"}[name]
    first = trained(dataset, tmp_path, rounds=1)
    assert trained(dataset, tmp_path, rounds=1, metric=usual) == first


@pytest.fixture
def one_sided(tmp_path):
    """A site whose rows are all of one class, beside one that has both."""
    draw = np.random.default_rng(0)
    y = np.r_[np.zeros(60, int), np.arange(60) % 2]
    x = draw.normal(size=(120, 3)) + y[:, None]
    np.savez(tmp_path / "sites.npz", x=x, y=y, client=np.repeat(["one", "both"], 60))
    return str(tmp_path / "sites.npz")


def test_a_metric_that_is_not_defined_is_nan_there_and_left_out_of_the_mean(one_sided, tmp_path):
    records = trained(one_sided, tmp_path / "out", metric="auroc")
    for record in records:
        by_name = {client["id"]: client for client in record["clients"]}
        assert math.isnan(by_name["one"]["value"])
        assert math.isnan(by_name["one"]["delta"])
        assert by_name["one"]["scores"]["auroc"] is None
        assert by_name["one"]["floor"] is None
        assert by_name["both"]["floor"] == 0.5
        assert record["mean"] == by_name["both"]["value"]
        assert record["avg_delta"] == by_name["both"]["delta"]
    assert len(read_records(tmp_path / "out" / "results.jsonl")) == 2
    (method,) = analyse(records, tmp_path / "out")
    one = next(client for client in method.clients if client.client == "one")
    assert one.verdict.state == verdicts.UNDECIDED
    assert one.verdict.reason == "the metric is not defined on these test rows"
    assert method.summary["gain"]["mean"] == pytest.approx(records[-1]["avg_delta"])


def test_the_command_goes_through_with_a_metric_that_is_not_defined(one_sided, tmp_path, capsys):
    line = f"run --dataset {one_sided} --methods fedavg --rounds 1 --metric auroc --out {tmp_path / 'out'} --quiet"
    assert main(line.split()) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "one: undecided: the metric is not defined on these test rows" in said
    assert "nan" not in said


def test_terminal_page_tables_and_card_are_in_the_metric(tmp_path, capsys):
    out = tmp_path / "out"
    line = "run --dataset heart --methods fedavg --rounds 2 --metric auroc --subgroups sex --quiet --no-report --out"
    assert main([*line.split(), str(out)]) == 0
    said = capsys.readouterr().out
    result = fedekd.load(out)
    (method,) = result.transfer
    for position, client in enumerate(method.clients):
        rows = [answers.read(out, record["key"], position) for record in result.records]
        alone, joined = (theirs.roc_auc_score(own[:, 0], own[:, 2]) for own in rows)
        assert client.verdict.state in verdicts.STATES
        assert client.verdict.difference == pytest.approx(joined - alone)
        assert client.verdict.low <= client.parts["gain"] <= client.verdict.high
    (subgroups,) = by_subgroup(result.records, out)
    assert main(["table", str(out)]) == 0
    tables = capsys.readouterr().out
    assert main(["export", str(out), "--client", "Hungary", "--to", str(tmp_path / "model.safetensors")]) == 0
    capsys.readouterr()
    page = write_page(out).read_text().replace("\u00a0", " ")
    card = (tmp_path / "model.card.md").read_text()
    for text in (said, page, tables, card):
        assert "AUROC" in text
        assert "accuracy" not in text.replace("balanced_accuracy", "")
        assert "Test rows are assumed independent" in " ".join(text.split())
        assert subgroups.told.replace("-", "−" if text is page else "-").lower() in text.lower()
    for text in (said, card):
        assert all(" ".join(row[:3]) in re.sub(r"[\s|]+", " ", text) for row in subgroups.cells())


def test_without_its_folder_a_record_in_another_metric_has_no_verdict(digits, tmp_path):
    records = trained(digits, tmp_path, metric="nll", rounds=1)
    (method,) = analyse(records)
    assert not method.states
    assert all(client.verdict is None for client in method.clients)
    assert method.summary["delta"]["mean"] == pytest.approx(records[-1]["avg_delta"])
    (judged,) = analyse(records, tmp_path)
    assert sum(judged.states.values()) == 3


def test_the_margin_is_in_points_of_shares_and_in_proportion_to_errors(digits, tmp_path):
    for metric, margin in (("ece", 0.02), ("nll", None)):
        records = trained(digits, tmp_path, metric=metric, rounds=1)
        (method,) = analyse(records, tmp_path)
        for client in method.clients:
            assert client.verdict.margin == pytest.approx(margin or 0.02 * client.alone[0].value)


@pytest.mark.parametrize(("name", "metric"), [("digits", "mae"), ("diabetes", "auroc"), ("digits", "f2")])
def test_a_metric_of_another_task_is_refused(name, metric, request, tmp_path):
    with pytest.raises(FedekdError, match="unknown metric"):
        trained(request.getfixturevalue(name), tmp_path, metric=metric)


def test_each_metric_is_known_in_every_place():
    assert list(SCORES) == list(METRICS) == list(get_args(get_type_hints(Record)["metric"]))
    assert {score.name for score in of_task("classification")} == BINARY
    for name in METRICS:
        unit = Unit(name, 1)
        assert unit.name == METRICS[name].title
        assert unit.harm(0.1) == (-0.1 if METRICS[name].higher_is_better else 0.1)


def test_shares_are_written_in_percent_and_others_as_they_are():
    assert Unit("auroc", 1).value(0.912) == "91.2"
    assert Unit("ece", 1).delta(-0.02) == "−2.0"
    assert Unit("ece", 1).style(-0.02) == GOOD
    assert Unit("r2", 3).value(0.5) == "0.500"
    assert Unit("r2", 3).style(0.1) == GOOD
    assert Unit("nll", 2).amount(0.25) == "0.25"
    assert Unit("of another version", 1).name == "OF ANOTHER VERSION"
