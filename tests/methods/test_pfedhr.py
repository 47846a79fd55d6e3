"""pFedHR: layers found and compared, networks reassembled, and the teacher that a client gets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from distilling import batch_of, engine_of, equal, resumed, trained, with_public
from fedekd import gate, methods
from fedekd import reassembly as surgery
from fedekd.data import Dataset, federate
from fedekd.errors import FedekdError
from fedekd.models import CNN, MLP

METHOD = methods.get("pfedhr", tune_epochs=1, tune_batch=32, probe=32)


@pytest.fixture(scope="module")
def clouds():
    """A table with three classes, one cloud of points each."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 240)
    x = (draw.normal(0, 0.7, (240, 5)) + draw.normal(0, 1, (3, 5))[y]).astype(np.float32)
    return with_public(federate(Dataset("clouds", "classification", x, y, 3, scale=None), clients=3, alpha=1.0, seed=1))


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def generator():
    return torch.Generator().manual_seed(0)


def pictures(rows=20, channels=2, side=8):
    return torch.randn(rows, channels, side, side, generator=generator())


@pytest.mark.parametrize("data", ["images", "clouds"])
def test_without_distillation_it_is_local_to_the_bit(data, request):
    federation = request.getfixturevalue(data)
    federation = with_public(federation) if data == "images" else federation
    local = trained(federation, methods.get("local"))
    assert equal(local, trained(federation, methods.with_parameters(METHOD, {"alpha": 0.0})))
    assert not equal(local, trained(federation, METHOD))


def test_the_first_round_is_local_to_the_bit(clouds):
    assert equal(trained(clouds, methods.get("local"), 1), trained(clouds, METHOD, 1))


def test_the_loss_is_supervised_plus_alpha_times_the_distance_from_the_teacher():
    x, student = torch.randn(6, 5, generator=generator()), torch.randn(6, 3, generator=generator())
    parts = surgery.layers(seeded(lambda: MLP(5, 3, (4, 4))), x)
    teacher = surgery.assembled(parts, (5,), 3, generator())
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    batch = batch_of(y, student, received={"private": teacher}, x=x)
    expected = F.cross_entropy(student, y) + 0.1 * gate.kl(surgery.run(teacher, x), student).mean()
    torch.testing.assert_close(methods.get("pfedhr").loss(batch), expected)


def test_a_site_that_has_no_teacher_yet_trains_alone():
    """One that comes late to a federation is in the others' round, but was in no exchange."""
    y, student = torch.tensor([0, 1, 2]), torch.randn(3, 3, generator=generator())
    batch = batch_of(y, student, x=torch.zeros(3, 5))
    assert torch.equal(methods.get("pfedhr").loss(batch), F.cross_entropy(student, y))


def test_layers_are_found_in_the_order_of_the_forward_pass():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(6, 3)
            self.wide = nn.Linear(4 * 4 * 4, 6)
            self.first = nn.Conv2d(2, 4, 3, padding=1)

        def forward(self, x):
            return self.last(torch.relu(self.wide(F.max_pool2d(self.first(x), 2).flatten(1))))

    network = seeded(Backwards)
    found = surgery.layers(network, pictures())
    assert [layer.module for layer in found] == [network.first, network.wide, network.last]
    assert [layer.reads for layer in found] == [(2, 8, 8), (4, 4, 4), (6, 1, 1)]
    assert [layer.depth for layer in found] == [0, 1, 2]
    assert torch.equal(found[0].grams[0], surgery.gram(pictures()))
    assert torch.equal(found[2].grams[1], surgery.gram(network(pictures()).detach()))
    assert not network.last._forward_hooks


def test_a_network_without_linear_layers_costs_one_line():
    with pytest.raises(FedekdError, match="Conv2d has no linear layer"):
        surgery.layers(nn.Conv2d(2, 3, 1), pictures())


def test_cka_is_1_for_a_turned_and_scaled_copy_and_0_for_nothing():
    x = torch.randn(30, 6, generator=generator(), dtype=torch.float64).float()
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator()))[0]
    other = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))

    def cka(a, b):
        return float((surgery.gram(a) * surgery.gram(b)).sum())

    assert cka(x, 3 * x @ turn + 2) == pytest.approx(1, abs=1e-5)
    assert 0 < cka(x, other) < 0.9
    assert cka(x, other) == pytest.approx(cka(other, x))
    centred_x, centred_o = x - x.mean(0), other - other.mean(0)
    closed = (centred_x.T @ centred_o).norm() ** 2 / (
        (centred_x.T @ centred_x).norm() * (centred_o.T @ centred_o).norm()
    )
    assert cka(x, other) == pytest.approx(float(closed), rel=1e-4)
    assert cka(x, torch.ones(30, 3)) == 0


def test_layers_that_do_the_same_fall_into_one_group():
    draw = np.random.default_rng(0)
    a, b = torch.randn(2, 40, 5, generator=generator())
    kinds = []
    for k in range(8):
        source = (a, b)[k % 2]
        grams = torch.stack([surgery.gram(source + 0.05 * torch.randn(40, 5, generator=generator()) * k)] * 2)
        kinds.append(surgery.Layer(nn.Linear(5, 5), k, (5, 1, 1), grams))
    groups = surgery.grouped(kinds, 2, 10, draw)
    assert sorted(sorted(layer.depth for layer in group) for group in groups) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert len(surgery.grouped(kinds, 1, 10, draw)) == 1
    assert sum(map(len, surgery.grouped(kinds, 20, 10, draw))) == 8


def test_a_candidate_has_a_layer_of_each_group_and_kind_in_order():
    networks = [seeded(lambda c=c: CNN((2, 8, 8), 3, (3 + c, 5), 7)) for c in range(3)]
    found = [layer for network in networks for layer in surgery.layers(network, pictures())]
    sizes, draw = set(), np.random.default_rng(0)
    for _ in range(40):
        groups = surgery.grouped(found, 2, 10, draw)
        parts = surgery.chosen(groups, draw)
        sizes.add(len(parts))
        assert len(set(map(id, parts))) == len(parts)
        assert all(any(layer in group for layer in parts) for group in groups)
        assert {layer.convolves for layer in parts} == {True, False}
        assert all(a.convolves >= b.convolves for a, b in pairwise(parts))
        assert all(a.depth <= b.depth for a, b in pairwise(parts) if a.convolves == b.convolves)
    assert sizes == {4, 5, 6}


def test_few_layers_are_all_taken():
    found = surgery.layers(seeded(lambda: MLP(5, 3, (4,))), torch.randn(9, 5, generator=generator()))
    assert [layer.depth for layer in surgery.chosen([found], np.random.default_rng(0))] == [0, 1]


def test_a_clients_own_network_as_candidate_has_cosine_1():
    """Identity maps and its own head as classifier give the network back."""
    x = torch.randn(25, 5, generator=generator())
    network = seeded(lambda: MLP(5, 3, (4, 6)))
    own = surgery.assembled(surgery.layers(network, x)[:2], (5,), 3, generator())
    own |= {"0.map": torch.eye(5), "1.map": torch.eye(4)}
    own |= {"classifier.weight": network.head.weight.detach(), "classifier.bias": network.head.bias.detach()}
    torch.testing.assert_close(surgery.run(own, x), network(x).detach())
    other = surgery.assembled(surgery.layers(network, x), (5,), 3, generator())
    outputs = surgery.outputs(network, x)
    assert float(surgery.agreement(outputs, surgery.outputs(own, x))) == pytest.approx(1, abs=1e-6)
    assert float(surgery.agreement(outputs, surgery.outputs(other, x))) < 0.99


def test_maps_are_resized_as_by_adaptive_average_pooling():
    x = torch.randn(3, 2, 7, 5, generator=generator())
    for height, width in ((7, 5), (3, 2), (1, 1), (9, 10), (4, 5)):
        resized = surgery._resized(surgery._resized(x, height, 2), width, 3)
        torch.testing.assert_close(resized, F.adaptive_avg_pool2d(x, (height, width)))


def test_any_convolution_is_run_as_its_module_runs_it():
    convolution = seeded(lambda: nn.Conv2d(4, 6, 3, stride=2, padding=(2, 1), dilation=(2, 1), groups=2, bias=False))
    same = seeded(lambda: nn.Conv2d(6, 3, 5, padding="same"))
    network = nn.Sequential(
        convolution, nn.ReLU(), same, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)
    )
    x = pictures(channels=4)
    copy = surgery.assembled(surgery.layers(network, x), (4, 8, 8), 2, generator())
    copy |= {"0.map": torch.eye(4), "1.map": torch.eye(6), "2.map": torch.eye(3)}
    copy |= {"classifier.weight": torch.eye(2), "classifier.bias": torch.zeros(2)}
    torch.testing.assert_close(surgery.run(copy, x), torch.relu(network(x)).detach())


def test_tuning_learns_and_leaves_the_layers_that_it_copied_alone():
    x, y = pictures(), torch.arange(20) % 3
    network = seeded(lambda: CNN((2, 8, 8), 3, (3, 5), 7))
    before = {name: t.clone() for name, t in network.state_dict().items()}
    fresh = surgery.assembled(surgery.layers(network, x), (2, 8, 8), 3, generator())
    start = {name: t.clone() for name, t in fresh.items()}
    assert not {t.data_ptr() for t in fresh.values()} & {t.data_ptr() for t in network.state_dict().values()}
    after = surgery.tuned(fresh, x, y, 30, 8, 1e-2, generator())
    assert F.cross_entropy(surgery.run(after, x), y) < F.cross_entropy(surgery.run(start, x), y) / 2
    assert all(torch.equal(t, start[name]) for name, t in fresh.items())
    assert all(torch.equal(t, before[name]) for name, t in network.state_dict().items())
    assert torch.equal(after["structure"], start["structure"])
    assert all(not torch.equal(after[name], start[name]) for name in start if name.endswith(("map", "weight")))


def any_architecture(shape, outputs, client):
    if len(shape) == 1:
        return MLP(shape[0], outputs, ((6,), (5, 7), (4, 4, 4))[client])
    bodies = (
        [nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, outputs)],
        [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, outputs)],
    )
    return CNN(shape, outputs, (3, 4), 6) if client == 2 else nn.Sequential(*bodies[client])


@pytest.mark.parametrize("data", ["images", "clouds"])
def test_architectures_may_differ(data, request):
    federation = request.getfixturevalue(data)
    federation = with_public(federation) if data == "images" else federation
    engine = trained(federation, METHOD, 3, private=any_architecture)
    up = sum(p.numel() for client in engine.clients for p in client.models["private"].parameters()) * 4
    assert engine.door.bytes_up == 2 * up
    assert len(engine.evaluate()[0]) == 3


def test_each_client_gets_the_candidate_that_answers_most_like_it(clouds, monkeypatch):
    made = []
    real = surgery.tuned
    monkeypatch.setattr(surgery, "tuned", lambda *args: made.append(real(*args)) or made[-1])
    engine = engine_of(clouds, METHOD)
    engine.round()
    x = engine.server.about["public"][0]
    own = [surgery.outputs(client.models["private"].eval(), x) for client in engine.clients]
    engine._exchange(METHOD.steps(1)[0], range(3))
    assert len(made) == 4
    for client, mine in zip(engine.clients, own, strict=True):
        scores = [float(F.cosine_similarity(mine, surgery.run(net, x)).mean()) for net in made]
        best = made[int(np.argmax(scores))]
        given = client.received["private"]
        assert given.keys() == best.keys()
        assert all(torch.equal(given[name], best[name]) for name in best)


def test_the_server_sees_the_models_that_came(clouds, monkeypatch):
    seen = []
    real = surgery.layers
    monkeypatch.setattr(surgery, "layers", lambda network, x: seen.append(network) or real(network, x))
    engine = engine_of(clouds, METHOD, private=any_architecture)
    engine.round()
    engine._exchange(METHOD.steps(1)[0], [0, 2])
    x = engine.server.about["public"][0]
    for k, network in zip((0, 2), seen, strict=True):
        assert torch.equal(surgery.outputs(network, x), surgery.outputs(engine.clients[k].models["private"].eval(), x))


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_it_goes_on_after_an_interruption_to_the_same_bits(clouds, participation):
    assert equal(*resumed(clouds, METHOD, participation=participation))


def test_a_regression_is_refused(tables):
    with pytest.raises(FedekdError, match="'pfedhr' is defined for classification"):
        engine_of(with_public(tables), METHOD)
