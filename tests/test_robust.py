"""Robust combination: bad uploads among honest ones do not move the result, in simulations and, alike, at a server."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedekd.errors import FedekdError
from fedekd.exchange import Aggregator
from fedekd.methods.base import Exchange
from fedekd.robust import COMBINATIONS, LEAST, average, combination
from fedekd.runs.plan import plan
from fedekd.settings import CHOICES, make_settings

ROBUST = ["median", "trimmed", "krum"]
BAD = {"w": torch.full((6, 3), 1e3), "b": torch.full((2,), -1e3), "count": torch.tensor(99)}


def honest(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        {"w": 1 + 0.01 * torch.randn(6, 3, generator=generator), "b": torch.ones(2), "count": torch.tensor(k)}
        for k in range(count)
    ]


def stacked(messages):
    return {key: torch.stack([m[key] for m in messages]) for key in messages[0]}


def combined(name, messages):
    return combination(name)(stacked(messages), torch.full((len(messages),), 1 / len(messages)))


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("clients", [3, 4, 5, 6, 11])
def test_one_bad_client_is_outvoted(name, clients):
    messages = [*honest(clients - 1), BAD]
    found = combined(name, messages)
    assert list(found) == list(BAD)
    assert torch.allclose(found["w"], torch.ones(6, 3), atol=0.1)
    assert found["w"].dtype == torch.float32
    assert found["count"] == 0
    assert float(combined("mean", messages)["w"].mean()) > 50, "the mean would have been bent"


@pytest.mark.parametrize(("name", "stands"), [("median", True), ("krum", True), ("trimmed", False)])
def test_two_bad_of_six(name, stands):
    found = combined(name, [*honest(4), BAD, BAD])
    assert (float(found["w"].max()) < 2) == stands


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_of_too_few_nothing_is_left_out(name, clients):
    messages = honest(clients)
    if (name, clients) == ("krum", 2):
        assert torch.equal(combined(name, messages)["w"], messages[0]["w"])
    else:
        assert torch.equal(combined(name, messages)["w"], combined("mean", messages)["w"])
    assert clients < LEAST


def test_median_and_trimmed_are_what_they_say():
    for count in (5, 6):
        messages = honest(count)
        stack = torch.stack([m["w"] for m in messages]).numpy()
        assert np.array_equal(combined("median", messages)["w"], np.median(stack, axis=0))
        middle = np.sort(stack, axis=0)[1 : count - 1].mean(0)
        assert np.allclose(combined("trimmed", messages)["w"], middle, atol=1e-6)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("clients", [3, 4, 6, 9, 10])
def test_they_are_flowers_strategies(name, clients):
    pytest.importorskip("flwr", reason="pip install 'fedekd[flower]'")
    from flwr.app import Array, ArrayRecord, Metadata, MetricRecord, RecordDict
    from flwr.app.message import make_message
    from flwr.serverapp import strategy

    theirs = {
        "median": strategy.FedMedian(),
        "trimmed": strategy.FedTrimmedAvg(beta=max(0.2, (1 + 1e-9) / clients)),
        "krum": strategy.Krum(num_malicious_nodes=(clients - 3) // 2),
    }[name]
    generator = torch.Generator().manual_seed(clients)
    messages = [{"w": torch.randn(6, 3, generator=generator)} for _ in range(clients)]
    nowhere = Metadata(0, "", 0, 0, "", "", 0.0, 1.0, "train")
    replies = [
        make_message(
            metadata=nowhere,
            content=RecordDict(
                {"arrays": ArrayRecord({"w": Array(m["w"].numpy())}), "metrics": MetricRecord({"num-examples": 1})}
            ),
        )
        for m in messages
    ]
    found, _ = theirs.aggregate_train(0, replies)
    assert np.allclose(combined(name, messages)["w"], found["w"].numpy(), atol=1e-6)


def test_an_unknown_one():
    with pytest.raises(FedekdError, match="unknown combine 'mode'"):
        combination("mode")


def test_the_settings_know_them():
    assert CHOICES["combine"] == tuple(COMBINATIONS)


def test_a_server_that_takes_no_mean_is_not_said_to_be_protected():
    step = Exchange("w", lambda uploads: (uploads.each[0], {}), send=lambda batch: {})
    trees = [{"w": torch.ones(2)}] * 3
    assert torch.equal(Aggregator({}).combine(step, trees, [1.0] * 3, range(3), 0)["w"], torch.ones(2))
    with pytest.raises(FedekdError, match="takes no mean"):
        Aggregator({}, average=combination("median")).combine(step, trees, [1.0] * 3, range(3), 0)
    with pytest.raises(FedekdError, match=r"method 'fedproto', how it combines 'prototypes'.*takes no mean"):
        plan(make_settings({"dataset": "digits", "methods": "fedproto", "combine": "median"}))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"combine": "mode"}, "unknown combine 'mode'"),
        ({"combine": "median", "weighting": "samples"}, "knows no weights"),
        ({"combine": "krum", "clients": 2}, "cannot tell which of 2 clients is wrong"),
        ({"combine": "krum", "participation": 0.3}, "cannot tell which of 2 clients is wrong"),
    ],
)
def test_what_cannot_be_combined(given, problem):
    with pytest.raises(FedekdError, match=problem):
        plan(make_settings({"dataset": "digits", "methods": "fedavg", **given}))


def test_the_mean_itself():
    weights = torch.tensor([0.75, 0.25])
    assert torch.equal(average({"w": torch.tensor([[2.0], [6.0]])}, weights)["w"], torch.tensor([3.0]))
