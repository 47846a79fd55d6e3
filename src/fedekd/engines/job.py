"""What an engine is given to do, and the pieces both engines share."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedekd import models
from fedekd.dataset import Dataset
from fedekd.errors import FedekdError, unknown
from fedekd.exchange import exchanges
from fedekd.federation import TOO_MANY_ALONE, Federation
from fedekd.methods.base import Method, Train
from fedekd.tasks import Task, make_task

BINS = 20
MOMENTUM = {"sgd": 0.0, "momentum": 0.9}
SERVER = 2**32 - 1  # its number in the random streams, where it trains a model itself
PRECISIONS = ("fp32", "tf32", "bf16")
CPUINFO = Path("/proc/cpuinfo")
Advance = Callable[[int, str, int], None]  # (round, client, samples trained on)


@dataclass(frozen=True)
class Training:
    """Settings that all methods share."""

    rounds: int
    epochs: int
    batch_size: int
    lr: float
    optimizer: str = "adam"
    weighting: str = "uniform"
    device: str = "cpu"
    precision: str = "fp32"
    participation: float = 1.0
    weight_decay: float = 0.0
    lr_schedule: str = "constant"
    augment: str = "none"
    choose_rounds: bool = False
    """Whether each client ends with the model of the round with its lowest validation loss, not of the last."""
    metric: str | None = None
    """What Δ is taken in, where that is not the task's own metric."""
    combine: str = "mean"
    """How uploads become one: see ``robust``."""
    measure_every: int = 1
    """After how many rounds all clients are measured; they are after the last in any case."""

    def augments(self, split: str) -> bool:
        """Whether the batches of this split are flipped and cropped at random."""
        return self.augment != "none" and split == "train"

    def of(self, step: Train) -> Training:
        """The settings of one training step, which may have its own epochs, rate and optimiser."""
        own = {name: value for name in ("epochs", "lr", "optimizer") if (value := getattr(step, name)) is not None}
        return replace(self, **own) if own else self

    def at(self, round: int | None) -> Training:
        """With the learning rate of a round; None: outside of the rounds, as before a client answers."""
        if round is None or self.lr_schedule == "constant":
            return self
        return replace(self, lr=self.lr * (1 + math.cos(math.pi * round / self.rounds)) / 2)


@dataclass(frozen=True)
class Job:
    """One run: a federation, a method and a seed."""

    federation: Federation
    method: Method
    seed: int
    training: Training
    private: models.Factory = models.private
    proxy: models.Factory = models.proxy

    def __post_init__(self) -> None:
        dataset = self.federation.dataset
        if self.training.augment != "none" and dataset.x.ndim != 4:
            raise FedekdError(
                f"dataset {dataset.name!r} is a table, which cannot be flipped and cropped; leave augment out"
            )

    @property
    def task(self) -> Task:
        return make_task(self.federation.dataset.task, self.federation.target_std)

    @cached_property
    def participation(self) -> float:
        """The share of the clients that train in a round. Who trains alone is not drawn, and trains in all of them."""
        alone = self.method.twin == "alone" or not exchanges(self.method, self.training.rounds)
        return 1.0 if alone and not self.alone_is_drawn else self.training.participation

    @property
    def alone_is_drawn(self) -> bool:
        return len(self.federation.clients) >= TOO_MANY_ALONE

    def factory(self, role: str) -> models.Factory:
        return self.private if role == "private" else self.proxy

    def like_clients(self, client: int) -> tuple[tuple[str, int], ...]:
        """Equal for clients that begin with the same models: for each role that is no head and like no other, the
        first client known to have the same. The server begins as client 0."""
        roots = dict.fromkeys(self.method.root(role) for role in self.method.roles if role not in self.method.heads)
        return tuple((root, models.like_client(self.factory(root), client % SERVER)) for root in roots)

    def first_clients(self, first: int = 0) -> list[int]:
        """Of clients that begin with the same models, the first; they are numbered from ``first`` on."""
        clients = range(len(self.federation.clients))
        return sorted({self.like_clients(first + k): k for k in reversed(clients)}.values())

    def work(self) -> int:
        """Samples trained on in the whole run, for the progress display."""
        steps = (s for r in range(self.training.rounds) for s in self.method.steps(r) if isinstance(s, Train))
        passes = Counter[str]()  # over each split
        for step in steps:
            passes[step.split] += self.training.epochs if step.epochs is None else step.epochs
        return round(self.participation * sum(n * self._rows(split) for split, n in passes.items()))

    def _rows(self, split: str) -> int:
        """Rows of a split over all clients; each of them trains on all public rows."""
        clients = self.federation.clients
        return sum(len(self.federation.public if split == "public" else getattr(one, split)) for one in clients)


@dataclass(frozen=True, eq=False)
class Measured:
    """What one client's answers are worth after a round."""

    value: float  # the task's metric on the test rows
    val_value: float  # and on the validation rows, NaN where there are none
    val_loss: float  # the task's mean loss there
    errors: np.ndarray  # of each test row: see Task.errors
    val_losses: np.ndarray  # of each validation row
    answers: Callable[[str], np.ndarray]  # on "test" or "val": see Task.answers
    train_loss: float = math.nan  # the task's mean loss on some training rows, where it was asked for

    @property
    def val_error(self) -> float:
        """The standard error of ``val_loss``; NaN with fewer than two rows."""
        rows = len(self.val_losses)
        return float(self.val_losses.std(ddof=1)) / rows**0.5 if rows > 1 else math.nan

    @classmethod
    def of(cls, task: Task, test: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor]) -> Measured:
        """``test`` and ``val``: a model's outputs and the targets."""
        pairs = {"test": test, "val": val}
        errors, val_errors = (task.errors(*pair).cpu().numpy() for pair in (test, val))
        losses = task.loss(*val).double().cpu().numpy()
        found = cls.of_rows(task, errors, val_errors, losses, lambda split: task.answers(*pairs[split]).cpu().numpy())
        return replace(found, value=task.score(*test), val_value=task.score(*val) if len(val_errors) else math.nan)

    @classmethod
    def of_rows(
        cls,
        task: Task,
        errors: np.ndarray,
        val_errors: np.ndarray,
        losses: np.ndarray,
        answers: Callable[[str], np.ndarray],
    ) -> Measured:
        known = len(losses) > 0
        val_value, val_loss = (task.value(val_errors), float(losses.mean())) if known else (math.nan, math.nan)
        return cls(task.value(errors), val_value, val_loss, errors, losses, answers)


@dataclass(frozen=True)
class Scale:
    """How a federation's raw samples become model inputs and training targets."""

    gain: Tensor
    shift: Tensor
    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, federation: Federation, device: torch.device) -> Scale:
        dims = federation.dataset.x.ndim - 1
        gain_, shift_ = (a.reshape((1,) * (dims - a.ndim) + a.shape) for a in (federation.gain, federation.shift))
        arrays = (gain_, shift_, federation.target_mean, federation.target_std)
        gain, shift, mean, std = (torch.as_tensor(np.asarray(a, np.float32), device=device) for a in arrays)
        return cls(gain, shift, mean, std)

    @classmethod
    def stack(cls, scales: Sequence[Scale]) -> Scale:
        """Scales of several jobs, [jobs, ...]."""
        parts = ("gain", "shift", "mean", "std")
        return cls(*(torch.stack([getattr(s, part) for s in scales]) for part in parts))

    def of_rows(self, rows: Tensor) -> Scale:
        """From a stack, for samples [rows, B, ...]."""
        return Scale(*(part[rows].unsqueeze(1) for part in (self.gain, self.shift, self.mean, self.std)))

    def first(self, count: int) -> Scale:
        return Scale(self.gain[:count], self.shift[:count], self.mean[:count], self.std[:count])

    def inputs(self, raw: Tensor) -> Tensor:
        return torch.addcmul(self.shift, raw.float() if raw.is_floating_point() else raw, self.gain)

    def targets(self, raw: Tensor) -> Tensor:
        return (raw - self.mean) / self.std if raw.is_floating_point() else raw


@dataclass(frozen=True)
class Rows:
    """A federation's samples on the device, which its clients share in a simulation."""

    x: Tensor
    y: Tensor
    scale: Scale
    groups: Tensor | None
    """See ``Federation.groups``."""

    @classmethod
    def of(cls, job: Job, data: tuple[Tensor, Tensor] | None = None) -> Rows:
        """``data``: the dataset's rows, where they are on the device already."""
        device, federation = pick_device(job.training.device), job.federation
        x, y = data or samples(federation.dataset, device)
        scale, groups = Scale.of(federation, device), federation.groups
        return cls(x, scale.targets(y), scale, None if groups is None else torch.from_numpy(groups).to(device))

    def groups_of(self, at: Tensor, here: Tensor) -> Tensor:
        """Of rows ``at`` of the dataset, which are ``here`` in their split."""
        return here if self.groups is None else self.groups[at]


def samples(dataset: Dataset, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs and targets on the device. Arrays that are read-only are copied, since torch wants writable ones."""
    x, y = (torch.from_numpy(np.require(a, requirements=["C", "W"])).to(device) for a in (dataset.x, dataset.y))
    return x, y


class TrustLog:
    """Distribution of the trust weights over a round, per model, kept on the device until the round ends."""

    def __init__(self, models: int, device: torch.device) -> None:
        self.counts = torch.zeros(models * BINS, dtype=torch.float64, device=device)  # over (0, 1)
        self.sums = torch.zeros(2, models, dtype=torch.float64, device=device)  # of w and of w^2

    def add(self, weights: Tensor, model: Tensor | None = None, mask: Tensor | None = None) -> None:
        """``model`` names the model of each row of ``weights``, one row each, where there are several."""
        w = torch.atleast_2d(weights.detach().double())
        real = torch.ones_like(w) if mask is None else torch.atleast_2d(mask.double())
        rows = torch.zeros(1, dtype=torch.long, device=w.device) if model is None else model
        bins = rows.unsqueeze(-1) * BINS + (w * BINS).long().clamp_(0, BINS - 1)
        self.counts.index_add_(0, bins.flatten(), real.flatten())
        for total, power in zip(self.sums, (w, w.square()), strict=True):
            # Row by row first: to one place a GPU adds in any order.
            total.index_add_(0, rows, (power * real).sum(-1))

    def clear(self) -> None:
        self.counts.zero_()
        self.sums.zero_()

    def copy(self) -> tuple[Tensor, Tensor]:
        return self.counts.clone(), self.sums.clone()

    def restore(self, copied: tuple[Tensor, Tensor], models: Sequence[int] | None = None) -> None:
        """What was copied, of these models alone where they are named."""
        at = slice(None) if models is None else torch.as_tensor(models, device=self.counts.device)
        for now, then in zip(
            (self.counts.view(-1, BINS), self.sums.T), (copied[0].view(-1, BINS), copied[1].T), strict=True
        ):
            now[at] = then[at]

    def rows(self) -> Tensor:
        """On the CPU, for each model: the counts of all bins, the sum of w and the sum of w^2."""
        return torch.cat([self.counts.view(-1, BINS), self.sums.T], dim=1).cpu()


def trust_of_round(round: int, rows: Tensor) -> list[dict[str, Any]]:
    """What a job's record says of its round, given the log's rows of its clients; nothing where no gate was at work."""
    whole = _distribution(rows.sum(0))
    there = rows[:, :BINS].sum(1).tolist()  # at once: of many clients few were there
    clients = [_distribution(row) if count else None for row, count in zip(rows, there, strict=True)]
    return [{"round": round + 1, **whole, "clients": clients}] if whole else []


def _distribution(row: Tensor) -> dict[str, Any] | None:
    *counts, sum_, squares = row.tolist()
    total = sum(counts)  # of whole numbers, which is exact
    if total == 0:
        return None
    mean = sum_ / total
    return {
        "mean": mean,
        "std": max(squares / total - mean * mean, 0.0) ** 0.5,
        "histogram": [int(c) for c in counts],
    }


def pick_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one; a device that is not here is an error, not a fallback."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise unknown("device", name, ["auto", "cpu", "cuda"])
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise FedekdError(f"device {name!r} is not available: this torch sees no GPU; use --device cpu")
    return device


def bf16_warning(precision: str, device: str) -> str:
    """A line where bf16 is wanted of a CPU that has no instructions for it, whatever torch says; else nothing."""
    if precision != "bf16" or not (device == "cpu" or (device == "auto" and not torch.cuda.is_available())):
        return ""
    try:
        if "bf16" in CPUINFO.read_text():
            return ""
    except OSError:
        return ""
    return "this CPU has no bf16 instructions: bf16 is emulated here, often many times slower than fp32"


@contextmanager
def precision(name: str, device: torch.device) -> Iterator[None]:
    """Matrix arithmetic of the wanted precision inside the block, on this GPU where it is one of several; the caller's
    settings after it."""
    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    if name == "tf32" and device.type != "cuda":
        raise FedekdError("precision 'tf32' exists on NVIDIA GPUs only; use fp32 or bf16")
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    cuda.allow_tf32 = cudnn.allow_tf32 = name != "fp32"
    cudnn.deterministic = True
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before


def make_optimizer(
    training: Training, weights: Sequence[Tensor], *, lr: float | Tensor | None = None, capturable: bool = False
) -> torch.optim.Optimizer:
    """Adam decays weights apart from the gradient, as AdamW does.

    ``capturable``: for a CUDA graph; ``lr``: in place of the settings', a tensor if a graph is to read it at each step.
    """
    given: dict[str, Any] = {
        "lr": training.lr if lr is None else lr,
        "weight_decay": training.weight_decay,
        "fused": True,
    }
    if training.optimizer == "adam":
        kind = torch.optim.AdamW if training.weight_decay else torch.optim.Adam
        return kind(weights, **given, capturable=capturable)
    if training.optimizer in MOMENTUM:
        return torch.optim.SGD(weights, **given, momentum=MOMENTUM[training.optimizer])
    raise unknown("optimizer", training.optimizer, ["adam", *MOMENTUM])
