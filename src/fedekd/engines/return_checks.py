"""What a method's functions may give back, in the same words for every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedekd.engines.schedule import numbered
from fedekd.errors import FedekdError
from fedekd.methods.base import Copy, Method, Remember, Step, Train
from fedekd.methods.batch import Batch
from fedekd.trees import map_tree


def broken(method: Method, where: str, why: str) -> FedekdError:
    return FedekdError(f"method {method.name!r}, {where}: {why}")


def kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "nothing" if value is None else f"{type(value).__name__}"


def loss_of(method: Method, step: Train, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """A step's loss and its per-sample diagnostics."""
    where, result = f"the loss of {' and '.join(step.roles)}", step.loss(batch)
    loss, extra = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not isinstance(loss, Tensor) or not isinstance(extra, Mapping):
        raise broken(method, where, f"it gives {kind(result)}; return a scalar tensor, and at most a dict beside it")
    if loss.dim():
        raise broken(method, where, f"it has the shape {tuple(loss.shape)}; take its mean with batch.mean")
    trust = extra.get("trust")
    if trust is not None and (not isinstance(trust, Tensor) or trust.shape != batch.y.shape[:1]):
        raise broken(method, where, f'its "trust" is {kind(trust)}; give one number for each sample')
    return loss, {} if trust is None else {"trust": trust}


def to_train(method: Method, step: Train, trees: Mapping[str, Mapping[str, Tensor]]) -> None:
    if not any(trees.values()):
        part = " in the part that the step names" if step.part else ""
        raise broken(method, f"a Train step of {' and '.join(step.roles)}", f"there is nothing to train{part}")


def remembered(method: Method, step: Remember, batch: Batch) -> dict[str, Any]:
    """What a client keeps: its own, whatever becomes of the tensors that it was made from."""
    found = step.compute(batch)
    if not isinstance(found, Mapping) or not _of_tensors(found):
        raise broken(method, "a Remember step", f"it gives {kind(found)}; return a dict of tensors")
    return map_tree(_own, found)


def made(method: Method, name: str, found: Any) -> dict[str, Tensor]:
    """What ``send`` has made: the server may keep it while the client's weights move on."""
    if not isinstance(found, Mapping) or not all(isinstance(t, Tensor) for t in found.values()):
        raise broken(method, f"what it sends as {name!r}", f"it is {kind(found)}; return a dict of tensors")
    return map_tree(_own, found)


def fits(method: Method, role: str, found: Any, shapes: Mapping[str, torch.Size]) -> None:
    """Raise for tensors that the model does not have in that name and shape."""
    if not isinstance(found, Mapping):
        raise FedekdError(
            f"method {method.name!r}: {kind(found)} cannot go into the {role} model; give a dict of tensors"
        )
    for name, tensor in found.items():
        if shapes.get(name) != tensor.shape:
            raise FedekdError(
                f"method {method.name!r}: the {role} model has no weight {name!r} of shape {tuple(tensor.shape)}"
            )


def copied(method: Method, step: Copy, found: Any, wanted: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The tensors that a copy puts into its target."""
    if isinstance(step.source, str) and (missing := [n for n in wanted if n not in found]):
        raise FedekdError(
            f"method {method.name!r}: the {step.source} model has no {missing[0]} to copy into {step.target}"
        )
    own = {n: t for n, t in found.items() if n in wanted} if isinstance(found, Mapping) else found
    fits(method, step.target, own, wanted)
    return own


def steps(method: Method, where: str, given: Any, kinds: tuple[type, ...]) -> Sequence[Step]:
    """What a method gave as its steps; raises for anything that is not of these kinds."""
    wrong = [step for step in given if not isinstance(step, kinds)] if isinstance(given, (tuple, list)) else [given]
    if wrong:
        *names, last = (one.__name__ for one in kinds)
        raise broken(method, where, f"it gives {kind(wrong[0])}; return a tuple of {', '.join(names)} and {last}")
    return given


def personal(method: Method) -> list[tuple[Train | Remember | Copy, int]]:
    """What is done before answering, numbered as the steps of a round are."""
    found = steps(method, "personalise()", method.personalise(), (Train, Remember, Copy))
    return numbered(found)  # type: ignore[return-value]


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _of_tensors(tree: Mapping[str, Any]) -> bool:
    return all(_of_tensors(v) if isinstance(v, Mapping) else isinstance(v, Tensor) for v in tree.values())
