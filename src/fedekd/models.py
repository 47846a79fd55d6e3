"""Private/proxy pairs: a CNN for images, an MLP for tables, one of fedekd.architectures, or a factory of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from fedekd import architectures, rng
from fedekd.architectures.cnn import CNN
from fedekd.architectures.mlp import MLP
from fedekd.errors import FedekdError
from fedekd.objects import import_object

Factory = Callable[..., nn.Module]
Shape = Sequence[int]


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


def factory(role: str, given: str | Factory | Sequence[str | Factory] | None) -> Factory:
    """The built-in one of that role, one of ``fedekd.architectures`` by name, or the user's own: a callable, or
    ``package.module:function``. Of several, in a list or with commas between them, each client gets one in turn."""
    if given is None:
        return BUILT_IN[role]
    if callable(given):
        return given
    names = given.split(",") if isinstance(given, str) else given if isinstance(given, (list, tuple)) else [str(given)]
    every = tuple(_one(role, name.strip() if isinstance(name, str) else name) for name in names)
    if not every:
        raise FedekdError(f"no {role} model is named; try cnn, or cnn,mlp for two in turn")
    return every[0] if len(every) == 1 else Dealt(every)


def _one(role: str, given: str | Factory) -> Factory:
    if callable(given):
        return given
    if given in architectures.NAMED:
        built_in: Factory = architectures.factory(given)
        return built_in
    if ":" not in given:
        raise FedekdError(
            f"the {role} model {given!r} is not known: use one of {', '.join(architectures.NAMED)}, or "
            "package.module:function for one of your own"
        )
    found: Factory = import_object(given, f"the {role} model", "package.module:function")
    if not callable(found):
        raise FedekdError(f"the {role} model {given!r} is not a function or class")
    return found


def every_factory(make: Factory) -> tuple[Factory, ...]:
    """Those that clients' models come from."""
    return make.factories if isinstance(make, Dealt) else (make,)


def own_factory(make: Factory, client: int) -> Factory:
    """The factory that one client's model comes from."""
    return make.own(client) if isinstance(make, Dealt) else make


def takes_client(make: Factory) -> bool:
    """Whether a factory may give each client another architecture."""
    try:
        return "client" in inspect.signature(make).parameters
    except (ValueError, TypeError):  # written in C, which does not tell
        return False


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
        except FedekdError:
            raise
        except Exception as error:  # the user's code may raise anything
            what = f"the {role} model factory fails for shape {tuple(shape)} and {outputs} outputs"
            raise FedekdError(f"{what}: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise FedekdError(f"the {role} model factory returned {type(module).__name__}, not an nn.Module")
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        raise FedekdError(
            f"the {role} model has lazy layers, such as nn.LazyLinear; give their sizes, or call the model once on "
            "torch.zeros(2, *shape) before you return it"
        )
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
