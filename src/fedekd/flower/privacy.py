"""Differential privacy of what leaves a site: DP-SGD on the model that is sent, accounted for by Opacus.

What holds, for a row of the site's training split, over all rounds of one federation. Compared are a run with the row
and one in which it is never drawn; the number of rows counts as public.

- ``teacher = "labels"`` (the default): (epsilon, delta) for the sent models as a whole. Each step's gradient is a sum
  of clipped gradients that depend on one row each, on the sent model and on what the server sent; noise is added to
  it. A method whose own loss reads another model (FedeKD's distillation from the private model) gets the supervised
  loss instead, because that model has seen every row without noise.
- ``teacher = "private"``: the method's own loss. Then (epsilon, delta) holds only for a fixed private model: whoever
  changes a row also changes the private model, and through it every row's gradient, which nothing here bounds.

Rows are drawn by Poisson sampling, as the accounting assumes: each on its own with probability batch size / rows, so
a batch's size varies. Draws and noise come from a secret of the site, since the server knows the federation's seed,
and are the same again for the same training on the same rows alone. What a method adds to its loss that no row enters
(FedProx's and FedDyn's terms) is added after the noise, for it needs none.

No row may show by a failure either: one whose gradient is not finite counts as none, and a model that stays here and
diverges, perhaps because the server sent a proxy that breaks on one row, goes on as it was before.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedekd.engines.client import Client, Rows, trainable
from fedekd.engines.job import Job, make_optimizer, precision
from fedekd.errors import FedekdError
from fedekd.exchange import shared_roles
from fedekd.flower.budget import Budget
from fedekd.flower.codes import Failed
from fedekd.flower.keys import write_new
from fedekd.flower.site_file import GUARANTEES, Privacy
from fedekd.methods.base import Batch, Remember, Train

SECRET = "secret"
log = logging.getLogger("fedekd.site")


class PrivateClient(Client):
    """A client that trains what it sends with DP-SGD, and everything else as always."""

    def __init__(self, job: Job, number: int, dp: Privacy, folder: Path, data: Rows | None = None) -> None:
        super().__init__(job, 0, number, data)
        self.dp, self.folder = dp, folder
        training = job.training
        self.shared = shared_roles(self.method, training.rounds)
        for role in self.shared:  # Opacus's gradients are laid out so, and a fused optimiser takes memory as it lies
            self.models[role].to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        steps = [s for r in range(training.rounds) for s in self.method.steps(r)]
        self.noisy = [s for s in steps if isinstance(s, Train) and self.shared & set(s.roles)]
        rows = len(self.rows["train"])
        self._check(rows)
        self._remembers_rows = any(isinstance(s, Remember) and s.split for s in steps)
        self.batches = training.epochs * math.ceil(rows / training.batch_size)
        self.budget = Budget(dp, folder, min(1.0, training.batch_size / rows), len(self.noisy) * self.batches)

    def _check(self, rows: int) -> None:
        name = self.method.name
        if self.dp.delta * rows >= 1:
            raise FedekdError(f"[dp] delta {self.dp.delta:g} protects no one of {rows} rows; set it far below 1/{rows}")
        for step in self.noisy:
            if len(step.roles) > 1:
                raise FedekdError(
                    f"method {name!r} trains {' and '.join(step.roles)} in one step, which DP-SGD cannot keep apart; "
                    "take another method, or leave [dp] out"
                )
        for role in sorted(self.shared):
            if any(True for _ in self.models[role].buffers()):
                raise FedekdError(
                    f"the {role} model has buffers (batch normalisation?), which would carry rows past the noise; "
                    "take group or layer normalisation"
                )

    def try_out(self) -> None:
        """Raise for what only training would find out: a budget that no noise keeps, a model whose rows mix."""
        self.budget.noise  # noqa: B018
        for role in {step.roles[0] for step in self.noisy}:
            of_rows = vmap(grad(self._loss_of_one(role, _supervised(role))), (None, 0, 0, 0, 0), randomness="different")
            x, y, nothing, uniform = self._blank()
            try:
                of_rows(_detached(trainable(self.models[role])), x[None], y[None], nothing, uniform[None])
            except RuntimeError as error:
                raise FedekdError(
                    f"the {role} model has no gradient row by row, which DP-SGD needs ({str(error).splitlines()[0]})"
                ) from None

    # --- training -----------------------------------------------------------------------------------------

    def train(self, step: Train, round: int) -> None:
        if not self.shared & set(step.roles):
            with self._unseen(f"training {' and '.join(step.roles)} in round {round + 1}"):
                super().train(step, round)
            return
        seed = self._seed(step, round)
        own = self._own_loss(step)
        self.budget.spend(hashlib.sha256(seed).hexdigest(), self.batches, weak=own and self._reads_more(step))
        with precision(self.job.training.precision, self.device), _seeded(seed, self.device):
            self._train_privately(step, round, seed)

    def remember(self, step: Remember, round: int) -> None:
        with self._unseen(f"remembering in round {round + 1}"):
            super().remember(step, round)

    @contextmanager
    def _unseen(self, work: str) -> Iterator[None]:
        before = copy.deepcopy(self.state())
        try:
            yield
        except Failed:
            raise
        except Exception as error:
            log.error("%s failed and is left out: %s", work, error, exc_info=not isinstance(error, FedekdError))
            self.restore(before)

    def _train_privately(self, step: Train, round: int, seed: bytes) -> None:
        from fedekd.flower.noise import Chance, NoisyOptimizer

        (role,) = step.roles
        module, rows, chance = self.models[role].train(), self.rows["train"], Chance(seed)
        weights = trainable(module)
        own = self._own_loss(step)
        of_one = self._loss_of_one(role, step.loss if own else _supervised(role))
        of_rows = vmap(grad(of_one), (None, 0, 0, 0, 0), randomness="different")
        taught = {r: self.outputs(r, rows)[0] for r in step.frozen} if own else {}
        optimizer = NoisyOptimizer(
            make_optimizer(self.job.training, list(weights.values())),
            chance,
            noise_multiplier=self.budget.noise,
            max_grad_norm=self.dp.clip,
            expected_batch_size=min(self.job.training.batch_size, len(rows)),
        )
        for _ in range(self.batches):
            now = _detached(weights)
            apart = self.method.anchors and not self._reads_more(step)
            rest = grad(of_one)(now, *self._blank(), real=False) if apart else {}
            here = torch.from_numpy(np.flatnonzero(chance.uniform(len(rows)) < self.budget.rate)).to(self.device)
            gradients = {name: w.new_zeros(0, *w.shape) for name, w in now.items()}
            if len(here):
                at = rows[here]
                uniform = torch.from_numpy(chance.uniform(len(here), self.method.draws)).float().to(self.device)
                x, y = self.data.scale.inputs(self.data.x[at]), self.data.y[at]
                gradients = of_rows(now, x, y, {r: out[here] for r, out in taught.items()}, uniform)
            optimizer.take([g - rest.get(name, 0) for name, g in gradients.items()], list(rest.values()))
        for w in weights.values():
            del w.grad_sample  # type: ignore[attr-defined]
        if not all(bool(torch.isfinite(w).all()) for w in weights.values()):
            raise FedekdError(f"{self.method.name}: the {role} model diverged in round {round + 1}; lower `lr`")

    def _own_loss(self, step: Train) -> bool:
        """Whether to take the method's own loss; else the supervised one."""
        return self.dp.teacher == "private" or not self._reads_more(step)

    def _reads_more(self, step: Train) -> bool:
        """Whether the method's loss may read more than the row, the sent models and what the server sent."""
        return bool(step.frozen or self._remembers_rows or set(self.method.anchors) - self.shared)

    def _loss_of_one(self, role: str, loss: Callable[[Batch], Any]) -> Callable[..., Tensor]:
        """The loss of a batch of one row, as a function of the weights; of a batch of none if it is not ``real``."""
        module = self.models[role]

        def of_one(
            weights: dict[str, Tensor],
            x: Tensor,
            y: Tensor,
            teachers: dict[str, Tensor],
            uniform: Tensor,
            real: bool = True,
        ) -> Tensor:
            raw = functional_call(module, weights, (x.unsqueeze(0),))
            outputs = {role: self.task.read(raw), **{r: out.unsqueeze(0) for r, out in teachers.items()}}
            current: dict[str, Any] = {
                r: weights if r == role else trainable(self.models[r]) for r in self.method.anchors
            }
            mask = None if real else torch.zeros(1, dtype=torch.bool, device=self.device)
            batch = Batch(
                self.task, y.unsqueeze(0), outputs, outputs, current, self.received, self.memory,
                uniform.unsqueeze(0), mask,
            )  # fmt: skip
            result = loss(batch)
            return result[0] if isinstance(result, tuple) else result

        return of_one

    def _blank(self) -> tuple[Tensor, Tensor, dict[str, Tensor], Tensor]:
        """Zeros in place of all that a loss may read of a row."""
        x, y = torch.zeros_like(self.data.x[0], dtype=torch.float32), torch.zeros_like(self.data.y[0])
        return x, y, {}, torch.zeros(self.method.draws, device=self.device)

    def _seed(self, step: Train, round: int) -> bytes:
        """From the site's secret and all that the training reads: noise is used again only for the same result."""
        path = self.folder / SECRET
        if not path.exists():
            write_new(path, os.urandom(32), private=True)
        digest = hashlib.sha256(path.read_bytes() + f"{step.roles} {round} {self.budget.noise} {self.dp}".encode())
        rows = self.rows["train"]
        read: list[Any] = [trainable(self.models[step.roles[0]]), self.data.x[rows], self.data.y[rows]]
        if self._own_loss(step):
            read += [self.received, self.memory, [self.models[role].state_dict() for role in step.frozen]]
        _feed(digest, read)
        return digest.digest()

    @property
    def privacy(self) -> dict[str, Any]:
        """What was spent so far, for the report."""
        guarantee = GUARANTEES[self.budget.weak]
        return {
            "epsilon": self.budget.epsilon,
            "delta": self.dp.delta,
            "clip": self.dp.clip,
            "guarantee": guarantee,
        }


def _supervised(role: str) -> Callable[[Batch], Tensor]:
    return lambda batch: batch.supervised(role)


def _detached(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: w.detach() for name, w in weights.items()}


@contextmanager
def _seeded(seed: bytes, device: torch.device) -> Iterator[None]:
    """Dropout draws from torch's own generators: the same again for the same seed, and nobody else's."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(hashlib.sha256(seed + b"dropout").digest()[:7], "little"))
        yield


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value):
            digest.update(f"{key} ".encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        for one in value:
            _feed(digest, one)
    else:
        digest.update(repr(value).encode())
