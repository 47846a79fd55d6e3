"""FedRep trains head and body in turn, each with the other at rest, and finds a subspace that all clients share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedekd import methods
from fedekd.data import Dataset, Federation, Split
from serially import answer_alike, answers, engine_of, go_on, same, states, traffic, trained

FEDREP = methods.get("fedrep")
HEAD = {"head.weight", "head.bias"}


def moved(client, before) -> set[str]:
    return {n for n, t in client.models["private"].state_dict().items() if not torch.equal(t, before[n])}


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_the_body_rests_while_the_head_is_trained_and_the_other_way_round(images, optimizer):
    engine = engine_of(images, FEDREP, optimizer=optimizer)
    head, body, _ = FEDREP.steps(0)
    client, every = engine.clients[0], set(states(engine)[0])
    start = states(engine)[0]
    client.perform(head, 0)
    assert moved(client, start) == HEAD
    middle = states(engine)[0]
    client.perform(body, 0, 1)
    assert moved(client, middle) == every - HEAD


def test_the_head_has_ten_epochs_and_the_body_the_runs(images):
    engine = engine_of(images, FEDREP)
    seen: list[tuple[str, int]] = []
    engine.advance = lambda round, client, samples: seen.append((client, samples))
    engine.round()
    rows = [(c.name, len(c.rows["train"])) for c in engine.clients]
    assert seen == [(name, 10 * n) for name, n in rows] + [(name, 2 * n) for name, n in rows]
    head = engine_of(images, methods.get("fedrep", head_epochs=3)).clients[0]
    head.perform(methods.get("fedrep", head_epochs=3).steps(0)[0], 0)
    assert head.steps == 3 * -(-len(head.rows["train"]) // 16)


def test_only_the_body_travels_and_only_it_is_common(images):
    engine = trained(images, FEDREP)
    first, *others = states(engine)
    for other in others:
        assert {n for n in first if not torch.equal(first[n], other[n])} == HEAD
    body = sum(t.numel() for n, t in first.items() if n not in HEAD)
    assert traffic(engine) == (2 * 3 * 4 * body,) * 2


def test_a_client_answers_with_its_head_fitted_to_the_average_and_goes_on_from_the_old_one(images):
    asked, silent = engine_of(images, FEDREP), engine_of(images, FEDREP)
    for _ in range(2):
        asked.round()
        silent.round()
        asked.evaluate()
        assert same(states(asked), states(silent))
    for client, before in zip(asked.clients, states(asked), strict=True):
        with client.personalised():
            assert moved(client, before) == HEAD
    for client in silent.clients:
        client.perform(FEDREP.steps(2)[0], 2)
        client.personal = True  # it holds already what it would answer with
    assert answer_alike(asked, silent)


def test_without_epochs_the_heads_stay_at_their_start(images):
    engine = engine_of(images, methods.get("fedrep", head_epochs=0))
    start = states(engine)
    engine.round()
    for client, before in zip(engine.clients, start, strict=True):
        with client.personalised():
            assert moved(client, before) == set(before) - HEAD


def test_it_goes_on_to_the_same_bits_after_an_interruption(images):
    assert go_on(images, methods.get("fedrep", head_epochs=2))


def test_a_regression_works(tables):
    assert all(torch.isfinite(a).all() for a in answers(trained(tables, FEDREP)))


# A shared subspace

WIDTH, RANK, CLIENTS, ROWS = 10, 2, 8, 40


def linear(shape, outputs):
    return nn.Sequential(nn.Linear(WIDTH, RANK, bias=False), nn.Linear(RANK, 1, bias=False))


@pytest.fixture(scope="module")
def subspace() -> tuple[Federation, torch.Tensor]:
    """y = (B x) . w_k: one B for all clients, and weights w_k of their own whose mean is almost nothing."""
    rng = np.random.default_rng(4)
    basis = np.linalg.qr(rng.normal(size=(WIDTH, RANK)))[0].T
    angles = np.arange(CLIENTS) * 2 * np.pi / CLIENTS
    own = np.stack([np.cos(angles), np.sin(angles)], 1)
    x = rng.normal(size=(CLIENTS, ROWS, WIDTH)).astype(np.float32)
    y = np.einsum("knd,rd,kr->kn", x, basis, own).astype(np.float32)
    dataset = Dataset("subspace", "regression", x.reshape(-1, WIDTH), y.reshape(-1), 1, scale=None)
    splits = tuple(Split(r, r, r) for r in np.arange(CLIENTS * ROWS).reshape(CLIENTS, ROWS))
    names = tuple(str(k) for k in range(CLIENTS))
    one, zero = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    how = {"kind": "sites", "alpha": None}
    return Federation(dataset, splits, names, how, zero, one, 0.0, 1.0), torch.from_numpy(basis).float()


def sine(engine, basis) -> float:
    """Of the largest principal angle between the body's row space and the true one."""
    body = torch.linalg.qr(engine.clients[0].models["private"][0].weight.detach().T)[0]
    return float(torch.linalg.matrix_norm(body - basis.T @ (basis @ body), 2))


def test_it_finds_the_subspace_that_all_clients_share(subspace):
    federation, basis = subspace
    settings = {"private": linear, "rounds": 10, "epochs": 5, "batch_size": ROWS, "lr": 0.2, "optimizer": "sgd"}
    start = sine(engine_of(federation, FEDREP, **settings), basis)
    fedrep = trained(federation, FEDREP, **settings)
    fedavg = trained(federation, methods.get("fedavg"), **settings)
    assert start > 0.5
    assert sine(fedrep, basis) < 0.05
    assert sine(fedavg, basis) > 0.5, "it can only find the mean of the clients, which is nothing here"
    assert max(client.score() for client in fedrep.clients) < 0.1
    assert min(client.score() for client in fedavg.clients) > 0.5
