"""Second opinion: a smoothed Local and an averaged proxy, read out by what the client's own rows choose."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedekd import methods, pooling
from fedekd.methods.second_opinion import ALL, FLOOR, FOLDS
from fedekd.tasks import Classification
from hand_batch import hand_batch
from serially import answers, engine_of, go_on, same, states, traffic, trained
from tiny import tiny_private, tiny_proxy

OURS, TAUGHT = methods.get("second-opinion"), methods.get("second-opinion-taught", passes=2)


def test_the_private_model_is_that_of_smoothed_training_alone(images):
    ours, alone = trained(images, OURS), trained(images, methods.get("local-smooth"))
    assert same(states(ours), states(alone))


def test_a_regressions_private_model_is_local(tables):
    assert same(states(trained(tables, OURS)), states(trained(tables, methods.get("local"))))


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_only_the_proxy_travels_and_it_goes_on_where_it_stopped(rows, request):
    federation = request.getfixturevalue(rows)
    engine = trained(federation, OURS)
    assert traffic(engine) == traffic(trained(federation, methods.get("fedekd")))
    assert all(torch.isfinite(a).all() for a in answers(engine))
    assert go_on(federation, OURS)


def test_with_much_caution_the_private_model_answers_alone(images):
    careful = trained(images, methods.get("second-opinion", caution=1e9))
    for one, client in zip(answers(careful), careful.clients, strict=True):
        private, _ = client.outputs("private", client.rows["test"])
        wanted = torch.log_softmax(private, -1).clamp(min=FLOOR)
        torch.testing.assert_close(one, wanted, atol=1e-4, rtol=1e-4)
    changed = answers(trained(images, OURS))
    assert any(not torch.allclose(a, b) for a, b in zip(answers(careful), changed, strict=True))


def view(seed=0, rows=40, quality=(1.0, 1.0, 1.0), y=None, **more):
    """What `weigh` sees: three opinions that know the label so well, four classes, five features."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (rows,), generator=g) if y is None else y
    own = torch.nn.functional.one_hot(labels, 4).float()
    noise = [torch.randn(rows, 4, generator=g) for _ in range(3)]
    private, proxy, head = (q * own + n for q, n in zip(quality, noise, strict=True))
    memory = {"weight": torch.eye(4).expand(len(OURS.strengths), 4, 4), "bias": torch.zeros(len(OURS.strengths), 4)}
    outputs = {"private": private, "proxy": proxy}
    batch = hand_batch(
        Classification(), labels, outputs, features={"proxy": head}, memory=memory, counts=torch.zeros(4), **more
    )
    return batch, replace(batch, memory={**memory, **OURS.weigh(batch)})


def test_who_knows_more_counts_more():
    _, known = view(quality=(0.5, 4.0, 0.0), rows=400)
    weights = known.memory["weights"][ALL]
    assert weights[1] > weights[0]
    assert weights[1] > 5 * weights[2].abs()


def test_a_validation_row_is_answered_by_what_was_fitted_without_it():
    batch, known = view()
    labels = batch.y.clone()
    labels[5] = (labels[5] + 1) % 4
    changed = replace(batch, y=labels)
    other = replace(known, memory={**batch.memory, **OURS.weigh(changed)})
    fold = 5 % FOLDS
    assert torch.equal(known.memory["weights"][fold], other.memory["weights"][fold])
    assert not torch.equal(known.memory["weights"][ALL], other.memory["weights"][ALL])
    before, after = (OURS.predict(replace(b, split="val")) for b in (known, other))
    assert torch.equal(before[5], after[5])
    assert not torch.equal(before[6], after[6])
    assert not torch.equal(OURS.predict(known), before)


def test_no_row_is_answered_by_what_was_fitted_to_its_group():
    groups = torch.arange(40) * 7 % 9
    batch, known = view(groups=groups)
    labels = torch.where(groups == 5, (batch.y + 1) % 4, batch.y)
    other = replace(known, memory={**batch.memory, **OURS.weigh(replace(batch, y=labels))})
    before, after = (OURS.predict(replace(b, split="val")) for b in (known, other))
    together = groups % FOLDS == 5 % FOLDS
    assert torch.equal(before[together], after[together])
    assert not torch.equal(before[~together], after[~together])


@pytest.mark.parametrize("groups", [torch.arange(16), torch.tensor([0] * 6 + [1] * 4 + [2, 2, 3, 4, 5, 6])])
def test_where_others_harm_it_stays_alone(groups):
    """Noise that was given weights on few rows loses on rows that were left out: then the weights are (1, 0, 0).

    Each group counts once.
    """
    reckless, outcomes = methods.get("second-opinion", caution=1e-3), set()
    for seed in range(12):
        batch, _ = view(seed, rows=16, quality=(2.0, 0.3, 0.3), groups=groups)
        every, fold = reckless.opinions(batch), groups % FOLDS
        harm = torch.zeros(16)
        for left_out in range(FOLDS):
            fits, costs = pooling.weigh(every, batch.y, (fold != left_out).float()[None], 1e-3)
            best = costs[0].argmin()
            mixed = torch.einsum("e,ebc->bc", fits[0, best], every[best])
            one_by_one = torch.nn.functional.cross_entropy(mixed, batch.y, reduction="none")
            own = torch.nn.functional.cross_entropy(every[0, 0], batch.y, reduction="none")
            harm = torch.where(fold == left_out, one_by_one - own, harm)
        harm = torch.stack([harm[groups == group].mean() for group in groups.unique()])
        clear = bool(harm.mean() > harm.std(unbiased=False) / len(harm) ** 0.5)
        alone = torch.equal(reckless.weigh(batch)["weights"], torch.tensor([1.0, 0.0, 0.0]).expand(FOLDS + 1, 3))
        assert alone == clear
        outcomes.add(clear)
    assert outcomes == {True, False}


@pytest.mark.parametrize("method", [OURS, methods.get("second-opinion-near"), TAUGHT], ids=lambda m: m.name)
@pytest.mark.parametrize("rows", [0, 1, 2, 5, "one class"])
@pytest.mark.parametrize("task", ["images", "tables"])
def test_it_answers_however_few_validation_rows_there_are(request, task, method, rows):
    federation = request.getfixturevalue(task)
    y = federation.dataset.y

    def few(split):
        own = split.val[y[split.val] == y[split.val[0]]] if rows == "one class" else split.val[:rows]
        return replace(split, val=own)

    engine = trained(replace(federation, clients=tuple(map(few, federation.clients))), method)
    assert all(torch.isfinite(a).all() for a in answers(engine))
    if rows == 0 and method is not TAUGHT:
        with engine.personalised():
            for client in engine.clients:
                expected = torch.tensor(method.drawn_to).expand(FOLDS + 1, 3)
                torch.testing.assert_close(client.memory["weights"], expected)


def test_what_travels_is_free_of_the_clients_mix_of_classes():
    """The proxy's loss is that of its outputs with log counts added, so that equal outputs say nothing of them."""
    outputs = {"private": torch.zeros(3, 2), "proxy": torch.tensor([[1.0, 0.0]] * 3, requires_grad=True)}
    y, counts = torch.tensor([0, 0, 1]), torch.tensor([7, 1])
    batch = hand_batch(Classification(), y, outputs, counts=counts)
    shifted = outputs["proxy"] + torch.tensor([8.0, 2.0]).log()
    wanted = torch.nn.functional.cross_entropy(shifted, y)
    wanted = wanted + (torch.log_softmax(torch.zeros(3, 2), -1) - torch.log_softmax(shifted, -1)).mean()
    torch.testing.assert_close(OURS.learn_proxy(batch), wanted)


def test_its_twin_is_a_federation_of_one(images):
    twin = trained(images, methods.get("second-opinion@alone"))
    assert traffic(twin) == (0, 0)
    assert same(states(twin), states(trained(images, OURS)))
    assert not same(states(twin, "proxy"), states(trained(images, OURS), "proxy"))


def test_measuring_leaves_the_clients_as_they_were(tables):
    engine = engine_of(tables, OURS)
    engine.round()
    before = states(engine, "proxy")
    engine.measure()
    assert same(before, states(engine, "proxy"))
    assert all("weights" not in client.memory for client in engine.clients)


@pytest.mark.parametrize("method", [OURS, methods.get("second-opinion-near"), TAUGHT], ids=lambda m: m.name)
def test_three_private_architectures_share_one_proxy(images, method):
    def private(shape, outputs, client):
        return (tiny_private, tiny_proxy, one_layer)[client % 3](shape, outputs)

    def one_layer(shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], outputs))

    engine = trained(images, method, private=private)
    assert len({type(client.models["private"]) for client in list(engine.clients)[:3]}) == 2
    proxies = states(engine, "proxy")
    assert same(proxies, [proxies[0]] * len(proxies))
    assert all(torch.isfinite(a).all() for a in answers(engine))
