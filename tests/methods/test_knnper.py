"""kNN-Per is FedAvg until it answers; then its neighbours weigh in as the kernel says."""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import vmap

from fedekd import methods
from fedekd.engines.batch import make_batch
from fedekd.errors import FedekdError
from fedekd.tasks import Classification, Regression
from serially import answer_alike, answers, engine_of, same, states, traffic, trained

FEDAVG = methods.get("fedavg")


def knnper(**parameters):
    return methods.get("knnper", **parameters)


def make(method, features, memory, outputs, task=None):
    """What `predict` sees of these rows."""
    rows = len(outputs)
    seen = {"x": None, "y": torch.zeros(rows), "outputs": {"private": outputs}, "features": {"private": features}}
    seen |= {"memory": memory, "uniform": torch.zeros(rows, 0), "rows": torch.arange(rows)}
    seen |= {"counts": torch.ones(3), "steps": torch.tensor(1)}
    return make_batch(method, task or Classification(), 0.1, seen)


def stored(features, targets, real=None):
    return {"features": features, "targets": targets, "real": torch.ones(len(targets)).bool() if real is None else real}


@pytest.fixture
def some():
    g = torch.Generator().manual_seed(3)
    memory = stored(torch.randn(12, 5, generator=g), torch.randint(3, (12,), generator=g))
    return torch.randn(6, 5, generator=g), memory, torch.randn(6, 3, generator=g)


# In the engine


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_training_is_fedavgs_to_the_bit(rows, request):
    federation = request.getfixturevalue(rows)
    plain, ours = trained(federation, FEDAVG), engine_of(federation, knnper())
    for _ in range(2):
        ours.round()
        ours.evaluate()
    assert same(states(plain), states(ours))
    assert traffic(plain) == traffic(ours)
    assert not answer_alike(plain, ours)
    assert all(torch.isfinite(a).all() for a in answers(ours))


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_without_neighbours_it_answers_as_fedavg_to_the_bit(rows, request):
    federation = request.getfixturevalue(rows)
    assert answer_alike(trained(federation, FEDAVG), trained(federation, knnper(lam=0.0)))


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_a_training_row_is_its_own_nearest_neighbour(rows, request):
    engine = trained(request.getfixturevalue(rows), knnper(lam=1.0, k=1))
    for client, found in zip(engine.clients, answers(engine, "train"), strict=True):
        own = client.data.y[client.rows["train"]]
        if rows == "images":
            found = found.argmax(-1)
        assert torch.equal(found, own)


def test_more_neighbours_than_rows_are_all_rows(images):
    engine = trained(images, knnper(k=10**6))
    most = max(len(client.rows["train"]) for client in engine.clients)
    assert answer_alike(engine, trained(images, knnper(k=most)))


def test_what_is_stored_is_forgotten_once_answered(images):
    engine = trained(images, knnper())
    engine.evaluate()
    assert all(client.memory == {} for client in engine.clients)
    with engine.clients[0].personalised():
        memory = engine.clients[0].memory
        features = engine.clients[0].outputs("private", engine.clients[0].rows["train"])[1]
        assert torch.equal(memory["features"], features)
    assert knnper().keeps_rows


# By hand


def test_the_numbers_are_the_papers_by_default():
    assert knnper() == knnper(k=10, lam=0.5, scale=1.0)


def test_neighbours_weigh_by_the_kernel():
    """Two features, so that D = 2: exp(-d^2 / (D s)), and no further than the k nearest."""
    memory = stored(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 1, 2]))
    method = knnper(k=2, lam=1.0, scale=0.5)
    found = method.predict(make(method, torch.zeros(1, 2), memory, torch.zeros(1, 3))).softmax(-1)[0]
    a, b = math.exp(-1 / (2 * 0.5)), math.exp(-4 / (2 * 0.5))
    torch.testing.assert_close(found, torch.tensor([a, b, 0]) / (a + b))


def test_the_answer_mixes_probabilities(some):
    features, memory, outputs = some
    method, alone = knnper(k=4, lam=0.3), knnper(k=4, lam=1.0)
    near = alone.predict(make(alone, features, memory, outputs)).softmax(-1)
    found = method.predict(make(method, features, memory, outputs)).softmax(-1)
    torch.testing.assert_close(found, 0.7 * outputs.softmax(-1) + 0.3 * near)


def test_a_regression_mixes_means():
    memory = stored(torch.tensor([[1.0], [0.0], [9.0]]), torch.tensor([4.0, 8.0, -50.0]))
    method = knnper(k=2, lam=0.25)
    found = method.predict(make(method, torch.zeros(1, 1), memory, torch.tensor([2.0]), Regression()))
    near = (4 * math.exp(-1) + 8) / (math.exp(-1) + 1)
    torch.testing.assert_close(found, torch.tensor([0.75 * 2 + 0.25 * near]))


def test_features_and_scale_may_grow_together(some):
    features, memory, outputs = some
    small, large = knnper(scale=0.7), knnper(scale=0.7 * 9)
    larger = {**memory, "features": 3 * memory["features"]}
    torch.testing.assert_close(
        large.predict(make(large, 3 * features, larger, outputs)), small.predict(make(small, features, memory, outputs))
    )
    assert not torch.allclose(
        large.predict(make(large, features, memory, outputs)), small.predict(make(small, features, memory, outputs))
    )


def test_far_neighbours_and_sure_outputs_stay_finite(some):
    features, memory, outputs = some
    method = knnper()
    found = method.predict(make(method, 1e4 + features, memory, 1e4 * outputs))
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found.softmax(-1).sum(-1), torch.ones(6))


@pytest.mark.parametrize("task", [Classification(), Regression()])
def test_mapped_over_clients_padded_rows_are_nobodys_neighbours(some, task):
    """Padding lies exactly where the questions are, and there are fewer real rows than neighbours."""
    features, memory, outputs = some
    if task.name == "regression":
        outputs, memory = outputs[:, 0], {**memory, "targets": memory["targets"].float()}
    method = knnper(k=7)
    short = {name: t[:4] for name, t in memory.items()}
    padded = stored(
        torch.cat([memory["features"][:4], features[:1].expand(8, 5)]),
        torch.cat([memory["targets"][:4], torch.zeros(8, dtype=memory["targets"].dtype)]),
        torch.arange(12) < 4,
    )
    stack = {name: torch.stack([memory[name], padded[name]]) for name in memory}
    found = vmap(lambda m: method.predict(make(method, features, m, outputs, task)))(stack)
    torch.testing.assert_close(found[0], method.predict(make(method, features, memory, outputs, task)))
    torch.testing.assert_close(found[1], method.predict(make(method, features, short, outputs, task)))


def test_the_mask_of_a_padded_split_is_stored_with_it(some):
    features, _, outputs = some
    method, mask = knnper(), torch.tensor([1, 1, 1, 1, 0, 0])
    seen = dict(vars(make(method, features, {}, outputs)))
    for given, real in ((None, [True] * 6), (mask, [True] * 4 + [False] * 2)):
        found = method.store(type(make(method, features, {}, outputs))(**{**seen, "mask": given}))
        assert found["real"].tolist() == real
        expected = features * torch.tensor(real).unsqueeze(-1)  # padding is somebody's row, which a file must not hold
        assert torch.equal(found["features"], expected)


def test_lam_may_differ_between_the_clients_of_a_stack(some):
    """An engine puts tensors in the place of numbers."""
    from fedekd.trees import with_values

    features, memory, outputs = some
    values = {"lam": torch.tensor([0.0, 0.5]), "scale": torch.tensor([1.0, 2.0])}
    found = vmap(lambda v: with_values(knnper(), v).predict(make(knnper(), features, memory, outputs)))(values)
    assert torch.equal(found[0], outputs)
    other = knnper(scale=2.0)
    torch.testing.assert_close(found[1], other.predict(make(other, features, memory, outputs)))


@pytest.mark.parametrize("parameters", [{"k": 0}, {"lam": 1.1}, {"lam": -0.1}, {"scale": 0}])
def test_parameters_out_of_their_range_cost_one_line(parameters):
    with pytest.raises(FedekdError, match=rf"^knnper\.{next(iter(parameters))} must be"):
        knnper(**parameters).check("classification")
