"""What a batch computes for every method, and which parameters a method takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import torch

from fedekd.errors import FedekdError
from fedekd.methods.base import ClientInit, Exchange, Method, Remember, Train
from fedekd.methods.batch import gradient_alone, gradient_in_a_map, no_gradient
from fedekd.tasks import Regression
from hand_batch import gradients, hand_batch
from tiny import tiny_private


def test_a_batch_by_hand():
    outputs = {r: torch.tensor(v, requires_grad=True) for r, v in (("private", [2.0, 4.0, 9.0]), ("proxy", [5.0] * 3))}
    batch = hand_batch(Regression(), torch.tensor([1.0, 1.0, 1.0]), outputs, mask=torch.tensor([True, True, False]))
    assert batch.mean(torch.tensor([1.0, 2.0, math.nan])).item() == 1.5
    assert batch.supervised("private").item() == pytest.approx((1 + 9) / 2)
    assert batch.supervised("proxy").item() == pytest.approx(16)
    distance = batch.distilled("private", teacher="proxy")
    assert distance.tolist() == [9, 1, 16]
    found = gradients(distance.sum(), outputs)
    assert found["private"].tolist() == [-6, -2, 8]
    assert found["proxy"] is None


@dataclass(frozen=True)
class Bounded(Method):
    """One parameter of each kind of bound"""

    free: float = 1.0
    above: float = field(default=1.0, metadata={"open": True})
    between: float = field(default=0.5, metadata={"low": 0.25, "high": 0.75})
    whole: int = 1
    on: bool = False
    text: str = "text"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"free": 0},
        {"free": 0.5},
        {"above": 1e-300},
        {"between": 0.25},
        {"between": 0.75},
        {"whole": 0},
        {"free": 1e300},
        {"text": ""},
        {"on": True},
    ],
)
def test_values_within_their_bounds_pass(given):
    Bounded(**given).check("classification")
    Bounded(**given).check("regression")


@pytest.mark.parametrize(
    "given",
    [
        {"free": -1e-300},
        {"free": math.inf},
        {"free": math.nan},
        {"above": 0},
        {"above": -1},
        {"between": 0.2499},
        {"between": 0.7501},
        {"between": math.nan},
        {"whole": -1},
    ],
)
def test_values_past_their_bounds_do_not(given):
    with pytest.raises(FedekdError, match=next(iter(given))):
        Bounded(**given).check("classification")


def test_what_a_method_is_unless_it_says_otherwise():
    method, batch = Method(), hand_batch(Regression(), torch.zeros(1), {"private": torch.tensor([2.5])})
    assert (method.roles, method.reads_weights, method.uniforms) == (("private",), (), 0)
    assert method.needs_features is False
    assert method.begin(ClientInit(weights={}, features={}, seed=0, targets=torch.ones(2))) == {}
    assert method.predict(batch).tolist() == [2.5]
    assert method.personalise() == ()
    assert method.examine(batch) is None
    assert Train(("private",), lambda batch: batch.y).frozen == ()
    assert (Remember(dict).split, Remember(dict).roles) == (None, ())
    assert Exchange("proxy").target == "proxy"
    assert Exchange("means", send=dict).target is None


def test_a_model_is_applied_where_there_are_inputs():
    batch = hand_batch(Regression(), torch.zeros(2), {})
    with pytest.raises(FedekdError, match="not to a whole split"):
        batch.apply("private", {})
    given = replace(batch, x=torch.ones(2), forward=lambda role, tree, x: tree["w"] * x)
    weights = {"w": torch.tensor(3.0, requires_grad=True)}
    assert given.apply("private", weights).tolist() == [3.0, 3.0]
    assert given.apply("private", weights, torch.arange(3.0)).tolist() == [0.0, 3.0, 6.0]
    slope = given.gradient("private", weights, lambda out: out.square().sum())
    assert slope["w"].item() == 12.0
    assert not slope["w"].requires_grad


def test_a_gradient_is_the_same_to_the_bit_with_and_without_torch_func():
    torch.manual_seed(0)
    module, x, y = tiny_private((1, 8, 8), 4), torch.rand(16, 1, 8, 8), torch.randint(4, (16,))
    weights = {**{name: w.detach() for name, w in module.named_parameters()}, "unused": torch.ones(2)}

    def loss(tree):
        own = {name: w for name, w in tree.items() if name != "unused"}
        return torch.nn.functional.cross_entropy(torch.func.functional_call(module, own, (x,)), y)

    expected, found = gradient_in_a_map(loss, weights), gradient_alone(loss, weights)
    assert list(expected) == list(found)
    assert all(torch.equal(expected[name], g) and not g.requires_grad for name, g in found.items())
    assert found["unused"].tolist() == [0.0, 0.0]
    assert any(g.any() for g in found.values())
    assert not any(w.requires_grad for w in weights.values())
    for way in (gradient_in_a_map, gradient_alone):
        assert not any(g.any() for g in way(lambda tree: torch.tensor(2.0), weights).values())
    zeros = no_gradient(loss, weights)
    assert {name: g.shape for name, g in zeros.items()} == {name: w.shape for name, w in weights.items()}
    assert not any(g.any() for g in zeros.values())
