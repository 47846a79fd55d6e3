"""FedMD: what is digested, and that it is Local where nothing is."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from distilling import batch_of, engine_of, equal, trained, with_public
from fedekd import methods
from fedekd.methods import Train
from fedekd.models import CNN
from fedekd.tasks import Regression

METHOD = methods.get("fedmd")


@pytest.mark.parametrize("data", ["images", "tables"])
def test_without_digest_and_pretraining_it_is_local_to_the_bit(data, request):
    federation = with_public(request.getfixturevalue(data))
    local = trained(federation, methods.get("local"))
    assert equal(local, trained(federation, methods.get("fedmd", pretrain=0, digests=0)))
    assert not equal(local, trained(federation, methods.get("fedmd", pretrain=1, digests=0)))
    assert not equal(local, trained(federation, methods.get("fedmd", pretrain=0, digests=1)))


def test_the_first_round_is_public_labels_and_then_private_ones():
    pretraining, revisit = METHOD.steps(0)
    assert isinstance(pretraining, Train)
    assert (pretraining.split, pretraining.epochs, revisit.split, revisit.epochs) == ("public", 3, "train", None)
    exchange, digest, revisit = METHOD.steps(1)
    assert (exchange.split, digest.split, digest.epochs, revisit.split) == ("public", "public", 1, "train")


def test_what_comes_is_the_mean_of_what_was_sent(images):
    engine = engine_of(with_public(images), METHOD)
    engine.round()
    step = METHOD.steps(1)[0]
    sent = [client.outputs("private", client.rows["public"])[0] for client in engine.clients]
    engine._exchange(step, range(3))
    for client in engine.clients:
        torch.testing.assert_close(client.received["logits"]["logits"], sum(sent) / 3)


def test_equal_clients_receive_what_they_sent_and_stay(images):
    """Before any training all clients are equal; the mean of their logits is their own."""
    engine = engine_of(with_public(images), METHOD)
    engine._exchange(METHOD.steps(1)[0], range(3))
    client = engine.clients[0]
    own = client.outputs("private", client.rows["public"])[0]
    torch.testing.assert_close(client.received["logits"]["logits"], own)


def test_one_client_has_nothing_to_digest():
    z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    rows = torch.tensor([5, 1, 3])
    batch = batch_of(torch.zeros(3).long(), z[rows], received={"logits": {"logits": z.detach()}}, rows=rows)
    loss = METHOD.digest(batch)
    loss.backward()
    assert loss.item() == 0
    assert not z.grad.any()


def test_the_digest_is_the_mean_absolute_error_over_rows_and_classes():
    target = {"logits": {"logits": torch.tensor([[9.0, 9.0], [1.0, 2.0], [0.0, 0.0]])}}
    rows, outputs = torch.tensor([2, 1]), torch.tensor([[1.0, -2.0], [0.0, 2.0]])
    assert METHOD.digest(batch_of(rows, outputs, received=target, rows=rows)).item() == pytest.approx(
        (1 + 2 + 1 + 0) / 4
    )
    target = {"logits": {"logits": torch.tensor([9.0, 1.0, 0.0])}}
    batch = batch_of(rows.float(), torch.tensor([3.0, 0.0]), received=target, rows=rows, task=Regression())
    assert METHOD.digest(batch).item() == pytest.approx((3 + 1) / 2)


def test_padding_changes_no_digest_under_vmap():
    draw = torch.Generator().manual_seed(0)
    outputs, logits = torch.randn(2, 4, 3, generator=draw), torch.randn(2, 7, 3, generator=draw)
    rows, mask = (
        torch.tensor([[6, 2, 0, 0], [1, 5, 3, 0]]),
        torch.tensor([[True] * 2 + [False] * 2, [True] * 3 + [False]]),
    )

    def digest(outputs, logits, rows, mask):
        return METHOD.digest(batch_of(rows, outputs, received={"logits": {"logits": logits}}, rows=rows, mask=mask))

    expected = [digest(outputs[k, :n], logits[k], rows[k, :n], None) for k, n in enumerate((2, 3))]
    torch.testing.assert_close(vmap(digest)(outputs, logits, rows, mask), torch.stack(expected))


def test_clients_that_take_part_now_and_then(images):
    assert len(trained(with_public(images), METHOD, participation=0.67).evaluate()[0]) == 3


def test_architectures_may_differ(images):
    federation = with_public(images)
    engine = trained(
        federation, METHOD, 2, private=lambda shape, outputs, client: CNN(shape, outputs, (3 + client,), 6)
    )
    assert engine.door.bytes_up == engine.door.bytes_down == 3 * len(federation.public) * 10 * 4
