"""FedGH: the server's steps on class means, and the control in which it takes none."""

from __future__ import annotations

import pytest
import torch

from distilling import engine_of, equal, resumed, trained
from fedekd import methods
from fedekd.errors import FedekdError
from fedekd.methods.uploads import Uploads
from fedekd.models import CNN

METHOD = methods.get("fedgh")
DRAW = torch.Generator().manual_seed(0)
START = {"head.weight": torch.randn(3, 4, generator=DRAW), "head.bias": torch.randn(3, generator=DRAW)}


def served(method, *uploads, start=START):
    given = [{"means": means, "exist": torch.tensor(exist)} for means, exist in uploads]
    facts = {"weights": torch.ones(len(given)) / len(given), "memory": {}, "clients": len(given)}
    return method.header(Uploads(given=given, previous=start, numbers=range(len(given)), average=None, **facts))[0]


def stepped(weight, bias, h, c, rate):
    error = (weight @ h + bias).softmax(-1) - torch.eye(3)[c]
    return weight - rate * torch.outer(error, h), bias - rate * error


@pytest.mark.parametrize("rate", [0.01, 0.5])
def test_one_step_is_the_gradient_of_cross_entropy(rate):
    means = torch.randn(3, 4, generator=DRAW)
    answer = served(methods.get("fedgh", rate=rate), (means, [False, True, False]))
    weight, bias = (t.clone().requires_grad_() for t in START.values())
    torch.nn.functional.cross_entropy((weight @ means[1] + bias)[None], torch.tensor([1])).backward()
    torch.testing.assert_close(answer["head.weight"], (weight - rate * weight.grad).detach())
    torch.testing.assert_close(answer["head.bias"], (bias - rate * bias.grad).detach())


def test_steps_follow_client_by_client_and_class_by_class():
    a, b = torch.randn(2, 3, 4, generator=DRAW)
    answer = served(methods.get("fedgh", rate=0.3, passes=2), (a, [True, False, True]), (b, [False, True, False]))
    weight, bias = START.values()
    for h, c in 2 * [(a[0], 0), (a[2], 2), (b[1], 1)]:
        weight, bias = stepped(weight, bias, h, c, 0.3)
    torch.testing.assert_close(answer["head.weight"], weight)
    torch.testing.assert_close(answer["head.bias"], bias)


def test_a_header_without_bias_and_one_that_is_not_linear():
    means = torch.randn(3, 4, generator=DRAW)
    weight = {"head.weight": START["head.weight"]}
    expected = stepped(START["head.weight"], torch.zeros(3), means[2], 2, 0.01)[0]
    torch.testing.assert_close(served(METHOD, (means, [False, False, True]), start=weight)["head.weight"], expected)
    with pytest.raises(FedekdError, match="fedgh needs a model whose last layer is linear"):
        served(METHOD, (means, [True] * 3), start={"norm.weight": torch.ones(3), "norm.bias": torch.ones(3)})


def heads(engine):
    return [{n: t.clone() for n, t in client.models["private"].head.state_dict().items()} for client in engine.clients]


def test_with_rate_0_every_round_begins_with_the_first_header(images):
    engine = engine_of(images, methods.get("fedgh-reset"))
    first = heads(engine)[0]
    engine.round()
    assert not any(torch.equal(head["weight"], first["weight"]) for head in heads(engine))
    for _ in range(2):
        engine._exchange(engine.method.steps(1)[0], range(3))
        assert all(torch.equal(head[n], first[n]) for head in heads(engine) for n in first)
        engine.round()


def test_the_server_goes_on_with_the_header_that_it_has(images):
    engine = engine_of(images, METHOD)
    engine.round()
    seen = [dict(engine.server.sent["prototypes"])]
    for _ in range(2):
        engine._exchange(METHOD.steps(1)[0], range(3))
        seen.append(dict(engine.server.sent["prototypes"]))
        assert all(torch.equal(head["weight"], seen[-1]["head.weight"]) for head in heads(engine))
    assert set(seen[0]) == {"head.weight", "head.bias"}
    one_pass = (seen[1]["head.weight"] - seen[0]["head.weight"]).norm()
    assert 0 < one_pass < (seen[2]["head.weight"] - seen[0]["head.weight"]).norm()


def test_the_first_round_is_local_and_bodies_never_travel(images):
    assert equal(trained(images, methods.get("local"), 1), trained(images, METHOD, 1))
    engine = trained(images, METHOD, 2)
    assert not equal(trained(images, methods.get("local"), 2), engine)
    assert not equal(trained(images, methods.get("fedgh-reset"), 3), trained(images, METHOD, 3))
    means, header = 10 * 12 * 4 + 10, (10 * 12 + 10) * 4
    assert (engine.door.bytes_up, engine.door.bytes_down) == (3 * means, 3 * header)


def test_bodies_may_differ_but_not_in_the_width_of_features(images):
    trained(images, METHOD, 2, private=lambda shape, outputs, client: CNN(shape, outputs, (3 + client,), 8))
    engine = engine_of(images, METHOD, private=lambda shape, outputs, client: CNN(shape, outputs, (3,), 8 + client))
    engine.round()
    with pytest.raises(FedekdError, match="fedgh needs features of one width"):
        engine.round()


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_it_goes_on_after_an_interruption_to_the_same_bits(images, participation):
    through, again = resumed(images, METHOD, participation=participation)
    assert equal(through, again)
    assert torch.equal(through.server.sent["prototypes"]["head.weight"], again.server.sent["prototypes"]["head.weight"])
