"""Functions of stacked tensors [models, ...] that ``torch.func.vmap`` calls once for all models."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def over_models(function: Any, info: Any, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> tuple[Any, Any]:
    """The ``vmap`` of an autograd function, called once on what holds all models; its last input is no tensor."""
    size, *tensors = info.batch_size, *zip(inputs[:-1], in_dims, strict=False)
    whole: list[Tensor] = [t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0) for t, dim in tensors]
    outputs = function.apply(*(t.flatten(0, 1) for t in whole), inputs[-1])
    return tuple(t.unflatten(0, (size, -1)) for t in outputs), tuple(0 for _ in outputs)
