"""FedBN is FedAvg where nothing is normalised; else norms stay, with their statistics, wherever they stand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedekd import methods
from serially import answer_alike, answers, same, states, traffic, trained


class Normed(nn.Module):
    """No norm has a name that tells it."""

    def __init__(self, shape, outputs) -> None:
        super().__init__()
        size = 1
        for length in shape:
            size *= length
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.shortcut = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))])
        self.last = nn.Linear(8, outputs)

    def forward(self, x):
        x = self.stem(x)
        return self.last(torch.relu(x + self.shortcut[0](x)))


NORMS = ("stem.2", "shortcut.0.1")
OWN = {f"{norm}.{name}" for norm in NORMS for name in ("weight", "bias", "running_mean", "running_var")}
COUNTERS = {f"{norm}.num_batches_tracked" for norm in NORMS}


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_without_norms_it_is_fedavg_to_the_bit(rows, request):
    federation = request.getfixturevalue(rows)
    fedavg, fedbn = trained(federation, methods.get("fedavg")), trained(federation, methods.get("fedbn"))
    assert same(states(fedavg), states(fedbn))
    assert answer_alike(fedavg, fedbn)
    assert traffic(fedavg) == traffic(fedbn)


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_norms_are_each_clients_own_and_the_rest_is_one(rows, request):
    engine = trained(request.getfixturevalue(rows), methods.get("fedbn"), private=Normed, batch_size=20)
    first, *others = states(engine)
    for other in others:
        differ = {n for n in first if not torch.equal(first[n], other[n])}
        assert OWN <= differ <= OWN | COUNTERS
    shared = sum(t.numel() for n, t in first.items() if n not in OWN | COUNTERS)
    assert traffic(engine) == (2 * 3 * 4 * shared,) * 2
    assert all(torch.isfinite(a).all() for a in answers(engine))


def test_norms_feel_the_others_only_through_what_is_shared(images):
    """After one round from one start they are Local's, statistics and counters too."""
    local, fedbn = (trained(images, methods.get(name), private=Normed, rounds=1) for name in ("local", "fedbn"))
    for a, b in zip(states(local), states(fedbn), strict=True):
        assert {n for n in a if torch.equal(a[n], b[n])} == OWN | COUNTERS
    local, fedbn = (trained(images, methods.get(name), private=Normed, rounds=2) for name in ("local", "fedbn"))
    assert not torch.equal(states(local)[0]["stem.2.weight"], states(fedbn)[0]["stem.2.weight"])
