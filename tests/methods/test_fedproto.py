"""FedProto: class means, their plain mean over the owners, and the pull towards it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import vmap

from distilling import batch_of, engine_of, equal, trained
from fedekd import methods
from fedekd.data import federate
from fedekd.errors import FedekdError
from fedekd.methods.uploads import Uploads
from fedekd.models import CNN, MLP
from fedekd.prototypes import class_means

METHOD = methods.get("fedproto")


def server(*uploads):
    given = [{"means": means, "exist": exist} for means, exist in uploads]
    facts = {"weights": torch.ones(len(given)) / len(given), "previous": {}, "memory": {}, "clients": len(given)}
    return METHOD.server(Uploads(given=given, numbers=range(len(given)), average=None, **facts))[0]


def test_without_its_term_it_is_local_to_the_bit(images):
    local = trained(images, methods.get("local"))
    assert equal(local, trained(images, methods.get("fedproto", lam=0.0)))
    assert not equal(local, trained(images, METHOD))


def test_the_first_round_is_local_to_the_bit(images):
    assert equal(trained(images, methods.get("local"), 1), trained(images, METHOD, 1))


def test_class_means_are_those_of_the_trained_model_in_evaluation_mode(images):
    engine = trained(images, METHOD, 1)
    uploads = [client.upload(METHOD.steps(0)[1], 0) for client in engine.clients]
    for client, upload in zip(engine.clients, uploads, strict=True):
        features, y = client.outputs("private", client.rows["train"])[1], client.data.y[client.rows["train"]]
        assert upload["means"].shape == (10, 12)
        for c in range(10):
            assert bool(upload["exist"][c]) == bool((y == c).any())
            expected = features[y == c].mean(0) if (y == c).any() else torch.zeros(12)
            torch.testing.assert_close(upload["means"][c], expected)


def test_a_class_of_one_client_has_exactly_its_prototype(digits):
    engine = trained(federate(digits, clients=3, alpha=0.1, seed=1), METHOD, 1)
    uploads = [client.upload(METHOD.steps(0)[1], 0) for client in engine.clients]
    exist = torch.stack([upload["exist"] for upload in uploads])
    received = engine.clients[0].received["prototypes"]
    assert 1 in exist.sum(0)
    for c in range(10):
        owners = exist[:, c].nonzero().flatten()
        assert bool(received["exist"][c]) == bool(len(owners))
        if len(owners) == 1:
            assert torch.equal(received["means"][c], uploads[owners[0]]["means"][c])


def test_prototypes_are_plain_means_over_owners_and_a_class_of_nobody_has_none():
    a, b, c = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    yes = torch.tensor([True, True, False, False])
    answer = server(
        (a, yes), (b, torch.tensor([True, False, True, False])), (c, torch.tensor([True, False, False, False]))
    )
    torch.testing.assert_close(answer["means"][0], (a[0] + b[0] + c[0]) / 3)
    assert torch.equal(answer["means"][1], a[1])
    assert torch.equal(answer["means"][2], b[2])
    assert answer["exist"].tolist() == [True, True, True, False]


def test_a_row_without_a_prototype_adds_nothing_but_counts():
    h = torch.tensor([[1.0, 3.0], [5.0, 5.0]])
    prototypes = {"means": torch.tensor([[0.0, 1.0], [0.0, 0.0]]), "exist": torch.tensor([True, False])}
    batch = batch_of(torch.tensor([0, 1]), torch.zeros(2, 2), h, {"prototypes": prototypes})
    expected = np.log(2) + 3.0 * ((1 + 4) / 2) / 2  # lam times the mean over two rows and two dimensions
    assert methods.get("fedproto", lam=3.0).loss(batch).item() == pytest.approx(expected, rel=1e-6)


def test_padding_changes_neither_means_nor_losses_under_vmap():
    draw = torch.Generator().manual_seed(0)
    y = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 2]])
    features, outputs = torch.randn(2, 4, 3, generator=draw), torch.randn(2, 4, 3, generator=draw)
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    features[~mask] = torch.nan
    prototypes = {
        "means": torch.randn(2, 3, 3, generator=draw),
        "exist": torch.tensor([[True] * 3, [True, False, True]]),
    }

    def both(y, features, outputs, mask, prototypes):
        batch = batch_of(y, outputs, features, {"prototypes": prototypes}, mask=mask, rows=y, counts=torch.zeros(3))
        return class_means(batch), METHOD.loss(batch)

    means, loss = vmap(both)(y, features, outputs, mask, prototypes)
    for k, n in enumerate((3, 2)):
        own = {name: t[k] for name, t in prototypes.items()}
        alone = batch_of(y[k, :n], outputs[k, :n], features[k, :n], {"prototypes": own}, counts=torch.zeros(3))
        for name, expected in class_means(alone).items():
            torch.testing.assert_close(means[name][k], expected)
        torch.testing.assert_close(loss[k], METHOD.loss(alone))


def test_the_nearest_prototype_among_own_classes_answers():
    prototypes = {"means": torch.tensor([[0.0], [1.0], [2.0], [3.0]]), "exist": torch.tensor([True, True, True, False])}
    batch = batch_of(
        torch.zeros(3, dtype=torch.long),
        torch.eye(4)[[3, 3, 3]],
        torch.tensor([[0.9], [1.9], [3.0]]),
        {"prototypes": prototypes},
        counts=torch.tensor([4, 0, 2, 1]),
    )
    assert METHOD.predict(batch).argmax(-1).tolist() == [3, 3, 3]
    nearest = methods.get("fedproto-nearest")
    assert nearest.predict(batch).argmax(-1).tolist() == [0, 2, 2]
    assert torch.isfinite(nearest.predict(batch)).all()


def test_how_a_client_answers_leaves_training_alone(images):
    head, nearest = trained(images, METHOD, 2), trained(images, methods.get("fedproto-nearest"), 2)
    assert equal(head, nearest)
    assert head.evaluate() != nearest.evaluate()


def test_clients_that_take_part_now_and_then(images):
    engine = trained(images, methods.get("fedproto-nearest"), participation=0.34)
    assert len(engine.evaluate()[0]) == 3


def test_architectures_may_differ_but_not_in_the_width_of_features(images):
    def alike(shape, outputs, client):
        return CNN(shape, outputs, (3 + client,), 8)

    def unlike(shape, outputs, client):
        return CNN(shape, outputs, (3,), 8 + client)

    trained(images, METHOD, 2, private=alike)
    with pytest.raises(
        FedekdError, match="fedproto needs features of one width at all clients, but some have 8 and some 10"
    ):
        engine_of(images, METHOD, private=unlike).round()


def test_a_regression_is_refused(tables):
    with pytest.raises(FedekdError, match="classification"):
        engine_of(tables, METHOD, private=lambda shape, outputs: MLP(shape[0], outputs, (4,)))
