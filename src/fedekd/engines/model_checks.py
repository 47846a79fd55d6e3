"""Whether a model fits the rows: it is made and given blank ones, before anything is trained."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedekd import models
from fedekd.engines import return_checks
from fedekd.engines.job import Job
from fedekd.errors import FedekdError


def check_model(role: str, module: nn.Module, wanted: Sequence[int], outputs: int) -> None:
    """Two blank rows through a model: whether it takes them must not depend on anyone's rows."""
    if not models.trainable(module):
        raise FedekdError(f"the {role} model has no weights to train")
    shape, device = tuple(wanted), next(module.parameters()).device
    training = module.training
    try:
        with torch.no_grad():
            given = module.eval()(torch.zeros(2, *shape, device=device))
    except Exception as error:  # a user's model may raise anything
        raise FedekdError(f"the {role} model does not take rows of shape {shape}: {line(error)}") from None
    finally:
        module.train(training)
    if not isinstance(given, Tensor):
        raise FedekdError(
            f"the {role} model gives {return_checks.kind(given)}; it must give a tensor of shape (2, {outputs})"
        )
    if given.shape != (2, outputs) and not (outputs == 1 and given.shape == (2,)):
        raise FedekdError(f"the {role} model gives {tuple(given.shape)} for two rows; it must give (2, {outputs})")


def built(job: Job, root: str, client: int) -> nn.Module:
    dataset = job.federation.dataset
    shape = tuple(dataset.x.shape[1:])
    try:
        return models.build(root, job.factory(root), shape, dataset.outputs, job.seed, client)
    except FedekdError as error:
        raise FedekdError(line(error)) from None
    except Exception as error:  # a user's factory may raise anything
        raise FedekdError(
            f"the {root} model cannot be made for rows of shape {shape} and {dataset.outputs} outputs: {line(error)}"
        ) from None


def takes_one(module: nn.Module, shape: Sequence[int]) -> bool:
    if not buffered(module):
        return True
    try:
        with torch.no_grad():
            copy.deepcopy(module).train()(torch.zeros(1, *shape))
    except ValueError:
        return False
    return True


def buffered(module: nn.Module) -> bool:
    return any(True for _ in module.buffers())


def line(error: Exception) -> str:
    text = " ".join(str(error).split("\n")[0].split())[:200]
    return text if isinstance(error, FedekdError) else f"{type(error).__name__}: {text}"
