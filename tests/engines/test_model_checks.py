"""Models in the dry pass: each that does not fit the rows gets one line before anything is trained."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import fedekd
from fedekd import methods
from fedekd.engines import model_checks, rehearsal
from fedekd.engines.rehearsal import rehearse
from fedekd.errors import FedekdError
from rehearsing import job, nothing_is_trained, one_line
from tiny import tiny_private


def raising(shape, outputs):
    raise RuntimeError("no\nsuch\nmodel")


class Raises(nn.Linear):
    def forward(self, x):
        raise KeyError("inside\nthe model")


class Two(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)), x


KEPT = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def drawn_elsewhere(shape, outputs):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))
    nn.init.normal_(module[1].weight, generator=torch.Generator().manual_seed(next(COUNT)))
    return module


def deeper_each_time(shape, outputs):
    layers = [nn.Linear(64, 64) for _ in range(next(COUNT) % 2)]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, outputs))


COUNT = itertools.count()
MODELS = {
    "is the same module each time": (lambda s, o: KEPT, "the same weights twice", "a new module each time"),
    "is drawn by chance of its own": (drawn_elsewhere, "begins with other weights each time", "draw them with torch"),
    "has other layers each time": (deeper_each_time, "begins with other weights each time"),
    "too narrow": (lambda s, o: nn.Sequential(nn.Flatten(), nn.Linear(7, o)), "does not take rows of shape (1, 8, 8)"),
    "without weights": (lambda s, o: nn.Flatten(), "no weights to train"),
    "too many outputs": (lambda s, o: nn.Sequential(nn.Flatten(), nn.Linear(64, o + 1)), "(2, 11)", "(2, 10)"),
    "gives a tuple": (lambda s, o: Two(64, o), "tuple", "(2, 10)"),
    "raises": (lambda s, o: Raises(64, o), "KeyError"),
    "cannot be made": (raising, "RuntimeError: no"),
    "takes other arguments": (lambda shape: nn.Flatten(), "(shape, outputs)"),
    "is lazy": (lambda s, o: nn.Sequential(nn.Flatten(), nn.LazyLinear(o)), "nn.LazyLinear", "torch.zeros(2, *shape)"),
    "is no module": (lambda s, o: 3, "int, not an nn.Module"),
    "only the third client's is narrow": (
        lambda s, o, client: nn.Sequential(nn.Flatten(), nn.Linear(64 - client // 2, o)), "does not take rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MODELS)
def test_a_broken_model_gets_one_line(images, digits, tmp_path, monkeypatch, what):
    nothing_is_trained(monkeypatch)
    model, *words = MODELS[what]
    with pytest.raises(FedekdError) as error:
        rehearse(job(images, methods.get("local"), private=model))
    one_line(error, "private", *words)
    with pytest.raises(FedekdError) as error:
        fedekd.run(digits, progress=False, out=str(tmp_path / "o"), methods=["local"], clients=3, private=model)
    one_line(error, "private")


def test_averaged_models_that_differ_between_clients(images):
    def private(shape, outputs, client):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 4 + client), nn.Linear(4 + client, outputs))

    with pytest.raises(FedekdError) as error:
        rehearse(job(images, methods.get("fedavg"), private=private))
    one_line(error, "architecture")
    assert rehearse(job(images, methods.get("fedekd"), private=private)), "each may have its own if it stays"


@pytest.mark.parametrize("which", [1, 2])
def test_what_is_sent_has_one_shape_at_all_clients_whatever_their_models(images, which):
    def private(shape, outputs, client):
        width = 8 if client == which else 4
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, outputs))

    with pytest.raises(FedekdError) as error:
        rehearse(job(images, methods.get("fedproto"), private=private))
    one_line(error, "'prototypes' depends on the client's model", "features")


class Stats(nn.Module):
    """Batch norm in the place of a layer."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(inputs), nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.head(self.norm(x.flatten(1)))


def last_batch(rows, size):
    return len(torch.arange(rows).split(size)[-1])


def test_batch_norm_is_fine_unless_a_batch_has_one_row(images):
    sizes = [len(own.train) for own in images.clients]
    for size in (1, 3, 4, 5, 6, 7, 8, 9, 16):
        one = job(images, methods.get("fedavg"), private=lambda s, o: Stats(64, o), batch_size=size)
        if any(last_batch(n, size) == 1 for n in sizes):
            with pytest.raises(FedekdError) as error:
                rehearse(one)
            one_line(error, "batch of one row", "--batch-size")
        else:
            assert rehearse(one)
    assert any(last_batch(n, size) == 1 for n in sizes for size in (3, 4, 5, 6, 7, 8, 9, 16))


def test_a_model_is_tried_once_for_all_methods(images, monkeypatch):
    tried, real = [], model_checks.check_model
    monkeypatch.setattr(model_checks, "check_model", lambda role, *about: tried.append(role) or real(role, *about))
    right, wrong = (lambda shape, outputs, more=more: tiny_private(shape, outputs + more) for more in (0, 1))
    for name in ("local", "fedavg", "ditto"):
        rehearse(job(images, methods.get(name), private=right))
    assert tried == ["private"]
    for _ in range(2):
        with pytest.raises(FedekdError, match="private model gives"):
            rehearse(job(images, methods.get("local"), private=wrong))
    assert tried == ["private"] * 3, "an error is not remembered"


def test_who_has_a_batch_of_one_row_costs_no_rehearsal(images, monkeypatch):
    calls, real = [], rehearsal._rehearse
    monkeypatch.setattr(rehearsal, "_rehearse", lambda job: calls.append(1) or real(job))
    sizes = [len(own.train) for own in images.clients]
    models = {"plain": lambda s, o: tiny_private(s, o), "norm": lambda s, o: Stats(64, o)}
    for size in sorted({1, 3, 16, *(n - 1 for n in sizes)}):
        lone = next((name for name, n in zip(images.names, sizes, strict=True) if last_batch(n, size) == 1), None)
        assert rehearse(job(images, methods.get("fedavg"), private=models["plain"], batch_size=size))
        one = job(images, methods.get("fedavg"), private=models["norm"], batch_size=size)
        if lone is None:
            assert rehearse(one)
        else:
            with pytest.raises(FedekdError, match=f"client {lone} has one with --batch-size {size};"):
                rehearse(one)
    assert len(calls) == 2
