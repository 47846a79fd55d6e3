"""Differential privacy of what leaves a site: DP-SGD on the model that is sent, accounted for by Opacus.

What holds, for a row of the site's training split, over all rounds of one federation. Compared are a run with the row
and one in which it is never drawn; the number of rows counts as public. With ``group`` in site.toml the same holds for
a patient: all of a patient's rows are drawn together, and their mean gradient is clipped as one. The number of patients
counts as public then.

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

Every training of a model that is sent, or of a part of it, gets noise; what has seen rows without it is *exposed*, and
nothing of that may leave (see ``exposure``). The class counts are rows' data too. Functions whose results may leave are
told the number of rows instead, dealt evenly over the classes; those of models that stay here, and of the steps before
a client answers, get the true ones.

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
from torch.func import grad, vmap

from fedekd import models, parts
from fedekd.engines import return_checks
from fedekd.engines.batch import make_batch
from fedekd.engines.client import Client
from fedekd.engines.job import Job, make_optimizer, precision
from fedekd.errors import FedekdError
from fedekd.exchange import shared_roles
from fedekd.files import write_new
from fedekd.flower.protocol.codes import Failed
from fedekd.flower.settings import GUARANTEES, Privacy
from fedekd.flower.site.dp_sgd import Budget, KeyedRandom, NoisyOptimizer
from fedekd.flower.site.exposure import Exposure, begins_with_rows, feed
from fedekd.methods.base import Copy, Exchange, Remember, Train
from fedekd.methods.batch import Batch
from fedekd.models import trainable

SECRET = "secret"
log = logging.getLogger("fedekd.site")


class PrivateClient(Client):
    """A client that trains what it sends with DP-SGD, and everything else as always."""

    def __init__(self, job: Job, number: int, dp: Privacy, folder: Path) -> None:
        super().__init__(job, 0, number)
        self.dp, self.folder = dp, folder
        training = job.training
        self.shared = shared_roles(self.method, training.rounds)
        for role in self.shared:  # Opacus's gradients are laid out so, and a fused optimiser takes memory as it lies
            self.models[role].to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        steps = [step for round in range(training.rounds) for step in self.method.steps(round)]
        self.noisy = [s for s in steps if isinstance(s, Train) and self.shared & set(s.roles) and s.split != "public"]
        rows, groups = len(self.rows["train"]), job.federation.groups
        self.grouped = groups is not None
        self.units = np.arange(rows) if groups is None else groups[self.rows["train"].cpu().numpy()]
        """By training row: the number of what is protected as one, its patient or the row itself."""
        self.count = int(self.units.max()) + 1 if rows else 0
        if dp.delta * self.count >= 1:
            raise FedekdError(
                f"[dp] delta {dp.delta:g} protects no one of {self.count} {'patients' if self.grouped else 'rows'}; "
                f"set it far below 1/{self.count}"
            )
        self.exposure = Exposure(self.method, self.shared, steps, begins_with_rows(self))
        self.exposure.check(self.models)
        planned = sum(map(self._batches, self.noisy))
        self.budget = Budget(dp, folder, min(1.0, training.batch_size / rows), planned)

    def _batches(self, step: Train) -> int:
        training = self.job.training.of(step)
        return training.epochs * math.ceil(len(self.rows["train"]) / training.batch_size)

    def try_out(self) -> None:
        """Raise for what only training would find out: a budget that no noise keeps, a model whose rows mix."""
        self.budget.noise  # noqa: B018
        for role in {step.roles[0] for step in self.noisy}:
            of_rows = _row_by_row(self._loss_of_one(role, _supervised(role)))
            try:
                of_rows(_detached(trainable(self.models[role])), *(t[None] for t in self._blank()), {})
            except RuntimeError as error:
                raise FedekdError(
                    f"the {role} model has no gradient row by row, which DP-SGD needs ({str(error).splitlines()[0]})"
                ) from None

    # --- training -----------------------------------------------------------------------------------------

    def train(self, step: Train, round: int, again: int = 0) -> None:
        if not self.shared & set(step.roles) or self.personal:
            with self._unseen(f"training {' and '.join(step.roles)} in round {round + 1}"):
                super().train(step, round, again)
            return
        if step.split == "public":
            with self._even_counts():
                super().train(step, round, again)
            return
        seed = self.noise_key(step, round, again)
        own = self._own_loss(step)
        key = hashlib.sha256(seed).hexdigest()
        self.budget.spend(key, self._batches(step), weak=own and self.exposure.reads_more(step))
        with precision(self.job.training.precision, self.device), _seeded(seed, self.device), self._even_counts():
            self.train_with_noise(step, round, seed)

    def remember(self, step: Remember, round: int) -> None:
        with self._unseen(f"remembering in round {round + 1}"), self._even_counts():
            super().remember(step, round)

    def copy(self, step: Copy, round: int) -> None:
        with self._even_counts():
            super().copy(step, round)

    def upload(self, step: Exchange, round: int) -> dict[str, Tensor]:
        with self._even_counts():
            return super().upload(step, round)

    @contextmanager
    def _even_counts(self) -> Iterator[None]:
        """As many rows of every class, unless it is for the client's own answers."""
        true = self.counts
        if not self.personal:
            self.counts = torch.full_like(true, max(1, len(self.rows["train"]) // len(true)))
        try:
            yield
        finally:
            self.counts = true

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

    def train_with_noise(self, step: Train, round: int, seed: bytes) -> None:
        (role,) = step.roles
        module, rows, random = self.models[role].train(), self.rows["train"], KeyedRandom(seed)
        training, batches = self.job.training.of(step).at(round), self._batches(step)
        wanted = set(parts.names(step.part, module))
        weights = {name: w for name, w in trainable(module).items() if name in wanted}
        still = {name: w.detach() for name, w in trainable(module).items() if name not in wanted}
        own, self.steps = self._own_loss(step), batches
        loss = self._loss_of_one(role, step.loss if own else _supervised(role), training.lr)
        of_one = lambda now, *given, **more: loss({**now, **still}, *given, **more)  # noqa: E731
        of_rows = _row_by_row(of_one)
        taught = {r: self.outputs(r, rows) for r in step.frozen} if own else {}
        optimizer = NoisyOptimizer(
            make_optimizer(training, list(weights.values())),
            random,
            noise_multiplier=self.budget.noise,
            max_grad_norm=self.dp.clip,
            expected_batch_size=min(training.batch_size, len(rows)) * self.count / len(rows),
        )
        for _ in range(batches):
            now = _detached(weights)
            apart = self.method.reads_weights and not self.exposure.reads_more(step)
            blank = {r: (torch.zeros_like(o[0]), torch.zeros_like(f[0])) for r, (o, f) in taught.items()}
            rest = grad(of_one)(now, *self._blank(), blank, real=False) if apart else {}
            drawn = (random.uniform(self.count) < self.budget.rate)[self.units]
            here = torch.from_numpy(np.flatnonzero(drawn)).to(self.device)
            gradients = {name: w.new_zeros(0, *w.shape) for name, w in now.items()}
            if len(here):
                at = rows[here]
                uniform = torch.from_numpy(random.uniform(len(here), self.method.uniforms)).float().to(self.device)
                x, y = self.data.scale.inputs(self.data.x[at]), self.data.y[at]
                gradients = of_rows(now, x, y, uniform, here, {r: (o[here], f[here]) for r, (o, f) in taught.items()})
            of_units = self._by_unit([g - rest.get(name, 0) for name, g in gradients.items()], here)
            optimizer.take(of_units, list(rest.values()))
        for w in weights.values():
            del w.grad_sample  # type: ignore[attr-defined]
        if not all(bool(torch.isfinite(w).all()) for w in weights.values()):
            raise FedekdError(f"{self.method.name}: the {role} model diverged in round {round + 1}; lower `lr`")

    def _by_unit(self, of_rows: list[Tensor], here: Tensor) -> list[Tensor]:
        """The mean gradient of each patient's rows, which are all drawn or none; else each row's own."""
        if not self.grouped:
            return of_rows
        _, whose = np.unique(self.units[here.cpu().numpy()], return_inverse=True)
        place = torch.from_numpy(whose).to(self.device)
        count = int(place.max()) + 1 if len(place) else 0
        sums = [g.new_zeros(count, *g.shape[1:]).index_add_(0, place, g) for g in of_rows]
        sizes = torch.bincount(place, minlength=count)
        return [g / sizes.view(-1, *[1] * (g.ndim - 1)) for g in sums]

    def _own_loss(self, step: Train) -> bool:
        """Whether to take the method's own loss; else the supervised one."""
        return self.dp.teacher == "private" or not self.exposure.reads_more(step)

    def _loss_of_one(self, role: str, loss: Callable[[Batch], Any], lr: float = 0.0) -> Callable[..., Tensor]:
        """The loss of a batch of one row, as a function of the weights; of a batch of none if it is not ``real``."""

        def of_one(
            weights: dict[str, Tensor], x: Tensor, y: Tensor, uniform: Tensor, place: Tensor,
            taught: dict[str, tuple[Tensor, Tensor]], real: bool = True,
        ) -> Tensor:  # fmt: skip
            x, here = x.unsqueeze(0), place.unsqueeze(0)
            out = {r: (o.unsqueeze(0), f.unsqueeze(0)) for r, (o, f) in taught.items()}
            out[role] = self._with(role, weights, x)
            current: dict[str, Any] = {
                r: weights if r == role else _detached(trainable(self.models[r])) for r in self.method.reads_weights
            }
            seen = {
                "x": x,
                "y": y.unsqueeze(0),
                "outputs": {r: o for r, (o, _) in out.items()},
                "features": {r: f for r, (_, f) in out.items()} if self.method.needs_features else {},
                "weights": current,
                "received": self.received,
                "memory": self.memory,
                "gradients": self.gradients,
                "uniform": uniform.unsqueeze(0),
                "rows": here,
                "groups": self.data.groups_of(self.rows["train"][here], here) if real else here,
                "counts": self.counts,
                "steps": torch.tensor(self.steps, device=self.device),
                "mask": None if real else torch.zeros(1, dtype=torch.bool, device=self.device),
            }
            batch = make_batch(self.method, self.task, lr, seen, self._applied_here)
            return return_checks.loss_of(self.method, Train((role,), loss), batch)[0]

        return of_one

    def _applied_here(self, role: str, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        if role in self.exposure.roles and any(True for _ in self.models[role].buffers()):
            raise FedekdError(
                f"the {role} model's buffers have seen rows without noise, and a sent model learns from it"
            )
        return self._applied(role, weights, x)

    def _with(self, role: str, weights: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """A role's outputs and features with these weights; a head's from the constant features below it."""
        module = self.models[role]
        if role in self.method.heads:
            below = self.models[self.method.heads[role]].eval()
            features = self._with(self.method.heads[role], _detached(trainable(below)), x)[1].detach()
            return self.task.read(models.call(module, weights, features)), features
        caught: list[Tensor] = []
        hook = None
        if self.method.needs_features:
            hook = models.last_linear(module).register_forward_pre_hook(lambda _, args: caught.append(args[0]))
        try:
            output = self.task.read(models.call(module, weights, x))
        finally:
            if hook:
                hook.remove()
        return output, caught[-1] if caught else output

    def _blank(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Zeros in place of all that a loss may read of a row."""
        x, y = torch.zeros_like(self.data.x[0], dtype=torch.float32), torch.zeros_like(self.data.y[0])
        uniform = torch.zeros(self.method.uniforms, device=self.device)
        return x, y, uniform, torch.zeros((), dtype=torch.long, device=self.device)

    def noise_key(self, step: Train, round: int, again: int = 0) -> bytes:
        """From the site's secret and all that the training reads: noise is used again only for the same result."""
        path = self.folder / SECRET
        if not path.exists():
            write_new(path, os.urandom(32), private=True)
        said = f"{step.roles} {round} {again} {self.budget.noise} {self.dp}"
        digest = hashlib.sha256(path.read_bytes() + said.encode())
        rows = self.rows["train"]
        read: list[Any] = [trainable(self.models[step.roles[0]]), self.data.x[rows], self.data.y[rows]]
        if self.grouped:
            read.append(torch.from_numpy(self.units))
        below = [self.method.heads[role] for role in step.roles if role in self.method.heads]
        others = [*step.frozen, *self.method.reads_weights] if self._own_loss(step) else []
        read += [self.models[role].state_dict() for role in [*below, *others]]
        if self._own_loss(step):
            read += [self.received, self.memory, self.gradients]
        feed(digest, read)
        return digest.digest()

    @property
    def privacy(self) -> dict[str, Any]:
        """What was spent so far, for the report."""
        guarantee = GUARANTEES[self.budget.weak + 2 * self.grouped]
        return {
            "epsilon": self.budget.epsilon,
            "delta": self.dp.delta,
            "clip": self.dp.clip,
            "guarantee": guarantee,
        }


def _supervised(role: str) -> Callable[[Batch], Tensor]:
    return lambda batch: batch.supervised(role)


def _row_by_row(of_one: Callable[..., Tensor]) -> Callable[..., dict[str, Tensor]]:
    return vmap(grad(of_one), (None, 0, 0, 0, 0, 0), randomness="different")  # type: ignore[no-any-return]


def _detached(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: w.detach() for name, w in weights.items()}


@contextmanager
def _seeded(seed: bytes, device: torch.device) -> Iterator[None]:
    """Dropout draws from torch's own generators: the same again for the same seed, and nobody else's."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(hashlib.sha256(seed + b"dropout").digest()[:7], "little"))
        yield
