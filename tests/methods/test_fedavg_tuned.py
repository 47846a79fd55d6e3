"""FedAvg with fine-tuning trains as FedAvg does, and answers with what the client would hold one training later."""

from __future__ import annotations

import pytest
import torch

from fedekd import methods
from fedekd.errors import FedekdError
from serially import answer_alike, answers, engine_of, same, states, traffic, trained

FEDAVG = methods.get("fedavg")


@pytest.mark.parametrize("epochs", ["local", 0, 3])
def test_training_is_fedavgs_to_the_bit_whatever_is_tuned(images, epochs):
    """Also when the clients have answered after every round."""
    plain, tuned = engine_of(images, FEDAVG), engine_of(images, methods.get("fedavg-tuned", epochs=epochs))
    for _ in range(2):
        plain.round()
        tuned.round()
        tuned.evaluate()
        assert same(states(plain), states(tuned))
    assert traffic(plain) == traffic(tuned)


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_the_answer_is_what_a_client_holds_after_its_epochs_of_the_next_round(rows, request):
    federation = request.getfixturevalue(rows)
    tuned, plain = trained(federation, methods.get("fedavg-tuned")), trained(federation, FEDAVG)
    assert not answer_alike(plain, tuned)
    for client in plain.clients:
        client.perform(FEDAVG.steps(2)[0], 2)
    assert answer_alike(plain, tuned)


def test_the_runs_epochs_are_tuned_unless_a_number_is_given(images):
    run = trained(images, methods.get("fedavg-tuned"))
    assert answer_alike(run, trained(images, methods.get("fedavg-tuned", epochs=2)))
    assert not answer_alike(run, trained(images, methods.get("fedavg-tuned", epochs=1)))


def test_without_tuning_it_answers_as_fedavg_to_the_bit(images):
    assert answer_alike(trained(images, FEDAVG), trained(images, methods.get("fedavg-tuned", epochs=0)))


def test_the_head_alone_can_be_tuned(images):
    engine = trained(images, methods.get("fedavg-tuned", part="head"))
    for client, before in zip(engine.clients, states(engine), strict=True):
        with client.personalised():
            moved = {n for n, t in client.models["private"].state_dict().items() if not torch.equal(t, before[n])}
        assert moved == {"head.weight", "head.bias"}
    assert not answer_alike(engine, trained(images, methods.get("fedavg-tuned")))


def test_a_regression_is_tuned_too(tables):
    tuned = trained(tables, methods.get("fedavg-tuned"), rounds=4, lr=1e-2)
    plain = trained(tables, FEDAVG, rounds=4, lr=1e-2)
    for a, b in zip(tuned.clients, plain.clients, strict=True):
        assert a.score("train") < b.score("train")
    assert all(torch.isfinite(a).all() for a in answers(tuned))


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"epochs": "many"}, "fedavg-tuned.epochs must be 'local' or a whole number, 0 or more, got 'many'"),
        ({"epochs": -1}, "fedavg-tuned.epochs must be 'local' or a whole number, 0 or more, got '-1'"),
        ({"epochs": 1.5}, "fedavg-tuned.epochs must be 'local' or a whole number, 0 or more, got '1.5'"),
        ({"part": "haed"}, "unknown part 'haed'; did you mean 'head'?"),
    ],
)
def test_what_cannot_be_tuned_costs_one_line(parameters, said):
    with pytest.raises(FedekdError) as error:
        methods.get("fedavg-tuned", **parameters).check("classification")
    assert str(error.value) == said
