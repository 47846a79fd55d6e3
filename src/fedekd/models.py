"""Private/proxy pairs: a CNN for images, an MLP for tables, or any ``nn.Module`` factory of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedekd import rng
from fedekd.errors import FedekdError
from fedekd.objects import import_object

Factory = Callable[..., nn.Module]
Shape = Sequence[int]


class CNN(nn.Module):
    """3x3 convolutions, each with ReLU and 2x2 max-pooling while the map allows it, then one hidden layer.

    Pooling comes before ReLU: the same function and gradients, with a quarter of the values to rectify.
    Maps larger than 8x8 at the end (inputs larger than 32x32 or so) are averaged to 4x4 before the hidden layer.
    """

    def __init__(self, shape: Shape, outputs: int, widths: Sequence[int], hidden: int) -> None:
        super().__init__()
        channels, height, width = shape
        layers: list[nn.Module] = []
        for out in widths:
            layers.append(nn.Conv2d(channels, out, 3, padding=1))
            channels = out
            if min(height, width) >= 2:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            layers.append(nn.ReLU())
        if max(height, width) > 8:
            layers.append(nn.AdaptiveAvgPool2d(4))
            height = width = 4
        self.body = nn.Sequential(*layers)
        self.hidden = nn.Linear(channels * height * width, hidden)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(self.body(x).flatten(1))))


class MLP(nn.Module):
    def __init__(self, inputs: int, outputs: int, widths: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def private(shape: Shape, outputs: int) -> nn.Module:
    """The paper's PrivateCNN (64-128-128, 256) for images; an MLP of 128-128 for tables."""
    return CNN(shape, outputs, (64, 128, 128), 256) if len(shape) == 3 else MLP(shape[0], outputs, (128, 128))


def proxy(shape: Shape, outputs: int) -> nn.Module:
    """The paper's ProxyCNN (32-64, 128) for images; an MLP of 32 for tables."""
    return CNN(shape, outputs, (32, 64), 128) if len(shape) == 3 else MLP(shape[0], outputs, (32,))


@dataclass(frozen=True)
class Dealt:
    """Several factories, dealt over the clients in turn: the k-th client has the k-th, and so on from the start."""

    factories: tuple[Factory, ...]

    def own(self, client: int) -> Factory:
        return self.factories[client % len(self.factories)]

    def __call__(self, shape: Shape, outputs: int, client: int) -> nn.Module:
        own = self.own(client)
        return own(shape, outputs, client=client) if takes_client(own) else own(shape, outputs)


BUILT_IN: dict[str, Factory] = {"private": private, "proxy": proxy}


def factory(role: str, given: str | Factory | None) -> Factory:
    """The user's factory (a callable, or ``package.module:function``), or the built-in one of that role."""
    if given is None:
        return BUILT_IN[role]
    if callable(given):
        return given
    found: Factory = import_object(str(given), f"the {role} model", "package.module:function")
    if not callable(found):
        raise FedekdError(f"the {role} model {given!r} is not a function or class")
    return found


def takes_client(make: Factory) -> bool:
    """Whether a factory may give each client another architecture."""
    return "client" in inspect.signature(make).parameters


def like_client(make: Factory, client: int) -> int:
    """A client that has the same model from this factory and the same start, the first where that is known."""
    if isinstance(make, Dealt):
        own = make.own(client)
        return client if takes_client(own) else make.factories.index(own)
    return client if takes_client(make) else 0


def build(role: str, make: Factory, shape: Shape, outputs: int, seed: int, client: int) -> nn.Module:
    """A fresh module with weights drawn from (seed, role): the same start for every client and method.

    A factory that takes ``client`` may give each client another architecture.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.integer(seed, "weights", role))
        try:
            module = make(shape, outputs, client=client) if takes_client(make) else make(shape, outputs)
        except TypeError as error:
            raise FedekdError(f"the {role} model factory must take (shape, outputs): {error}") from None
    if not isinstance(module, nn.Module):
        raise FedekdError(f"the {role} model factory returned {type(module).__name__}, not an nn.Module")
    return module


def call(module: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> Any:
    """What a module gives with other weights, which are named as in ``named_parameters``; it is left as it was.

    torch's own way with tied weights leaves a layer that is registered twice with the other weights for good.
    """
    given, places, first = dict(weights), set[tuple[int, str]](), dict[int, str]()
    for path, layer in module.named_modules(remove_duplicate=False):
        for own, w in layer._parameters.items():
            name = f"{path}.{own}" if path else own
            if w is None:
                continue
            if (id(layer), own) in places:
                given.pop(name, None)
                continue
            places.add((id(layer), own))
            other = first.setdefault(id(w), name)
            if name not in given and other in given:
                given[name] = given[other]
    return functional_call(module, given, (x,), tie_weights=False)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: w for name, w in module.named_parameters() if w.requires_grad}


def zero_head(module: nn.Module, outputs: int) -> nn.Linear:
    """A linear layer from a model's features to the outputs that begins with zeros."""
    head = nn.Linear(last_linear(module).in_features, outputs)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def with_features(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """A model's raw output, and its features."""
    caught: list[Tensor] = []
    hook = last_linear(module).register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    try:
        raw = module(x)
    finally:
        hook.remove()
    return raw, caught[-1].float()


def last_linear(module: nn.Module) -> nn.Linear:
    """The layer whose input counts as the model's features."""
    linears = [m for m in module.modules() if isinstance(m, nn.Linear)]
    if not linears:
        raise FedekdError(f"{type(module).__name__} has no linear layer, so it has no features")
    return linears[-1]
