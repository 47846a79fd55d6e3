"""Second opinion, taught back: one model of the private architecture that answers for the mixture."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedekd import methods
from fedekd.engines.stacked import Stacked
from fedekd.runs.run_key import counted
from serially import answers, engine_of, go_on, same, states, traffic, trained

OURS, MIXTURE = methods.get("second-opinion-taught", passes=2), methods.get("second-opinion")


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_teaching_changes_neither_the_experts_nor_what_is_sent(rows, request):
    federation = request.getfixturevalue(rows)
    taught, mixture = trained(federation, OURS), trained(federation, MIXTURE)
    for role in ("private", "proxy"):
        assert same(states(taught, role), states(mixture, role))
    assert traffic(taught) == traffic(mixture)
    assert go_on(federation, OURS)


def test_one_model_of_the_private_architecture_answers_with_the_mean_of_its_weights(images):
    engine = trained(images, OURS)
    for one, client in zip(answers(engine), engine.clients, strict=True):
        mean, module = client.memory["mean"], client.models["pupil"]
        assert not all(torch.equal(mean[n], w) for n, w in module.named_parameters())
        with torch.no_grad():
            wanted = torch.func.functional_call(module.eval(), mean, (client._inputs(client.rows["test"]),))
        torch.testing.assert_close(one, wanted)
        assert module.state_dict().keys() == client.models["private"].state_dict().keys()


def test_patience_brings_the_pupil_nearer_to_the_mixture(images):
    wanted = [torch.softmax(a, -1) for a in answers(trained(images, MIXTURE))]

    def apart(passes):
        taught = answers(trained(images, methods.get("second-opinion-taught", passes=passes, keep=0.0)))
        return float(sum((torch.softmax(a, -1) - b).abs().mean() for a, b in zip(taught, wanted, strict=True)))

    assert apart(60) < 0.8 * apart(2)


def test_the_first_round_leaves_nothing_of_the_start(images):
    one = trained(images, methods.get("second-opinion-taught", passes=3, keep=1.0), rounds=1)
    for client in one.clients:
        assert all(torch.equal(client.memory["mean"][n], w) for n, w in client.models["pupil"].named_parameters())


@pytest.mark.parametrize("method", [OURS, methods.get("second-opinion-taught", passes=2, after=1)])
def test_both_engines_agree(images, method):
    one = engine_of(images, method, optimizer="sgd", lr=0.02)
    stacked = Stacked([one.job])
    for _ in range(one.job.training.rounds):
        one.round()
        stacked.round()
    for ours, theirs in zip(stacked.clients_of(0), one.clients, strict=True):
        for n, w in theirs.memory["mean"].items():
            torch.testing.assert_close(ours.memory["mean"][n], w, atol=2e-4, rtol=0)


def test_normalised_models_answer_with_the_pupils_statistics(images):
    def private(shape, outputs):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(shape[-1] * shape[-2], 8), nn.BatchNorm1d(8), nn.Linear(8, outputs)
        )

    engine = trained(images, OURS, private=private)
    assert all(float(client.models["pupil"][2].num_batches_tracked) > 0 for client in engine.clients)
    right = [m.value for m in engine.measure()[0]]
    assert sum(right) / len(right) > 0.2


def test_before_it_is_taught_the_pupil_is_a_copy_of_the_private_model(images):
    late = methods.get("second-opinion-taught", passes=2, after=2)
    before = trained(images, late, rounds=2)
    alone = answers(trained(images, methods.get("local-smooth"), rounds=2))
    for one, other in zip(answers(before), alone, strict=True):
        torch.testing.assert_close(one, other)
    engine = trained(images, late, rounds=3)
    for client in engine.clients:
        pupil, private = (dict(client.models[role].named_parameters()) for role in ("pupil", "private"))
        assert not all(torch.equal(pupil[n], w) for n, w in private.items())
        assert all(torch.equal(client.memory["mean"][n], w) for n, w in pupil.items())
    assert go_on(images, late)


def test_a_parameter_that_came_later_leaves_the_names_of_older_runs():
    assert counted(OURS) == {"smooth": 0.5, "prior": 1.0, "caution": 3.0, "passes": 2, "keep": 0.8}
    assert counted(methods.get("second-opinion-taught", after=3))["after"] == 3
