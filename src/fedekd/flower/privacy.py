"""Differential privacy of what leaves a site: DP-SGD on the model that is sent, accounted for by Opacus.

What holds, for a row of the site's training split, over all rounds of one federation:

- ``teacher = "labels"`` (the default): (epsilon, delta) for the sent models as a whole. Each step's gradient is a sum
  of clipped gradients that depend on one row each, on the sent model and on what the server sent; noise is added to
  it. A method whose own loss reads another model (FedeKD's distillation from the private model) gets the supervised
  loss instead, because that model has seen every row without noise.
- ``teacher = "private"``: the method's own loss. Then (epsilon, delta) holds only for a fixed private model: whoever
  changes a row also changes the private model, and through it every row's gradient, which nothing here bounds.

Rows are drawn by Poisson sampling, as the accounting assumes: each on its own with probability batch size / rows, so
a batch's size varies. Draws and noise come from a secret of the site, since the server knows the federation's seed.
The number of rows counts as public; the numbers that a site shares beside the model (``share``) are not covered.

What is spent stands in a ledger, written before the noise is drawn. The same training on the same rows draws the same
noise and is spent once, however often a visit is lost; anything else is spent anew, and refused past the budget: also
when a server asks for a visit twice with different models, or the rows change in the middle of a federation.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedekd.engines.client import Client, trainable
from fedekd.engines.job import Job, make_optimizer, precision
from fedekd.errors import FedekdError
from fedekd.exchange import shared_roles
from fedekd.flower.atomic import write_text
from fedekd.flower.keys import write_new
from fedekd.flower.site_file import GUARANTEES, Privacy
from fedekd.methods.base import Batch, Remember, Train

SECRET, SPENT = "secret", "spent.json"


class PrivateClient(Client):
    """A client that trains what it sends with DP-SGD, and everything else as always."""

    def __init__(self, job: Job, number: int, dp: Privacy, folder: Path) -> None:
        super().__init__(job, 0, number)
        self.dp, self.folder = dp, folder
        training = job.training
        self.shared = shared_roles(self.method, training.rounds)
        for role in self.shared:  # Opacus's gradients are laid out so, and a fused optimiser takes memory as it lies
            self.models[role].to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        steps = [s for r in range(training.rounds) for s in self.method.steps(r)]
        noisy = [s for s in steps if isinstance(s, Train) and self.shared & set(s.roles)]
        rows = len(self.rows["train"])
        self._check(noisy, rows)
        self._remembers_rows = any(isinstance(s, Remember) and s.split for s in steps)
        self._taught = any(self._reads_more(step) for step in noisy)
        self.rate = min(1.0, training.batch_size / rows)
        self.batches = training.epochs * math.ceil(rows / training.batch_size)
        self.planned = len(noisy) * self.batches
        self.ledger = self._read_ledger()

    @cached_property
    def noise(self) -> float:
        """In multiples of the clipping norm; it takes seconds to find, and is kept in the ledger."""
        return float(self.ledger.get("noise") or _noise(self.dp, self.rate, self.planned))

    def _check(self, noisy: list[Train], rows: int) -> None:
        name = self.method.name
        if self.dp.delta * rows >= 1:
            raise FedekdError(f"[dp] delta {self.dp.delta:g} protects no one of {rows} rows; set it far below 1/{rows}")
        for step in noisy:
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
        for other in self.folder.parent.glob(f"*/{SPENT}"):
            if other.parent != self.folder:
                raise FedekdError(
                    f"this site's privacy budget was spent in federation {other.parent.name}; two federations on the "
                    "same rows add up: set another `state` if that is meant"
                )

    # --- training -----------------------------------------------------------------------------------------

    def train(self, step: Train, round: int) -> None:
        if not self.shared & set(step.roles):
            super().train(step, round)
            return
        seed = self._seed(step, round)
        self._spend(seed.hex())
        with precision(self.job.training.precision, self.device):
            self._train_privately(step, round, seed)

    def _train_privately(self, step: Train, round: int, seed: bytes) -> None:
        from opacus.optimizers import DPOptimizer

        (role,) = step.roles
        module, rows = self.models[role].train(), self.rows["train"]
        weights = trainable(module)
        own = self._own_loss(step)
        loss = step.loss if own else (lambda batch: batch.supervised(role))
        taught = {r: self.outputs(r, rows)[0] for r in step.frozen} if own else {}
        chance = np.random.default_rng(int.from_bytes(seed[8:], "little"))
        generator = torch.Generator(self.device)
        generator.manual_seed(int.from_bytes(seed[:8], "little") >> 1)
        optimizer = DPOptimizer(
            make_optimizer(self.job.training, list(weights.values())),
            noise_multiplier=self.noise,
            max_grad_norm=self.dp.clip,
            expected_batch_size=min(self.job.training.batch_size, len(rows)),
            generator=generator,
        )
        of_rows = vmap(grad(self._loss_of_one(role, loss)), in_dims=(None, 0, 0, 0, 0), randomness="different")
        for _ in range(self.batches):
            drawn = np.flatnonzero(chance.random(len(rows)) < self.rate)
            here = torch.from_numpy(drawn).to(self.device)
            at = rows[here]
            detached = {name: w.detach() for name, w in weights.items()}
            if len(here):
                uniform = torch.from_numpy(chance.random((len(here), self.method.draws), dtype=np.float32))
                x, y = self.data.scale.inputs(self.data.x[at]), self.data.y[at]
                teachers = {r: out[here] for r, out in taught.items()}
                gradients = of_rows(detached, x, y, teachers, uniform.to(self.device))
            else:
                gradients = {name: torch.zeros(0, *w.shape, device=self.device) for name, w in weights.items()}
            for name, w in weights.items():
                w.grad_sample = gradients[name]  # type: ignore[attr-defined]
            optimizer.step()
            optimizer.zero_grad()
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
        """The loss of a batch of one row, as a function of the weights."""
        module = self.models[role]

        def of_one(
            weights: dict[str, Tensor], x: Tensor, y: Tensor, teachers: dict[str, Tensor], uniform: Tensor
        ) -> Tensor:
            raw = functional_call(module, weights, (x.unsqueeze(0),))
            outputs = {role: self.task.read(raw), **{r: out.unsqueeze(0) for r, out in teachers.items()}}
            current: dict[str, Any] = {
                r: weights if r == role else trainable(self.models[r]) for r in self.method.anchors
            }
            batch = Batch(
                self.task, y.unsqueeze(0), outputs, outputs, current, self.received, self.memory, uniform.unsqueeze(0)
            )
            result = loss(batch)
            return result[0] if isinstance(result, tuple) else result

        return of_one

    def _seed(self, step: Train, round: int) -> bytes:
        """From the site's secret and all that the training reads: noise is used again only for the same result."""
        path = self.folder / SECRET
        if not path.exists():
            write_new(path, os.urandom(32), private=True)
        digest = hashlib.sha256(path.read_bytes() + f"{step.roles} {round} {self.noise} {self.dp}".encode())
        rows = self.rows["train"]
        read: list[Any] = [trainable(self.models[step.roles[0]]), self.data.x[rows], self.data.y[rows]]
        if self._own_loss(step):
            read += [self.received, self.memory, [self.models[role].state_dict() for role in step.frozen]]
        _feed(digest, read)
        return digest.digest()

    # --- the budget ---------------------------------------------------------------------------------------

    def _read_ledger(self) -> dict[str, Any]:
        path = self.folder / SPENT
        try:
            return dict(json.loads(path.read_text()))
        except FileNotFoundError:
            return {"noise": None, "spent": {}}
        except (OSError, ValueError, TypeError) as error:
            raise FedekdError(f"cannot read what was spent of the privacy budget, {path}: {error}") from None

    def _spend(self, key: str) -> None:
        spent = {**self.ledger["spent"], key: [self.rate, self.batches]}
        epsilon = self._epsilon(spent)
        if not epsilon <= self.dp.epsilon:
            raise FedekdError(f"epsilon would be {epsilon:.3g}, more than {self.dp.epsilon:g}: the budget is spent")
        self.ledger = {"noise": self.noise, "spent": spent}
        write_text(self.folder / SPENT, json.dumps(self.ledger) + "\n")

    def _epsilon(self, spent: Mapping[str, tuple[float, int]]) -> float:
        steps: Counter[float] = Counter()
        for rate, count in spent.values():
            steps[rate] += count
        accountant = _accountant()
        accountant.history = [(self.noise, rate, count) for rate, count in steps.items()]
        return float(accountant.get_epsilon(self.dp.delta)) if steps else 0.0

    @property
    def privacy(self) -> dict[str, Any]:
        """What was spent so far, for the report."""
        guarantee = GUARANTEES[self._taught and self.dp.teacher == "private"]
        spent = self._epsilon(self.ledger["spent"])
        return {"epsilon": spent, "delta": self.dp.delta, "clip": self.dp.clip, "guarantee": guarantee}


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


def _accountant() -> Any:
    try:
        from opacus.accountants import RDPAccountant
    except ImportError:
        raise FedekdError("[dp] needs Opacus; get it with: pip install 'fedekd[dp]'") from None
    return RDPAccountant()


@cache
def _noise(dp: Privacy, rate: float, steps: int) -> float:
    """The least noise (in multiples of the clipping norm) that keeps all steps within the budget."""
    _accountant()
    from opacus.accountants.utils import get_noise_multiplier

    if not steps:
        return 0.0
    try:
        return float(
            get_noise_multiplier(
                target_epsilon=dp.epsilon, target_delta=dp.delta, sample_rate=rate, steps=steps, accountant="rdp"
            )
        )
    except ValueError as error:
        raise FedekdError(
            f"no noise keeps {steps} steps within epsilon {dp.epsilon:g} at delta {dp.delta:g} ({error}); raise epsilon"
        ) from None
