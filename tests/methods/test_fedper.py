"""FedPer lies between FedAvg and Local, and is either of them to the bit where nothing or everything is personal."""

from __future__ import annotations

import pytest
import torch

from fedekd import methods, parts
from serially import answer_alike, answers, same, states, traffic, trained


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_nothing_personal_is_fedavg_to_the_bit(rows, request):
    federation = request.getfixturevalue(rows)
    fedavg, fedper = trained(federation, methods.get("fedavg")), trained(federation, methods.get("fedper", layers=0))
    assert same(states(fedavg), states(fedper))
    assert answer_alike(fedavg, fedper)
    assert traffic(fedavg) == traffic(fedper)


@pytest.mark.parametrize("rows", ["images", "tables"])
def test_everything_personal_is_local_to_the_bit(rows, request):
    federation = request.getfixturevalue(rows)
    local, fedper = trained(federation, methods.get("local")), trained(federation, methods.get("fedper", layers=99))
    assert same(states(local), states(fedper))
    assert traffic(fedper) == (0, 0)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_last_layers_stay_at_the_client_and_the_rest_is_one(images, layers):
    """One by default; body and head are trained together."""
    engine = trained(images, methods.get("fedper", layers=layers) if layers > 1 else methods.get("fedper"))
    module = engine.clients[0].models["private"]
    head = parts.names(parts.Head(layers), module)
    assert len(head) == 2 * layers
    first, *others = states(engine)
    for other in others:
        for name in first:
            assert torch.equal(first[name], other[name]) == (name not in head), name
    shared = sum(t.numel() for name, t in module.state_dict().items() if name not in head)
    assert traffic(engine) == (2 * 3 * 4 * shared,) * 2


def test_the_head_learns_in_the_bodys_epochs(images):
    """One round from one start: every weight, before the average, is Local's."""
    local, fedper = (trained(images, methods.get(name), rounds=1) for name in ("local", "fedper"))
    for a, b in zip(states(local), states(fedper), strict=True):
        assert torch.equal(a["head.weight"], b["head.weight"])
        assert torch.equal(a["head.bias"], b["head.bias"])
        assert not torch.equal(a["hidden.weight"], b["hidden.weight"])


def test_a_regression_has_heads_of_its_own(tables):
    engine = trained(tables, methods.get("fedper"))
    heads = [state["head.weight"] for state in states(engine)]
    assert not torch.equal(heads[0], heads[1])
    assert all(torch.isfinite(a).all() for a in answers(engine))
