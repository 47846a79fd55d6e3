"""Parts of a model, by its layers, so that they can be trained, sent or kept apart from the rest.

A part is a function of a module that gives names from its ``state_dict``. Those here compare equal when they mean the
same, so that runs which differ in nothing else can still be stacked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedekd.errors import FedekdError

if TYPE_CHECKING:
    from torch import nn

    from fedekd.methods.base import Part


@dataclass(frozen=True)
class Head:
    """The last layers that have weights, in the order in which the module registers them."""

    layers: int = 1

    def __call__(self, module: nn.Module) -> list[str]:
        own = [_own(path, layer) for path, layer in module.named_modules(remove_duplicate=False)]
        last = [names for names in own if names][-self.layers :] if self.layers else []
        return _known(module, [name for names in last for name in names])

    def __str__(self) -> str:
        return "its last layer" if self.layers == 1 else f"its last {self.layers} layers"


@dataclass(frozen=True)
class Norms:
    """Normalisation layers of any kind, wherever they stand: scale, shift and running statistics."""

    def __call__(self, module: nn.Module) -> list[str]:
        from torch.nn import GroupNorm, LayerNorm, LocalResponseNorm, RMSNorm
        from torch.nn.modules.batchnorm import _BatchNorm
        from torch.nn.modules.instancenorm import _InstanceNorm

        kinds = (_BatchNorm, _InstanceNorm, GroupNorm, LayerNorm, RMSNorm, LocalResponseNorm)
        found = [_own(path, layer) for path, layer in module.named_modules() if isinstance(layer, kinds)]
        return _known(module, [name for names in found for name in names])

    def __str__(self) -> str:
        return "its norm layers"


@dataclass(frozen=True)
class Named:
    """Whatever a regular expression finds in the name."""

    pattern: str

    def __call__(self, module: nn.Module) -> list[str]:
        return [name for name in module.state_dict() if re.search(self.pattern, name)]

    def __str__(self) -> str:
        return f"what {self.pattern!r} names"


@dataclass(frozen=True)
class AllBut:
    """Everything in the module but a part."""

    part: Callable[[nn.Module], Collection[str]]

    def __call__(self, module: nn.Module) -> list[str]:
        left_out = set(names(self.part, module))
        return [name for name in module.state_dict() if name not in left_out]

    def __str__(self) -> str:
        return f"all but {self.part}"


def names(part: Part | None, module: nn.Module) -> list[str]:
    """The names of a part in the order of the module's state; all of them where no part is given.

    A tensor that the module holds under several names (tied weights) is in the part under all of them, so that what
    one name keeps at home does not leave under another.
    """
    every = module.state_dict(keep_vars=True)
    if part is None:
        return list(every)
    wanted = set(part(module))
    if not wanted <= set(every):
        raise FedekdError(
            f"{type(module).__name__} has no {sorted(wanted - set(every))[0]!r}, which a part of it names"
        )
    tensors = {id(every[name]) for name in wanted}
    return [name for name, tensor in every.items() if id(tensor) in tensors]


def _own(path: str, layer: nn.Module) -> list[str]:
    """The names of a layer's own weights and buffers, not of the layers inside of it."""
    found = [*layer._parameters, *(b for b in layer._buffers if b not in layer._non_persistent_buffers_set)]
    return [f"{path}.{name}" if path else name for name in found if getattr(layer, name) is not None]


def _known(module: nn.Module, found: list[str]) -> list[str]:
    every = module.state_dict()
    return [name for name in found if name in every]
