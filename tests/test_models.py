"""Private and proxy models: the paper's sizes, shared starts, and factories of the user's."""

from __future__ import annotations

import functools
import itertools
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fedekd import architectures, models
from fedekd.errors import FedekdError
from fedekd.settings import model_name
from lines import one_line


def count(module: nn.Module) -> int:
    return sum(w.numel() for w in module.parameters())


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([w.detach().flatten() for w in module.parameters()])


# Architectures


def test_the_papers_private_cnn():
    """28 -> 14 -> 7 -> 3: pooled after each of three convolutions."""
    convolutions = (9 * 1 * 64 + 64) + (9 * 64 * 128 + 128) + (9 * 128 * 128 + 128)
    linears = (3 * 3 * 128 * 256 + 256) + (256 * 10 + 10)
    assert count(models.private((1, 28, 28), 10)) == convolutions + linears == 519_818


def test_the_papers_proxy_cnn():
    """28 -> 14 -> 7."""
    convolutions = (9 * 1 * 32 + 32) + (9 * 32 * 64 + 64)
    linears = (7 * 7 * 64 * 128 + 128) + (128 * 10 + 10)
    assert count(models.proxy((1, 28, 28), 10)) == convolutions + linears == 421_642


def test_colour_images_of_32():
    assert models.private((3, 32, 32), 10).hidden.in_features == 128 * 4 * 4
    assert models.proxy((3, 32, 32), 10).hidden.in_features == 64 * 8 * 8


@pytest.mark.parametrize(("make", "channels"), [(models.private, 128), (models.proxy, 64)])
def test_fundus_images_enter_the_first_linear_layer_as_4x4(make, channels):
    module = make((3, 224, 224), 1)
    assert module.hidden.in_features == channels * 4 * 4
    with torch.no_grad():
        assert module.body(torch.zeros(1, 3, 224, 224)).shape == (1, channels, 4, 4)
        assert module(torch.zeros(1, 3, 224, 224)).shape == (1, 1)


@pytest.mark.parametrize("make", [models.private, models.proxy])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 1, 1), (3, 2, 2), (1, 7, 5), (2, 1, 9), (1, 5, 40), (1, 64, 3)])
def test_images_of_any_size_work(make, shape):
    module = make(shape, 5)
    assert module(torch.zeros(3, *shape)).shape == (3, 5)


def test_pooling_takes_the_largest_and_no_batch_sees_another():
    """A sample's output does not depend on its batch: there is no batch norm."""
    torch.manual_seed(0)
    module = models.private((1, 8, 8), 4)
    x = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(module(x)[2:3], module(x[2:3]))
    assert [type(m).__name__ for m in module.body] == ["Conv2d", "MaxPool2d", "ReLU"] * 3
    assert not list(module.buffers())


def test_tables_have_a_wide_and_a_narrow_mlp():
    private, proxy = models.private((10,), 1), models.proxy((10,), 1)
    assert count(private) == (10 * 128 + 128) + (128 * 128 + 128) + (128 + 1)
    assert count(proxy) == (10 * 32 + 32) + (32 + 1)
    assert private(torch.zeros(4, 10)).shape == proxy(torch.zeros(4, 10)).shape == (4, 1)


# Weights


def built(role="private", seed=0, client=0, make=models.proxy):
    return weights(models.build(role, make, (6,), 3, seed, client))


def test_a_seed_and_role_give_all_clients_one_start():
    assert torch.equal(built(client=0), built(client=5))
    for a, b in itertools.combinations([built(), built(seed=1), built(seed=2), built(role="proxy")], 2):
        assert not torch.equal(a, b)
        assert not (a == b).any()


def test_a_start_depends_on_nothing_that_ran_before():
    first = built()
    torch.manual_seed(99)
    built(seed=5)
    torch.randn(7)
    assert torch.equal(first, built())


def test_building_leaves_the_callers_random_state_alone():
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    built()
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002

    def broken(shape, outputs):
        raise ZeroDivisionError

    with pytest.raises(FedekdError, match="ZeroDivisionError"):
        built(make=broken)
    assert torch.equal(before[0], torch.get_rng_state())


def test_building_leaves_the_gpus_random_states_alone(monkeypatch):
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    built()
    assert seeded == []


# Factories

MODULE = """
from torch import nn

def wide(shape, outputs):
    return nn.Linear(shape[0], outputs, bias=False)

def growing(shape, outputs, client):
    return nn.Sequential(nn.Linear(shape[0], 2 + client), nn.Linear(2 + client, outputs))

class Own(nn.Module):
    def __init__(self, shape, outputs, *, client=0):
        super().__init__()
        self.client, self.layer = client, nn.Linear(shape[0], outputs)

number = 3
def none(shape, outputs): return None
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's module ``clinic.nets``."""
    (tmp_path / "clinic").mkdir()
    (tmp_path / "clinic" / "__init__.py").touch()
    (tmp_path / "clinic" / "nets.py").write_text(MODULE)
    (tmp_path / "needs.py").write_text("import a_module_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("clinic.nets", "clinic", "needs"):
        sys.modules.pop(name, None)


def make(given, client=0, role="private"):
    return models.build(role, models.factory(role, given), (4,), 2, 0, client)


def test_the_built_in_factories():
    assert models.factory("private", None) is models.private
    assert models.factory("proxy", None) is models.proxy


@pytest.mark.usefixtures("own")
def test_factories_by_name():
    assert count(make("clinic.nets:wide")) == 8
    assert torch.equal(weights(make("clinic.nets:wide")), weights(make("clinic.nets:wide", client=3)))
    assert [count(make("clinic.nets:growing", client=k)) for k in (0, 1, 4)] == [16, 23, 44]
    assert make("clinic.nets:Own", client=7).client == 7


def test_factories_by_callable():
    def function(shape, outputs, client=None):
        return nn.Linear(shape[0], outputs + client)

    assert make(function, client=2).out_features == 4
    assert make(lambda shape, outputs: nn.Linear(shape[0], outputs)).out_features == 2
    sized = functools.partial(models.CNN, widths=(2,), hidden=3)
    assert models.build("proxy", sized, (1, 8, 8), 2, 0, 0).hidden.in_features == 32


def test_only_a_factory_that_names_the_client_may_differ():
    assert models.takes_client(lambda shape, outputs, client: None)
    assert models.takes_client(lambda shape, outputs, *, client=0: None)
    assert not models.takes_client(models.private)
    assert not models.takes_client(lambda shape, outputs, **more: None)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("clinic.nets:wid", "has no attribute 'wid'"),
        ("clinic.net:wide", "No module named 'clinic.net'"),
        ("nowhere:wide", "No module named 'nowhere'"),
        ("clinic.nets", "package.module:function"),
        ("clinic.nets:", "package.module:function"),
        (":wide", "package.module:function"),
        ("", "package.module:function"),
        ("needs:f", "a_module_that_is_not_there"),
        ("clinic.nets:number", "is not a function or class"),
        ("clinic/nets.py:wide", "package.module:function"),
        (".nets:wide", "package.module:function"),
        (5, "package.module:function"),
    ],
)
def test_a_factory_that_cannot_be_had_costs_one_line(given, said):
    with pytest.raises(FedekdError, match="the proxy model") as error:
        models.factory("proxy", given)
    assert said in one_line(error)
    assert repr(given) in one_line(error)


@pytest.mark.usefixtures("own")
def test_a_factory_must_return_a_module():
    with pytest.raises(FedekdError, match="private model factory returned NoneType, not an nn") as error:
        make("clinic.nets:none")
    one_line(error)


def test_features_are_what_enters_the_last_linear_layer():
    assert models.last_linear(models.private((1, 8, 8), 3)).in_features == 256
    assert models.last_linear(models.proxy((5,), 3)).in_features == 32
    with pytest.raises(FedekdError, match="Conv2d has no linear layer") as error:
        models.last_linear(nn.Conv2d(1, 1, 1))
    one_line(error)


def test_pooling_before_relu_is_the_same_function():
    """The paper's order, ReLU first, gives the same outputs and gradients to the bit."""
    ours = models.private((1, 28, 28), 10)
    body = list(ours.body)
    for i in range(0, len(body), 3):
        body[i + 1], body[i + 2] = body[i + 2], body[i + 1]
    x, y = torch.randn(6, 1, 28, 28), torch.randint(0, 10, (6,))
    gradients, outputs = [], []
    for layers in (ours.body, torch.nn.Sequential(*body)):
        ours.zero_grad()
        outputs.append(ours.head(torch.relu(ours.hidden(layers(x).flatten(1)))))
        torch.nn.functional.cross_entropy(outputs[-1], y).backward()
        gradients.append([w.grad.clone() for w in ours.parameters()])
    assert torch.equal(*outputs)
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_call_with_other_weights_leaves_the_module_as_it_was():
    """Also where a layer is registered twice, or two layers share a weight."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.again, self.b.weight = self.a, self.a.weight

        def forward(self, x):
            return self.b(self.again(self.a(x)))

    module, x = Shared(), torch.ones(2, 3)
    before = {name: (w, w.detach().clone()) for name, w in module.named_parameters(remove_duplicate=False)}
    other = Shared()
    found = models.call(module, dict(other.named_parameters()), x)
    assert torch.equal(found, other(x))
    for name, w in module.named_parameters(remove_duplicate=False):
        assert w is before[name][0]
        assert torch.equal(w, before[name][1])


@pytest.mark.parametrize("name", architectures.NAMED)
def test_named_models_take_images_and_tables(name):
    make = models.factory("private", name)
    assert architectures.name_of(model_name(make)) == name
    if "tables" in architectures.NAMED[name].rows:
        assert make((7,), 2)(torch.zeros(3, 7)).shape == (3, 2)
    else:
        with pytest.raises(FedekdError, match="is for images"):
            make((7,), 2)
    for shape in ((1, 8, 8), (1, 28, 28), (3, 33, 32)) if "18" not in name else ((3, 32, 32),):
        module = make(shape, 5)
        assert module(torch.zeros(2, *shape)).shape == (2, 5)
        assert models.last_linear(module).out_features == 5


def test_the_defaults_have_names():
    for shape, private, proxy in (((1, 28, 28), "cnn", "cnn-small"), ((9,), "mlp", "mlp-small")):
        for default, name in ((models.private, private), (models.proxy, proxy)):
            ours, named = default(shape, 10), models.factory("private", name)(shape, 10)
            assert repr(ours) == repr(named)


def test_a_list_is_dealt_over_clients():
    make = models.factory("private", "mlp, linear,mlp")
    assert [models.like_client(make, k) for k in range(5)] == [0, 1, 0, 0, 1]
    sizes = [sum(w.numel() for w in models.build("private", make, (4,), 2, 0, k).parameters()) for k in range(4)]
    assert sizes[0] == sizes[2] == sizes[3] > sizes[1] == 10
    assert models.factory("private", [models.private, "linear"]).factories[0] is models.private
    with pytest.raises(FedekdError, match=r"the private model 'resnett' is not known.*resnet"):
        models.factory("private", "mlp,resnett")
