"""Parts of a model: the last layers, the norms, what a name says, and the rest; shared weights are in one part only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedekd import parts
from fedekd.errors import FedekdError
from fedekd.models import CNN, MLP
from fedekd.parts import AllBut, Head, Named, Norms


def flat() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


class Nested(nn.Module):
    """A weight of its own, a body of blocks, one of them with a norm in a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        block = nn.ModuleDict({"main": nn.Linear(4, 4), "shortcut": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))})
        self.body = nn.ModuleList([nn.Linear(3, 4), block])
        self.top = nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 2, bias=False))


class Tied(nn.Module):
    """The last layer has the first one's weights, and a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight


def both(path: str) -> list[str]:
    return [f"{path}.weight", f"{path}.bias"]


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        (0, []),
        (1, both("4")),
        (2, [*both("2"), *both("4")]),
        (3, [*both("0"), *both("2"), *both("4")]),
        (99, [*both("0"), *both("2"), *both("4")]),
    ],
)
def test_the_head_is_the_last_layers_that_have_weights(layers, found):
    assert parts.names(Head(layers), flat()) == found
    assert parts.names(AllBut(Head(layers)), flat()) == [n for n in flat().state_dict() if n not in found]


def test_the_head_of_the_built_in_models_is_their_last_linear_layer():
    assert parts.names(Head(), CNN((1, 8, 8), 3, (4, 6), 12)) == both("head")
    assert parts.names(Head(2), CNN((1, 8, 8), 3, (4, 6), 12)) == [*both("hidden"), *both("head")]
    assert parts.names(Head(), MLP(5, 3, (6, 6))) == both("head")


def test_layers_inside_of_blocks_count_one_by_one():
    module = Nested()
    statistics = [f"body.1.shortcut.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")]
    norm = [*both("body.1.shortcut.1"), *statistics]
    assert parts.names(Head(1), module) == ["top.1.weight"]
    assert parts.names(Head(2), module) == [*norm, "top.1.weight"]
    assert parts.names(Head(3), module) == [*both("body.1.shortcut.0"), *norm, "top.1.weight"]
    assert parts.names(Head(4), module) == [n for n in module.state_dict() if n != "scale" and "body.0" not in n]
    assert parts.names(Head(5), module) == [n for n in module.state_dict() if n != "scale"]
    assert parts.names(Head(6), module) == list(module.state_dict()), "the module's own weight is its first layer"


def test_tied_weights_are_in_a_part_under_all_of_their_names():
    module = Tied()
    assert parts.names(Head(), module) == ["first.weight", "last.weight", "last.bias"]
    assert parts.names(AllBut(Head()), module) == both("middle")
    assert parts.names(Named("^first"), module) == ["first.weight", "last.weight"]
    assert parts.names(AllBut(Named("^first")), module) == [*both("middle"), "last.bias"]


def test_a_layer_that_is_used_twice_stands_where_it_is_used_last():
    shared, other = nn.Linear(4, 4), nn.Linear(4, 4)
    module = nn.Sequential(shared, nn.ReLU(), other, nn.ReLU(), shared)
    assert parts.names(Head(), module) == [*both("0"), *both("4")]
    assert parts.names(AllBut(Head()), module) == both("2")
    assert parts.names(Head(2), module) == list(module.state_dict())


@pytest.mark.parametrize(
    ("norm", "found"),
    [
        (nn.BatchNorm1d(4), ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]),
        (nn.BatchNorm2d(4, affine=False), ["running_mean", "running_var", "num_batches_tracked"]),
        (nn.BatchNorm1d(4, track_running_stats=False), ["weight", "bias"]),
        (nn.SyncBatchNorm(4), ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]),
        (nn.InstanceNorm1d(4, affine=True), ["weight", "bias"]),
        (nn.InstanceNorm2d(4), []),
        (nn.GroupNorm(2, 4), ["weight", "bias"]),
        (nn.LayerNorm(4), ["weight", "bias"]),
        (nn.RMSNorm(4), ["weight"]),
        (nn.LocalResponseNorm(2), []),
        (nn.Linear(4, 4), []),
        (nn.Dropout(), []),
    ],
)
def test_norms_are_found_by_their_type(norm, found):
    module = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"inside": nn.Sequential(norm)}))
    assert parts.names(Norms(), module) == [f"1.inside.0.{name}" for name in found]
    assert parts.names(AllBut(Norms()), module) == [
        n for n in module.state_dict() if n not in parts.names(Norms(), module)
    ]


def test_a_name_alone_makes_no_norm():
    module = nn.ModuleDict({"bn1": nn.Linear(2, 2), "shortcut": nn.Sequential(nn.BatchNorm1d(2, affine=False))})
    assert {name.split(".")[0] for name in parts.names(Norms(), module)} == {"shortcut"}


def test_named_parts_are_found_anywhere_in_the_name():
    module = Nested()
    assert parts.names(Named("bias$"), module) == [n for n in module.state_dict() if n.endswith("bias")]
    assert parts.names(Named(r"shortcut\.0"), module) == both("body.1.shortcut.0")
    assert parts.names(Named("nothing"), module) == []


def test_without_a_part_everything_is_meant_buffers_too():
    assert parts.names(None, Nested()) == list(Nested().state_dict())
    assert parts.names(AllBut(AllBut(Head())), flat()) == parts.names(Head(), flat())


def test_names_come_in_the_modules_order_whatever_the_parts():
    assert parts.names(lambda module: {"4.bias", "0.weight"}, flat()) == ["0.weight", "4.bias"]


def test_buffers_that_are_not_kept_belong_to_no_part():
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].register_buffer("scratch", torch.zeros(1), persistent=False)
    assert parts.names(Head(), module) == both("0")


@pytest.mark.parametrize("part", [lambda m: ["head.weight"], AllBut(lambda m: ["head.weight", "0.weight"])])
def test_a_name_that_the_module_does_not_have_costs_one_line(part):
    """Also where it names what stays at home: else a slip of the pen would send it."""
    with pytest.raises(FedekdError) as error:
        parts.names(part, flat())
    assert str(error.value) == "Sequential has no 'head.weight', which a part of it names"


def test_parts_that_mean_the_same_are_equal():
    assert Head(2) == Head(2)
    assert Head(2) != Head(1)
    assert AllBut(Norms()) == AllBut(Norms())
    assert len({Head(), Head(1), AllBut(Head()), AllBut(Head(1)), Norms(), Named("a"), Named("b")}) == 5
