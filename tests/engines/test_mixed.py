"""Batch norm, dropout and several architectures: a stack gives what clients one by one give."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import nn

from fedekd import methods
from fedekd.data import federate
from fedekd.engines.layers import TrainingPass, own_statistics, own_streams, step_key, training_pass
from fedekd.engines.rehearsal import rehearse
from fedekd.engines.serial import Serial
from fedekd.engines.stackable import NotStackable
from fedekd.engines.stacked import Stacked
from fedekd.errors import FedekdError
from fedekd.exchange import exchanges
from fedekd.models import Dealt
from stacking import TRAINED, compare, rows_for
from tiny import job, quick, tiny_private


class Normed(nn.Module):
    """A small network with what makes stacking hard: batch norms of both kinds of momentum, and dropout.

    No bias before a norm: its gradient is 0 but for rounding, which Adam makes large.
    """

    def __init__(self, shape, outputs):
        super().__init__()
        if len(shape) == 3:
            self.first = nn.Conv2d(shape[0], 4, 3, padding=1, bias=False)
            self.norm, self.drop, width = nn.BatchNorm2d(4), nn.Dropout2d(0.2), 4 * shape[1] * shape[2]
        else:
            self.first, self.norm, self.drop, width = (
                nn.Linear(shape[0], 8, bias=False),
                nn.BatchNorm1d(8),
                nn.Dropout(0.2),
                8,
            )
        self.hidden, self.other = nn.Linear(width, 12, bias=False), nn.BatchNorm1d(12, momentum=None)
        self.last, self.head = nn.Dropout(0.3), nn.Linear(12, outputs)

    def forward(self, x):
        x = self.drop(torch.relu(self.norm(self.first(x)))).flatten(1)
        return self.head(self.last(torch.relu(self.other(self.hidden(x)))))


class Wide(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 12), nn.ReLU())
        self.head = nn.Linear(12, outputs)

    def forward(self, x):
        return self.head(self.body(x))


MIXED = Dealt((tiny_private, Normed, Wide))


@pytest.mark.parametrize("name", ["fedekd", "fedavg", "scaffold", "fedbn"])
def test_batch_norm_and_dropout_of_tables(tables, name):
    compare([job(tables, methods.get(name), private=Normed, batch_size=20)])


class Viewed(nn.Module):
    """What torch's own tutorials do with what a convolution gives, and cannot be done channels last."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.first, self.head = nn.Conv2d(shape[0], 4, 3, padding=1), nn.Linear(4 * shape[1] * shape[2], outputs)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.head(x.view(x.size(0), -1))


def test_a_view_of_what_a_convolution_gives(images):
    one = job(images, methods.get("fedekd"), private=Dealt((Viewed, tiny_private)))
    rehearse(one)
    compare([one])
    private = [client.models["private"].parameters() for client in Serial(one).clients]
    plain = [all(w.is_contiguous() for w in weights) for weights in private]
    assert plain == [True, False, True], "all others lie channels last"


@pytest.mark.parametrize("name", TRAINED)
def test_every_method(images, name):
    """With three architectures; methods that average private models refuse them, and get the one with batch norm."""
    rows, method = rows_for(name, images), quick(name)
    one = job(rows, method, private=MIXED, epochs=1)
    if any(step.send is None and method.root(name) == "private" for name, step in exchanges(method, 2).items()):
        for engine in (Serial, lambda one: Stacked([one])):
            with pytest.raises(FedekdError, match="models are averaged"):
                engine(one)
        compare([job(rows, method, private=Normed, epochs=1)])
        return
    assert len(Stacked([one]).stacks) == len(one.federation.clients)
    compare([one])


def test_some_clients_share_an_architecture_and_take_turns(digits):
    uneven = federate(digits, clients=5, alpha=0.5, seed=2)
    one = job(uneven, methods.get("fedekd"), private=Dealt((Normed, Wide)), participation=0.6)
    assert sorted(len(stack.members) for stack in Stacked([one]).stacks) == [2, 3]
    compare([one, job(uneven, methods.get("fedekd-half"), seed=3, private=one.private, participation=0.6)], chunk=2)


@pytest.mark.parametrize("name", ["fedekd", "fedavg"])
def test_waiting_models_keep_their_statistics(digits, name):
    uneven = federate(digits, clients=5, alpha=0.5, seed=2)
    compare([job(uneven, methods.get(name), private=Normed)], shrink_stages=2)


def test_a_checkpoint_holds_all_stacks(images):
    one = job(images, methods.get("fml"), private=MIXED)
    whole, before = Stacked([one]), Stacked([one])
    before.round()
    after = Stacked([one])
    after.restore(before.state())
    for engine in (whole, whole, after):
        engine.round()
    assert whole.evaluate() == after.evaluate()
    assert whole.measure()[0][1].val_loss == after.measure()[0][1].val_loss


def test_stacks_are_of_one_architecture(images):
    """A factory of the user's that takes `client`: what is built tells who belongs together, not its name."""

    class Scaled(nn.Module):
        def __init__(self, outputs, by):
            super().__init__()
            self.by, self.head = by, nn.Linear(64, outputs)

        def forward(self, x):
            return self.head(x.flatten(1) * self.by)

    one = job(images, methods.get("local"), private=lambda shape, outputs, client: Scaled(outputs, 1 + client // 2))
    assert [len(stack.members) for stack in Stacked([one]).stacks] == [2, 1]
    compare([one])


def test_a_buffer_that_only_its_owner_understands_is_refused(images):
    class Counting(nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.head = nn.Linear(64, outputs)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            if self.training:
                self.seen += len(x)
            return self.head(x.flatten(1))

    with pytest.raises(NotStackable, match="changes its buffer seen"):
        Stacked([job(images, methods.get("local"), private=lambda shape, outputs: Counting(outputs))])


def test_constants_and_frozen_weights_are_stacked(images):
    class Fixed(nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.body, self.head = nn.Linear(64, 12).requires_grad_(False), nn.Linear(12, outputs)
            self.register_buffer("mean", torch.randn(64))
            self.register_buffer("scale", torch.rand(64), persistent=False)

        def forward(self, x):
            return self.head(torch.relu(self.body(x.flatten(1) * self.scale + self.mean)))

    for name in ("fedavg", "fedprox", "perfedavg"):
        compare([job(images, methods.get(name), private=lambda shape, outputs: Fixed(outputs))])


def test_other_random_layers_run_serially(images):
    def private(shape, outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.AlphaDropout(0.5), nn.Linear(8, outputs))

    with pytest.raises(NotStackable, match="random"):
        Stacked([job(images, methods.get("local"), private=private)])


def test_statistics_leave_padding_out():
    torch.manual_seed(0)
    x = torch.randn(6, 3, 4, 4) * 3 + 5
    plain, ours = nn.BatchNorm2d(3), own_statistics(nn.Sequential(nn.BatchNorm2d(3)))
    now = TrainingPass(real=torch.tensor([1, 1, 1, 1, 0, 0]).bool())
    with training_pass(now):
        found = ours(torch.cat([x[:4], torch.full((2, 3, 4, 4), 1e3)]))
    torch.testing.assert_close(found[:4], plain(x[:4]), rtol=1e-4, atol=1e-5)
    assert {name.removeprefix("0."): t for name, t in now.statistics.items()}.keys() == dict(
        plain.named_buffers()
    ).keys()
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(now.statistics[f"0.{name}"], buffer, rtol=1e-5, atol=1e-5)


def test_dropout_is_fair_and_its_own_at_each_step():
    layer = own_streams(nn.Dropout(0.3)).train()
    x, found = torch.ones(64, 500), []
    for seed in (1, 2):
        for step in range(3):
            with training_pass(TrainingPass(step_key(torch.tensor(seed, dtype=torch.int32), step))):
                found += [layer(x), layer(x)]
    kept = torch.stack([f != 0 for f in found]).double()
    assert float(kept.mean()) == pytest.approx(0.7, abs=0.003)
    assert float(torch.stack(found).mean()) == pytest.approx(1, abs=0.005)
    assert kept.mean((0, 2)).sub(0.7).abs().max() < 0.03, "by row"
    assert kept.mean((0, 1)).sub(0.7).abs().max() < 0.08, "by place"
    agree = torch.corrcoef(kept.flatten(1)) - torch.eye(len(found))
    assert agree.abs().max() < 0.03, "draws of two calls, steps or keys have nothing to do with each other"
