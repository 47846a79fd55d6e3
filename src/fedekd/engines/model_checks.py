"""Whether a model fits the rows: it is made and given blank ones, before anything is trained."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedekd import models
from fedekd.engines import return_checks
from fedekd.engines.job import Job
from fedekd.errors import FedekdError
from fedekd.exchange import exchanges, same_shapes

T = TypeVar("T")
_FITTING: dict[Any, None] = {}
_CHANNELS_LAST: dict[Any, bool] = {}


def once(known: dict[Any, T], key: Any, find: Callable[[], T]) -> T:
    """What ``find`` gave for this key before, or gives now; nothing is kept under a key that cannot be hashed."""
    try:
        hash(key)
    except TypeError:
        return find()
    if key not in known:
        known[key] = find()
    return known[key]


def check_models(job: Job, own: Mapping[str, nn.Module]) -> None:
    """Of all clients, where each may have its own; ``own``: the first client's. A model that fits the rows is not tried
    again for the next method."""
    method, names, dataset = job.method, job.federation.names, job.federation.dataset
    sent = {name for name, step in exchanges(method, job.training.rounds).items() if step.send is None}
    starts, fits = _starts(job), (tuple(dataset.x.shape[1:]), dataset.outputs)
    for role in [role for role in method.roles if role not in method.heads]:
        root = method.root(role)
        firsts = [k for one, k in starts if one == root]
        every = [built(job, root, k) if k else own[role] for k in firsts]
        for k, module in zip(firsts, every, strict=True):
            once(_FITTING, (job.factory(root), k, *fits), partial(check_model, role, module, *fits))
        if role in sent:
            same_shapes([module.state_dict() for module in every], role, [names[k] for k in firsts])


def check_starts(job: Job, clients: Iterable[tuple[int, Mapping[str, nn.Module]]]) -> None:
    """Each model has weights of its own, and all from one factory begin alike, so that Δ shows the method alone."""
    seen, known = set[int](), dict[tuple[str, int], Mapping[str, Tensor]]()
    for k, own in clients:
        likes = dict(job.like_clients(k))
        for role, module in own.items():
            if role in job.method.heads:
                continue
            root = job.method.root(role)
            weights = {id(w) for w in models.trainable(module).values()}
            if weights & seen:
                raise FedekdError(
                    f"the {root} model factory returns the same weights twice; it must make a new module each time"
                )
            seen |= weights
            state = module.state_dict()
            first = known.setdefault((root, likes[root]), state)
            if state.keys() != first.keys() or not all(torch.equal(t, first[name]) for name, t in state.items()):
                raise FedekdError(
                    f"the {root} model factory begins with other weights each time, so methods could not be compared; "
                    "draw them with torch, whose seed is set"
                )


def _starts(job: Job) -> list[tuple[str, int]]:
    """What all clients begin with, each once: see ``Job.like_clients``."""
    return list(dict.fromkeys(one for k in range(len(job.federation.names)) for one in job.like_clients(k)))


def lone_row(job: Job) -> str | None:
    """A client whose last batch of training rows has one row."""
    named = zip(job.federation.names, job.federation.clients, strict=True)
    size = job.training.batch_size
    return next((name for name, own in named if len(own.train) and (len(own.train) - 1) % size == 0), None)


def check_one_row(job: Job, client: str) -> None:
    """Whether the models train on the one row that this client's last batch has."""
    for role, k in _starts(job):
        if not takes_one(built(job, role, k), job.federation.dataset.x.shape[1:]):
            raise FedekdError(
                f"the {role} model cannot train on a batch of one row (batch norm?), and client {client} has one with "
                f"--batch-size {job.training.batch_size}; choose another"
            )


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


def takes_channels_last(job: Job, root: str, client: int, module: nn.Module) -> bool:
    """Whether a client's model works with images in that memory order: a ``view`` of what a convolution gives does not.

    Clients that begin with the same model are tried once.
    """
    shape, like = tuple(job.federation.dataset.x.shape[1:]), dict(job.like_clients(client))[root]
    return once(_CHANNELS_LAST, (job.factory(root), like, shape), lambda: _takes_channels_last(module, shape))


@torch.no_grad()
def _takes_channels_last(module: nn.Module, shape: Sequence[int]) -> bool:
    try:
        other = copy.deepcopy(module).eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.random.fork_rng(devices=[]):
            other(torch.zeros(2, *shape))
    except Exception as error:  # what else a user's model may raise is found in either order
        return "view size is not compatible" not in str(error)
    return True


def buffered(module: nn.Module) -> bool:
    return any(True for _ in module.buffers())


def line(error: Exception) -> str:
    text = " ".join(str(error).split("\n")[0].split()).partition(" Hint:")[0][:200]
    return text if isinstance(error, FedekdError) else f"{type(error).__name__}: {text}"
